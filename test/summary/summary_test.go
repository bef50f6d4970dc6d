package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func newRunner(t *testing.T) (*runner, *bytes.Buffer) {
	t.Helper()
	out := &bytes.Buffer{}
	return &runner{ctx: context.Background(), out: out, counts: &counts{}}, out
}

// feed plays events, written as "action package test output", to a collector.
func feed(events ...string) (*counts, string) {
	var out bytes.Buffer
	c := &counts{}
	col := newCollector("test", &out, c)
	for _, e := range events {
		part := append(strings.SplitN(e, " ", 4), "", "", "")
		col.line(fmt.Sprintf(`{"Action":%q,"Package":%q,"Test":%q,"Output":%q}`, part[0], part[1], part[2], part[3]))
	}
	col.abandoned()
	return c, out.String()
}

func expect(t *testing.T, c *counts, passed, failed int) {
	t.Helper()
	if c.passed != passed || c.failed != failed {
		t.Errorf("got %d passed, %d failed, want %d and %d; failures %v", c.passed, c.failed, passed, failed, c.failures)
	}
}

func TestInnermostTestsAreCounted(t *testing.T) {
	c, _ := feed("run p A", "run p A/x", "run p A/y", "pass p A/x", "pass p A/y", "pass p A", "run p B", "pass p B", "pass p")
	expect(t, c, 3, 0)
}

func TestAFailedSubtestIsCountedOnce(t *testing.T) {
	c, out := feed("run p A", "run p A/x", "output p A/x why it failed", "fail p A/x", "run p A/y", "pass p A/y", "fail p A", "fail p")
	expect(t, c, 1, 1)
	if !strings.Contains(out, "why it failed") || !strings.Contains(out, "FAIL p") {
		t.Errorf("the output of the failed test is lost:\n%s", out)
	}
}

func TestATestThatFailsBesideItsPassingSubtestsIsCounted(t *testing.T) {
	c, _ := feed("run p A", "run p A/x", "pass p A/x", "fail p A", "run p B", "fail p B", "fail p")
	expect(t, c, 1, 2)
}

func TestAPackageThatFailsWithoutATestIsCounted(t *testing.T) {
	c, out := feed("run p A", "pass p A", "output p  leaked 3 descriptors", "fail p")
	expect(t, c, 1, 1)
	if !strings.Contains(out, "package") && !strings.Contains(out, "FAIL") {
		t.Errorf("unexpected output:\n%s", out)
	}
}

func TestAPanickedOrKilledTestIsFailed(t *testing.T) {
	c, _ := feed("run p A", "output p A panic: x", "fail p")
	expect(t, c, 0, 1)
	c, _ = feed("run p A", "pass p A", "run p B") // the stream ends here
	expect(t, c, 1, 1)
}

func TestSkipsCarryTypeAndReasonOnce(t *testing.T) {
	events := []string{"run p A", "output p A === RUN A\n", "output p A     a_test.go:7: no-root: needs a namespace\n", "output p A --- SKIP: A (0.00s)\n", "skip p A",
		"run p B", "output p B     b_test.go:1: just because\n", "skip p B", "pass p"}
	c, _ := feed(append(events, events...)...)
	want := []skip{{"no-root", "p A", "needs a namespace"}, {"untyped", "p B", "just because"}}
	if !slices.Equal(c.skips, want) {
		t.Errorf("got %v, want %v", c.skips, want)
	}
	expect(t, c, 0, 0)
}

func TestPackagesWithoutTestsAreNoSkips(t *testing.T) {
	c, out := feed("output p  ?   p [no test files]", "skip p")
	expect(t, c, 0, 0)
	if len(c.skips) != 0 || out != "" {
		t.Errorf("got %v %q", c.skips, out)
	}
}

func TestTheClosingLineIsTheLast(t *testing.T) {
	r, out := newRunner(t)
	r.phase("one", func(string) { r.counts.pass(2) })
	r.phase("two", func(name string) { r.counts.fail(name); r.counts.skip(name, "no-network: gone") })
	r.close()
	if !strings.HasSuffix(out.String(), "\n2 passed, 1 failed\n") {
		t.Errorf("output ends wrong:\n%s", out)
	}
	for _, want := range []string{"ok   one", "FAIL two", "no-network", "two: gone"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, out)
		}
	}
}

func TestScriptsPassFailSkipAndCount(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, c := range []struct {
		body           string
		passed, failed int
		skip           string
	}{
		{"echo fine", 1, 0, ""},
		{"echo broken; exit 1", 0, 1, ""},
		{"echo 'no-root: needs a namespace'; exit 77", 0, 0, "no-root"},
		{"echo '4 passed, 0 failed'", 4, 0, ""},
		{"echo '4 passed, 2 failed'; exit 1", 4, 2, ""},
		{"echo '4 passed, 2 failed'", 0, 1, ""},
		{"echo '4 passed, 0 failed'; exit 1", 0, 1, ""},
	} {
		if err := os.WriteFile("run.sh", []byte("#!/bin/sh\n"+c.body+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		r, _ := newRunner(t)
		r.script("run.sh")
		expect(t, r.counts, c.passed, c.failed)
		if c.skip != "" && (len(r.counts.skips) != 1 || r.counts.skips[0].kind != c.skip) {
			t.Errorf("%s: got %v", c.body, r.counts.skips)
		}
	}
}

func TestGatesCountTheirEventsOrSkipWithAReason(t *testing.T) {
	const one = `echo '{"Action":"run","Package":"p","Test":"TestA"}'; `
	for _, c := range []struct {
		script         string
		passed, failed int
		skip           string
	}{
		{one + `echo '{"Action":"pass","Package":"p","Test":"TestA"}'; echo '{"Action":"pass","Package":"p"}'; echo table`, 1, 0, ""},
		{one + `echo '{"Action":"fail","Package":"p","Test":"TestA"}'; echo '{"Action":"fail","Package":"p"}'; exit 1`, 0, 1, ""},
		{one + `echo '{"Action":"pass","Package":"p","Test":"TestA"}'; echo '{"Action":"pass","Package":"p"}'; exit 77`, 1, 1, ""},
		{one + `exit 1`, 0, 1, ""},
		{`echo installing; echo 'no-network: apt-get update'; exit 77`, 0, 0, "no-network"},
		{`exit 1`, 0, 1, ""},
		{`echo nothing ran`, 0, 1, ""},
	} {
		r, _ := newRunner(t)
		r.gate("vm", command{args: []string{"sh", "-c", c.script}})
		expect(t, r.counts, c.passed, c.failed)
		if c.skip != "" && (len(r.counts.skips) != 1 || r.counts.skips[0].kind != c.skip) {
			t.Errorf("%s: got %v", c.script, r.counts.skips)
		}
	}
}

func TestTheLimitKillsTheWholeGroup(t *testing.T) {
	r, _ := newRunner(t)
	ctx, cancel := context.WithCancel(context.Background())
	r.ctx = ctx
	grandchild := ""
	r.phase("stuck", func(name string) {
		err := r.lines(command{args: []string{"sh", "-c", "sleep 3600 & echo $!; wait"}}, func(line string) {
			grandchild = line
			cancel()
		})
		if err == nil {
			t.Error("a killed command reports no error")
		}
		r.counts.fail(name)
	})
	if alive(grandchild) {
		t.Errorf("process %q outlives its group", grandchild)
	}
	r.phase("later", func(string) { t.Error("a phase started after the limit") })
	expect(t, r.counts, 0, 2)
}

// alive says whether a process runs, a zombie does not. A killed process needs a moment to end.
func alive(pid string) bool {
	for range 500 {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil || bytes.Contains(stat, []byte(") Z ")) {
			return false
		}
		time.Sleep(10 * time.Millisecond)
	}
	return true
}

func TestUnformattedFilesAreFound(t *testing.T) {
	t.Chdir(t.TempDir())
	for text, failed := range map[string]int{"package p\n\nvar x int\n": 0, "package p\nvar  x int\n": 1, "package\n": 1} {
		if err := os.WriteFile("a.go", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		r, _ := newRunner(t)
		r.format("format")
		expect(t, r.counts, 1-failed, failed)
	}
}

func TestUnknownPhasesAreRefused(t *testing.T) {
	r, out := newRunner(t)
	if r.runPhases([]string{"vett"}) || out.Len() > 0 {
		t.Error("an unknown phase passes")
	}
}

// TestNestedModulesAreVettedAndTested runs the real go command on a module of one test.
func TestNestedModulesAreVettedAndTested(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.MkdirAll("test/consumer", 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"go.mod":      "module example.com/consumer\n\ngo 1.26\n",
		"doc.go":      "package consumer\n",
		"use_test.go": "package consumer\n\nimport \"testing\"\n\nfunc TestA(t *testing.T) {}\n\nfunc TestB(t *testing.T) { t.Fatal(\"no\") }\n\nfunc TestC(t *testing.T) { panic(\"here\") }\n",
	} {
		if err := os.WriteFile("test/consumer/"+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r, out := newRunner(t)
	r.modules("modules")
	expect(t, r.counts, 2, 2) // vet and A; B and C
	if !strings.Contains(out.String(), "panic: here") {
		t.Errorf("the panic is not shown:\n%s", out)
	}
}
