package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/libcuda"
)

// script writes a program of the gate.
func script(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// conduct runs parts and reads the results back.
func conduct(t *testing.T, list []part) (int, []result, string) {
	t.Helper()
	out := t.TempDir()
	g, err := newGate(out, time.Minute, "libcuda.so.1")
	if err != nil {
		t.Fatal(err)
	}
	code := g.run(list, nil)
	var file struct{ Parts []result }
	text, err := os.ReadFile(filepath.Join(out, "gpu.json"))
	if err == nil {
		err = json.Unmarshal(text, &file)
	}
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(filepath.Join(out, "gpu.txt"))
	if err != nil {
		t.Fatal(err)
	}
	return code, file.Parts, string(log)
}

func TestAPartThatFailsHoldsNoOtherUp(t *testing.T) {
	suite := "echo '=== RUN   TestSuite'\n"
	code, all, log := conduct(t, []part{
		{name: "bad", program: script(t, "bad", "echo went wrong; exit 3"), limit: time.Minute},
		{name: "hangs", program: script(t, "hangs", "echo begun; sleep 100 & wait"), limit: 300 * time.Millisecond},
		{name: "missing", program: "/nowhere/program", limit: time.Minute},
		{name: "none", program: script(t, "none", "echo 'no-thing: there is none'; exit 77"), limit: time.Minute},
		{name: "skipped", program: script(t, "skipped", suite+"echo '    x.go:1: absent: no GPU'; echo '--- SKIP: TestSuite (0.00s)'; echo PASS"), limit: time.Minute, test: "TestSuite"},
		{name: "empty", program: script(t, "empty", "echo 'testing: warning: no tests to run'; echo PASS"), limit: time.Minute, test: "TestSuite"},
		{name: "suite", program: script(t, "suite", suite+"echo '    --- SKIP: TestSuite/one (0.0s)'; echo '    --- PASS: TestSuite/two (0.0s)'; echo '--- PASS: TestSuite (0.0s)'"), limit: time.Minute, test: "TestSuite"},
		{name: "leaves", program: script(t, "leaves", "sleep 100 & echo ended"), limit: time.Minute},
		{name: "good", program: script(t, "good", `echo '{"figure": 7}' > "$ORBITTE_GPU_DATA"; echo fine`), limit: time.Minute},
	})
	want := []struct {
		status status
		reason string
	}{
		{failed, "exit status 3; its last line: went wrong"}, {failed, "not done after"}, {absent, "not-built: /nowhere/program"},
		{absent, "no-thing: there is none"}, {absent, "absent: no GPU"}, {failed, "no test ran"}, {passed, ""}, {passed, ""}, {passed, ""},
	}
	if code != 1 || len(all) != len(want) {
		t.Fatalf("status %d, %d results", code, len(all))
	}
	for i, w := range want {
		if r := all[i]; r.Status != w.status || !strings.Contains(r.Reason, w.reason) || w.reason == "" && r.Reason != "" {
			t.Errorf("%s: %s, %q", r.Part, r.Status, r.Reason)
		}
	}
	if all[6].Counts != "2 tests passed, 0 failed, 1 skipped" {
		t.Errorf("the suite's counts: %q", all[6].Counts)
	}
	var data struct{ Figure int }
	if err := json.Unmarshal(all[8].Data, &data); err != nil || data.Figure != 7 || all[7].Data != nil {
		t.Errorf("figures: %s and %s", all[8].Data, all[7].Data)
	}
	for _, line := range []string{"bad| went wrong", "hangs| begun", "3 passed, 3 failed, 3 absent"} {
		if !strings.Contains(log, line) {
			t.Errorf("gpu.txt does not say %q:\n%s", line, log)
		}
	}
}

func TestWithoutADriverEveryPartIsAbsentAndNothingFails(t *testing.T) {
	code, all, _ := conduct(t, []part{
		{name: "driver", program: script(t, "driver", "echo 'no-driver: the long story'; exit 77"), limit: time.Minute},
		{name: "bad", program: script(t, "bad", "exit 1"), limit: time.Minute},
	})
	if code != 0 || all[0].Status != absent || all[1].Status != absent || all[1].Reason != "no-driver: as part driver says" {
		t.Errorf("status %d, %+v", code, all)
	}
}

// The gate has under eight minutes, and each part the time that it is promised.
func TestTheLimitsOfThePartsFitIntoTheGates(t *testing.T) {
	var sum time.Duration
	for _, p := range parts {
		sum += p.limit + 3*time.Second // for a part that has to be ended
	}
	if limit := 7*time.Minute + 30*time.Second; sum > limit {
		t.Errorf("the parts may take %s, the gate has %s", sum, limit)
	}
}

func TestOnlyAMissingDriverOrGPUIsAnAbsence(t *testing.T) {
	call := &cuda.CallError{Call: "cuInit", Result: cuda.NoDevice}
	for word, err := range map[string]error{
		"no-driver: ": &libcuda.NoLibrary{}, "no-gpu: ": &libcuda.NoDevice{Call: call}, "no-cgo: ": &libcuda.NoCgo{}, "stub: ": &libcuda.Stub{Call: call},
	} {
		if got := absence(err); !strings.HasPrefix(got, word) {
			t.Errorf("%T: %q", err, got)
		}
	}
	for _, err := range []error{nil, errors.New("x"), &libcuda.NotReady{Call: call}, &libcuda.TooOld{}, &libcuda.Permission{Call: call}, call} {
		if got := absence(err); got != "" {
			t.Errorf("%v is an absence: %q", err, got)
		}
	}
}

// The measurement on the stand-in driver: its times mean nothing, its bytes are checked.
func TestTheTableIsMeasuredOnTheStandInDriver(t *testing.T) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("compiler: no gcc to build the stand-in library with; install gcc")
	}
	path := filepath.Join(t.TempDir(), "libcuda.so.1")
	if out, err := exec.Command(gcc, "-std=gnu11", "-shared", "-fPIC", "-o", path, "../../cuda/libcuda/testdata/fake.c", "-lpthread").CombinedOutput(); err != nil {
		t.Fatalf("building the stand-in library: %v\n%s", err, out)
	}
	calls, err := libcuda.LoadPath(path)
	if errors.Is(err, libcuda.ErrNoCgo) {
		t.Skipf("no-cgo: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	cells, err := measure(calls, options{ordinal: 1, least: 4 << 10, largest: 64 << 10, budget: time.Millisecond})
	if err != nil || len(cells) != 6 {
		t.Fatalf("%d cells, %v", len(cells), err)
	}
	for _, c := range cells {
		if c.Rounds < 5 || c.Query <= 0 || c.Signal <= 0 || c.Staged <= 0 || c.Plain <= 0 || c.Ratio <= 0 {
			t.Errorf("%+v", c)
		}
	}
	for _, ordinal := range []int{0, 1} {
		if active, err := calls.PrimaryActive(ordinal); err != nil || active {
			t.Errorf("GPU %d has a context at the end: %v, %v", ordinal, active, err)
		}
	}
}

func TestTheTwoRolesAreTwoProcessesAndBothHaveToEndWell(t *testing.T) {
	const source = "trap 'echo given back; exit %STATUS%' INT; echo cuda_copy peer 127.0.0.1:1 e; while :; do sleep 0.05; done"
	program := func(status, peer string) string {
		return script(t, "copy", "if [ $1 = source ]; then "+strings.ReplaceAll(source, "%STATUS%", status)+"; fi\n"+peer)
	}
	for _, row := range []struct{ program, want string }{
		{program("0", `[ "$*" = "peer 127.0.0.1:1 e 1" ]`), ""},
		{program("0", "exit 5"), "the peer: exit status 5"},
		{program("6", "exit 0"), "the source: exit status 6"},
		{script(t, "silent", "exit 0"), "before it published"},
		{script(t, "odd", "echo hello; exit 0"), "no peer's command"},
	} {
		err := roles(row.program, "1")
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("want %q: %v", row.want, err)
		}
	}
}

func TestAMedianIsTheMiddleOfWhatWasMeasured(t *testing.T) {
	m := measured{query: []float64{10, 30, 20}, signal: []float64{1, 3, 2}, staged: []float64{20, 40, 80}}
	if c := m.cell("x", 1e6); c.Query != 20 || c.Signal != 2 || c.Staged != 40 || c.Plain != 50 || c.Engine != 25 || c.Ratio != 0.5 || c.Rounds != 3 {
		t.Errorf("%+v", c)
	}
}
