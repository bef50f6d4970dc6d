package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/orbitte/orbitte/perf/figures"
)

// The round that warms up is none of those that the user asked for, so the last one that is told is the last one there is.
func TestProgressCountsTheRoundsThatWereAskedFor(t *testing.T) {
	subjects := []subject{{name: "s", measure: func(context.Context, *bench, int) (figures.Sample, error) {
		return figures.Sample{Bytes: 1e9, Seconds: 1, Operations: 1}, nil
	}}}
	for cold, want := range map[bool]string{
		false: "here, warming up: g: s|here, round 1 of 2: g: s|here, round 2 of 2: g: s|here, counting calls: g: s",
		true:  "here, round 1 of 2: g: s|here, round 2 of 2: g: s",
	} {
		var told strings.Builder
		r := &runner{bench: &bench{}, rounds: 2, window: time.Millisecond, progress: &progress{to: &told, terminal: true, start: time.Now()}}
		r.measure(t.Context(), group{name: "g", figure: figures.Rate, cold: cold, subjects: subjects}, "here")
		lines := strings.Split(strings.ReplaceAll(told.String(), "  0 s  ", ""), "\r\033[K")
		if got := strings.Join(lines[1:], "|"); got != want {
			t.Errorf("cold %v: told\n%s, want\n%s", cold, got, want)
		}
	}
}

// Where others want the processors, who spins waits for them: the better of the two raw ping-pongs counts in the table,
// while the targets keep the spinning one, as the plan says.
func TestLatencyIsHeldAgainstTheBetterOfSpinningAndBlocking(t *testing.T) {
	for _, g := range latencyGroups(options{kernel: "auto"}) {
		var entries []*entry
		for _, s := range g.subjects {
			if s.baseline || s.name == options.staged(options{kernel: "io_uring"}).name() {
				e := fakeEntry(s.name)
				e.subject = s
				for _, micros := range map[string][]int{spinning.name: {236, 8, 240}, blocking.name: {20, 40, 20}}[s.name] {
					e.samples = append(e.samples, timedSample(micros))
				}
				entries = append(entries, e)
			}
		}
		if len(entries) != 3 {
			t.Fatalf("%s: %d baselines and own subjects, want 2 and 1", g.name, len(entries))
		}
		own := entries[2]
		for _, micros := range []int{22, 44, 22} {
			own.samples = append(own.samples, timedSample(micros))
		}
		c := cellsOf(g, entries)[2]
		if c.Ratio == nil || c.Ratio.Median < 1.09 || c.Ratio.High > 1.11 || c.Against != spinning.name+" / "+blocking.name {
			t.Errorf("%s: ratio %+v against %q; want 1.1 in each round, against the blocking one", g.name, c.Ratio, c.Against)
		}
	}
	for _, e := range examinations(options{kernel: "auto"}) {
		for _, a := range e.aims {
			if strings.HasPrefix(a.name, "read-") && !slices.Equal(a.theirs, []string{spinning.name}) {
				t.Errorf("%s is judged against %q", a.name, a.theirs)
			}
		}
	}
}

func timedSample(micros int) figures.Sample {
	s := figures.Sample{Operations: 1, Seconds: 1, Latency: figures.NewHistogram()}
	s.Latency.Record(time.Duration(micros) * time.Microsecond)
	return s
}

// Whoever reads the results of an interrupted run must not take it for a whole one; and the source process, which the same
// signal reaches from a terminal or timeout(1), says nothing of itself.
func TestInterruptedRunSaysSoInEachOfItsResults(t *testing.T) {
	const sent = syscall.SIGTERM // Ctrl-C goes the same way
	base := filepath.Join(t.TempDir(), "run")
	told := interrupted(t, sent, "-only", "pages", "-subject", "hptcp", "-rounds", "1", "-window", "1ms", "-out", base)
	if strings.Contains(told, "pipe") || strings.Contains(told, "source process") || strings.Contains(told, "building") || strings.Count(told, "interrupted: ") != 1 {
		t.Errorf("%v: told\n%s", sent, told)
	}
	file, err := os.Open(base + ".jsonl")
	if err != nil {
		t.Fatal(err)
	}
	run, err := figures.ReadRun(file)
	file.Close()
	if err != nil || run.End == nil || !run.End.Interrupted || len(run.Cells) == 0 {
		t.Fatalf("%v: %d cells, end %+v, %v", sent, len(run.Cells), run.End, err)
	}
	for range 2 { // as the run left it, and made again
		text, err := os.ReadFile(base + ".html")
		if err != nil || !strings.Contains(string(text), "This run was interrupted") {
			t.Errorf("%v: the page does not say so; %v", sent, err)
		}
		if err := errors.Join(os.Remove(base+".html"), remake(base+".jsonl")); err != nil {
			t.Fatal(err)
		}
	}
}

// interrupted runs the harness until it has a table, sends its group a signal, and returns what it told.
func interrupted(t *testing.T, sent syscall.Signal, args ...string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var told strings.Builder
	c := exec.Command(self, args...)
	c.Env, c.SysProcAttr, c.Stderr = append(os.Environ(), wholeProgram+"=1"), &syscall.SysProcAttr{Setpgid: true}, &told
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	for scanner := bufio.NewScanner(out); scanner.Scan(); {
		if strings.Contains(scanner.Text(), "GB/s") {
			_ = syscall.Kill(-c.Process.Pid, sent)
		}
	}
	if _ = c.Wait(); c.ProcessState.ExitCode() != 1 {
		t.Errorf("exit status %d; told\n%s", c.ProcessState.ExitCode(), told.String())
	}
	return told.String()
}

func TestErrorsAreToldOnce(t *testing.T) {
	one, other := errors.New("gone"), errors.New("other")
	if err := distinct(nil, one, errors.Join(one, other), errShort, one); err == nil || err.Error() != "gone\nother\na target is short" || !errors.Is(err, errShort) {
		t.Errorf("%v", err)
	}
	if err := distinct(nil, nil); err != nil {
		t.Errorf("nothing became %v", err)
	}
}

func TestClosingLineSaysHowTheRunEnded(t *testing.T) {
	for _, c := range []struct {
		err  error
		want figures.End
	}{{nil, figures.End{}}, {errShort, figures.End{}}, {errors.Join(errors.New("x"), errInterrupted), figures.End{Interrupted: true}}, {errors.New("a\nb"), figures.End{Failed: "a b"}}} {
		got, err, want := endOf(c.err), c.err, c.want
		if got.Time == "" || len(strings.Fields(got.Load)) != 3 {
			t.Errorf("%+v", got)
		}
		if got.Time, got.Load = "", ""; got != want {
			t.Errorf("%v: %+v, want %+v", err, got, want)
		}
	}
}

// Programs of others are built where they are measured, not for a run of a single target without them.
func TestGnetAndGRPCAreBuiltOnlyForWhoMeasuresThem(t *testing.T) {
	for line, want := range map[string]bool{
		"check": true, "check -only vs-grpc": true, "check -only hptcp-read,vs-gnet": true, "check -only hptcp-read": false, "check -only read-,tcp-,peers": false, "check -only vs-iperf3": false,
		"": true, "-only latency": true, "-only bulk": true, "-only idle,pages,tools": false, "-only latency -subject orbitte": false, "-only latency -subject grpc": true,
	} {
		f, words, err := parse(strings.Fields(line), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		groups := f.groups(len(words) > 0)
		if got := wanted(groups); got != want || len(groups) == 0 {
			t.Errorf("%q: built %v, want %v; %d groups", line, got, want, len(groups))
		}
		for _, g := range groups { // nobody needs them without saying so
			for _, s := range g.subjects {
				if named := strings.Contains(s.name, "gnet") || strings.Contains(s.name, "grpc"); named != s.others {
					t.Errorf("%s: %s needs the program of others: %v", g.name, s.name, s.others)
				}
			}
		}
	}
}

func TestVerdictOfOneRoundSaysSo(t *testing.T) {
	e := examination{rounds: 21}
	a := aim{name: "n", bound: 0.8, ours: []string{"a"}, theirs: []string{"x"}, figure: rateOf}
	target := e.judge(&a, []*entry{fakeEntry("a", 1), fakeEntry("x", 2)})
	if line := target.Line(); !strings.HasSuffix(line, " short  (only 1 round of 21; 1.00 against 2.00 GB/s)") {
		t.Errorf("line %q", line)
	}
	target = e.judge(&a, []*entry{fakeEntry("a", 1, 1), fakeEntry("x", 2, 2)})
	if line := target.Line(); !strings.HasSuffix(line, " short  (0.50 to 0.50; 1.00 against 2.00 GB/s, 2 rounds)") {
		t.Errorf("line %q", line)
	}
}

func TestCheckEndsWithALineAboutAllTargets(t *testing.T) {
	const rest = "; why some are known to be short: perf/results/, the newest file …-targets.md"
	for _, c := range []struct {
		tally tally
		want  string
	}{
		{tally{all: 25, verdicts: map[string]int{"ok": 15, "short": 9, "absent": 1}, took: 52 * time.Second, cpus: 2, before: "1.00 2 3", after: "2.10 2 3"},
			"15 of 25 targets ok, 9 short, 1 absent, in 52 s; load 1.00 at the start, 2.10 at the end, on 2 CPUs" + rest},
		{tally{all: 3, verdicts: map[string]int{"ok": 2}, cpus: 2, before: "1.01 2 3", after: "0.50 2 3"},
			"2 of 3 targets ok, 1 not measured, in 0 s; load 1.01 at the start, 0.50 at the end, on 2 CPUs (above 1.00 at the start: busy, which makes figures like these worthless; run it again when all else has been quiet for a minute)" + rest},
		{tally{all: 1, cpus: 64, before: "20 2 3"}, "0 of 1 targets ok, 1 not measured, in 0 s; load 20 at the start, unknown at the end, on 64 CPUs" + rest},
	} {
		if got := c.tally.line(); got != c.want {
			t.Errorf("told\n%s, want\n%s", got, c.want)
		}
	}
}

// An interrupted check says how far it came.
func TestInterruptedCheckEndsWithThatLineToo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var told strings.Builder
	f := &flags{only: "tcp-read,hptcp-write", kernel: "auto"}
	err := f.check(ctx, &bench{brief: true}, &progress{to: io.Discard}, &output{}, &told)
	if text := told.String(); err != nil || !strings.HasPrefix(text, "0 of 4 targets ok, 4 not measured, in 0 s; load unknown at the start, ") || strings.Count(text, "\n") != 1 {
		t.Errorf("%v; told\n%s", err, text)
	}
}

// Whoever looks for today's figures finds them in the first row of the table, not among nine sets of runs.
func TestResultsNameTheirNewestCheck(t *testing.T) {
	files, err := filepath.Glob("../results/*-check*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d checks, %v", len(files), err)
	}
	newest, made, commit := "", "", ""
	for _, path := range files {
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		run, err := figures.ReadRun(file)
		file.Close()
		if err != nil {
			t.Errorf("%s: %v", path, err)
		} else if !strings.Contains(run.Machine.Command, "-only") && run.Machine.Time > made {
			newest, made, commit = filepath.Base(path), run.Machine.Time, run.Machine.Commit
		}
	}
	text, err := os.ReadFile("../results/README.md")
	if want := "| the newest check of all 25 targets | `" + newest + "` | " + commit + " |"; err != nil || !strings.Contains(string(text), want) {
		t.Errorf("perf/results/README.md has no row %q; %v", want, err)
	}
	if lines := strings.Count(string(text), "\n"); lines > 40 {
		t.Errorf("perf/results/README.md has %d lines; what was found belongs into a dated file beside it", lines)
	}
}
