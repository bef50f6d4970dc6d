package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/orbitte/orbitte/perf/baselines"
	"github.com/orbitte/orbitte/perf/figures"
)

// wholeProgram is a variable of the environment that makes the test's own program the harness.
const wholeProgram = "ORBITBENCH_WHOLE"

// TestMain lets the test's own program be the source process, or all of the harness.
func TestMain(m *testing.M) {
	if os.Getenv(wholeProgram) != "" {
		main()
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "-source" {
		if err := serveSource(); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func TestModelsHaveTheSizesThatTheirPapersGive(t *testing.T) {
	want := map[string]struct {
		token  uint64
		piece  uint64
		ranges int // of 512 tokens
	}{
		"Llama 3.1 8B":  {128 << 10, 32 << 10, 2048},
		"Llama 3.1 70B": {320 << 10, 32 << 10, 5120},
		"Qwen2.5 7B":    {56 << 10, 16 << 10, 1792},
		"gpt-oss 120B":  {72 << 10, 16 << 10, 2304},
		"DeepSeek V3":   {70272, 18 << 10, 1952},
	}
	if len(models) != len(want) {
		t.Fatalf("%d models, %d are known", len(models), len(want))
	}
	for _, m := range models {
		w := want[m.name]
		if m.tokenBytes() != w.token || m.pieceBytes() != w.piece || m.ranges(512) != w.ranges || m.ranges(513) <= m.ranges(512) {
			t.Errorf("%s: %d a token, %d a range, %d ranges; want %+v", m.name, m.tokenBytes(), m.pieceBytes(), m.ranges(512), w)
		}
		if uint64(m.ranges(512))*m.pieceBytes() != 512*m.tokenBytes() {
			t.Errorf("%s: the ranges of 512 tokens are not 512 tokens", m.name)
		}
		if text := m.arithmetic(512); !strings.Contains(text, figures.Bytes(w.token)+" a token") {
			t.Errorf("%s: %q", m.name, text)
		}
	}
}

func TestPatternTellsOneWrongByte(t *testing.T) {
	b := make([]byte, 4096)
	sourcePattern.fill(b, 8192)
	if i := sourcePattern.differs(b, 8192); i != -1 {
		t.Errorf("its own bytes differ at %d", i)
	}
	if sourcePattern.differs(b, 8200) == -1 || ownPattern.differs(b, 8192) == -1 {
		t.Error("another place, or another pattern, looks the same")
	}
	b[1234] ^= 1
	if i := sourcePattern.differs(b, 8192); i != 1232 {
		t.Errorf("the word with the wrong byte is at %d, not 1232", i)
	}
}

func TestCountsFillTheWindowInWholeSteps(t *testing.T) {
	for _, c := range []struct {
		first, step, most int
		seconds           float64
		want              int
	}{
		{100, 1, 0, 0.01, 1000}, {100, 64, 0, 0.01, 1024}, {100, 1, 500, 0.01, 500}, {1, 1, 0, 10, 1}, {0, 32, 0, 10, 32}, {100, 1, 0, 0, 100},
	} {
		e := &entry{subject: subject{first: c.first, step: c.step, most: c.most}}
		if got := e.fit(c.seconds, 100*time.Millisecond); got != c.want {
			t.Errorf("%+v: %d operations", c, got)
		}
	}
}

// fakeEntry has samples of so many GB/s, one for each round.
func fakeEntry(name string, rates ...float64) *entry {
	e := &entry{subject: subject{name: name}, cell: &figures.Cell{}}
	for _, r := range rates {
		e.samples = append(e.samples, figures.Sample{Bytes: uint64(r * 1e9), Seconds: 1, Operations: 1, Value: r})
	}
	return e
}

func TestAimTakesTheBestOfBothSidesOverTheWholeRun(t *testing.T) {
	entries := []*entry{fakeEntry("a", 1, 4), fakeEntry("b", 2, 2), fakeEntry("x", 2, 10), fakeEntry("y", 5, 4)}
	a := aim{name: "n", bound: 0.5, ours: []string{"a", "b"}, theirs: []string{"x", "y"}, figure: rateOf}
	got := a.judge(entries) // a and x, whose medians are 2.5 and 6; the best of each round would be 2 to 5 and 4 to 10
	if got.Measured.Low != 0.4 || got.Measured.High != 0.5 || got.Verdict() != "short" || got.Against != "x / y" || !strings.HasPrefix(got.Detail, "2.50 against 6.00 GB/s, 2 rounds") || !strings.HasSuffix(got.Detail, "; a; x") {
		t.Errorf("%+v", got)
	}
	a.atMost = true // then the least are the best: b and y
	if got := a.judge(entries); got.Measured.Low != 0.4 || got.Measured.High != 0.5 || !strings.HasSuffix(got.Detail, "; b; y") {
		t.Errorf("%+v", got)
	}
	a.reference = []string{"x", "a"}
	if got := a.judge(entries); !strings.Contains(got.Detail, "raw: 2.25") {
		t.Errorf("detail %q", got.Detail)
	}
}

// A round's best of several noisy figures is one that none of them has.
func TestAimDoesNotTakeTheNoiseOfSeveralForSpeed(t *testing.T) {
	entries := []*entry{fakeEntry("a", 2, 2, 2), fakeEntry("x", 1, 4, 2), fakeEntry("y", 4, 2, 1)}
	a := aim{bound: 1, ours: []string{"a"}, theirs: []string{"x", "y"}, figure: rateOf}
	if got := a.judge(entries); got.Measured.Median != 1 {
		t.Errorf("%+v", got)
	}
}

// In a round nobody stands always at the same place, nor always behind the same other one.
func TestTurnsAreSharedOut(t *testing.T) {
	const n = 4
	places, before := map[[2]int]int{}, map[[2]int]int{}
	for round := range 2 * n {
		seen := map[int]bool{}
		for k := range n {
			at := turn(k, round, n)
			seen[at] = true
			places[[2]int{at, k}]++
			if k > 0 {
				before[[2]int{turn(k-1, round, n), at}]++
			}
		}
		if len(seen) != n {
			t.Errorf("round %d has %d of %d subjects", round, len(seen), n)
		}
	}
	for at := range n {
		for k := range n {
			if places[[2]int{at, k}] != 2 {
				t.Errorf("subject %d stands %d times at place %d, want 2", at, places[[2]int{at, k}], k)
			}
		}
		if next := (at + 1) % n; before[[2]int{at, next}] == 0 || before[[2]int{next, at}] == 0 {
			t.Errorf("%d and %d are always in the same order", at, next)
		}
	}
}

func TestSettlingSampleIsNotCounted(t *testing.T) {
	var counts []int
	g := group{name: "g", figure: figures.Rate, settle: true, subjects: []subject{{name: "s", first: 3, measure: func(_ context.Context, _ *bench, n int) (figures.Sample, error) {
		counts = append(counts, n)
		return figures.Sample{Bytes: 1e9, Seconds: 0.01, Operations: uint64(n)}, nil
	}}}}
	r := &runner{bench: &bench{brief: true}, rounds: 2, window: 100 * time.Millisecond, progress: &progress{to: io.Discard}}
	cells := cellsOf(g, r.measure(t.Context(), g, "test"))
	if want := []int{3, 3, 3, 30, 3, 30}; !reflect.DeepEqual(counts, want) || cells[0].Rounds != 2 {
		t.Errorf("counts %v, want %v; %d rounds", counts, want, cells[0].Rounds)
	}
}

func TestAimIsAbsentWithoutTheirsAndShortWithoutOurs(t *testing.T) {
	gone := fakeEntry("x")
	gone.cell.Absent = "x is not installed"
	broken := fakeEntry("b")
	broken.cell.Failed = "some error"
	entries := []*entry{fakeEntry("a", 1), gone, broken}
	absent := (&aim{ours: []string{"a"}, theirs: []string{"x"}, figure: rateOf}).judge(entries)
	if absent.Verdict() != "absent" || absent.Absent != "x is not installed" {
		t.Errorf("%+v", absent)
	}
	short := (&aim{ours: []string{"b"}, theirs: []string{"a"}, figure: rateOf}).judge(entries)
	if short.Verdict() != "short" || short.Failed != "failed: some error" {
		t.Errorf("%+v", short)
	}
	alone := (&aim{bound: 2, atMost: true, ours: []string{"a"}, figure: valueOf, result: valueAlone}).judge(entries)
	if alone.Verdict() != "ok" || alone.Measured.Median != 1 {
		t.Errorf("%+v", alone)
	}
}

// TestEachTargetOfThePlanIsExamined holds the table of issue and README against the code.
func TestEachTargetOfThePlanIsExamined(t *testing.T) {
	want := []string{
		"tcp-read-1m", "tcp-read-1m-direct", "tcp-write-1m", "tcp-write-1m-direct",
		"vs-gnet-1m", "vs-go-net-1m", "vs-grpc-1m", "vs-iperf3-1m", "vs-ucx-put-1m", "vs-libfabric-1m",
		"hptcp-read-64m", "hptcp-write-64m", "hptcp-page-4k", "hptcp-page-120k", "hptcp-page-120k-allocations",
		"read-64b-p50", "read-4k-p50-manual", "read-4k-p50-adaptive", "read-4k-p99-manual", "read-4k-p99-adaptive",
		"small-beside-large", "peers-1000", "register-rounds", "idle-1000-peers", "memory-per-idle-peer",
	}
	for kernel := range kernelChoices { // subjects are named after the kernel
		if got := aimsOf(t, options{kernel: kernel}); !reflect.DeepEqual(got, want) {
			t.Errorf("-kernel %s: targets\n%q, want\n%q", kernel, got, want)
		}
	}
}

// aimsOf are the targets, each of which must find its subjects in its group.
func aimsOf(t *testing.T, o options) (aims []string) {
	t.Helper()
	for _, e := range examinations(o) {
		names := map[string]bool{}
		for _, s := range e.group.subjects {
			if names[s.name] {
				t.Errorf("-kernel %s, %s: two subjects are %q", o.kernel, e.group.name, s.name)
			}
			names[s.name] = true
		}
		for _, a := range e.aims {
			aims = append(aims, a.name)
			for _, name := range slices.Concat(a.ours, a.theirs, a.reference) {
				if !names[name] {
					t.Errorf("-kernel %s: %s names %q, which is not measured with it", o.kernel, a.name, name)
				}
			}
		}
	}
	return aims
}

func TestSharesOfTheTimeAddUp(t *testing.T) {
	list := []examination{{}, {limit: 12 * time.Second}, {}}
	left := 10 * time.Second
	for i := range list {
		left -= share(list[i:], left)
	}
	if left < 0 || left > time.Microsecond {
		t.Errorf("%v are left", left)
	}
	if share(list, -time.Second) <= 0 {
		t.Error("without time there is no limit at all")
	}
}

func TestGroupsHaveNamesOfTheirOwn(t *testing.T) {
	for _, o := range []options{{kernel: "auto"}, {kernel: "auto", full: true}, {kernel: "auto", small: true}} {
		groups := map[string]bool{}
		for _, g := range selected(o, "") {
			if groups[g.name] {
				t.Errorf("two groups are %q", g.name)
			}
			groups[g.name] = true
			subjects := map[string]bool{}
			for _, s := range g.subjects {
				if subjects[s.name] {
					t.Errorf("%s: two subjects are %q", g.name, s.name)
				}
				subjects[s.name] = true
			}
		}
	}
	if n := len(selected(options{kernel: "auto"}, "registr, idle")); n != 3 {
		t.Errorf("%d groups of two words, want 3", n)
	}
	if len(selected(options{kernel: "auto"}, "no such")) != 0 {
		t.Error("groups of a word that none has")
	}
	for _, g := range narrowed(selected(options{kernel: "auto"}, ""), "hptcp") {
		for _, s := range g.subjects {
			if !strings.Contains(s.name, "hptcp") {
				t.Errorf("%s: %q is measured, too", g.name, s.name)
			}
		}
	}
}

func TestSetupsAreRefusedOrOpened(t *testing.T) {
	if _, err := (Setup{Progress: "adaptive", Kernel: "windows"}).config(); err == nil {
		t.Error("an unknown kernel was taken")
	}
	manual := Setup{Transport: "tcp", Progress: "manual", Kernel: "auto"}
	if manual.source().Progress != "busy" || manual.source().Lanes != 1 || !manual.spins() || (Setup{Progress: "event"}).spins() {
		t.Error("nobody would drive a manual source, or more than one lane would")
	}
}

func TestLastOverThirdComparesMedians(t *testing.T) {
	var times []time.Duration
	for i := range 10 {
		times = append(times, time.Duration(100+10*i)*time.Millisecond)
	}
	if got := lastOverThird(times); got < 1.49 || got > 1.51 { // 180 over 120
		t.Errorf("%v", got)
	}
	if lastOverThird(times[:3]) != 0 {
		t.Error("too few rounds have a figure")
	}
}

func TestInterruptedRunKeepsWhatItHas(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	g := group{name: "g", figure: figures.Rate, subjects: []subject{{name: "s", measure: func(context.Context, *bench, int) (figures.Sample, error) {
		if calls++; calls == 3 {
			cancel()
			return figures.Sample{}, context.Canceled
		}
		return figures.Sample{Bytes: 1e9, Seconds: 1, Operations: 1}, nil
	}}, {name: "absent", measure: func(context.Context, *bench, int) (figures.Sample, error) {
		return figures.Sample{}, baselines.Absent("not here")
	}}, {name: "failing", measure: func(context.Context, *bench, int) (figures.Sample, error) {
		return figures.Sample{}, errors.New("two\nlines")
	}}}}
	r := &runner{bench: &bench{}, rounds: 5, window: time.Millisecond, progress: &progress{to: io.Discard}}
	cells := cellsOf(g, r.measure(ctx, g, "test"))
	if c := cells[0]; c.Rounds != 1 || c.Failed != "" || c.Rate.Median != 1 {
		t.Errorf("%+v", *c)
	}
	if cells[1].Absent != "not here" || cells[2].Failed != "two lines" {
		t.Errorf("%+v, %+v", *cells[1], *cells[2])
	}
}

// Command lines that no run can have are refused before anything is built or opened, and what is heard is all that was said.
func TestSenselessCommandLinesAreRefused(t *testing.T) {
	for line, want := range map[string]string{
		"-rounds 0": "-rounds is 0", "-window 0s": "-window is 0s", "-kernel foo": `-kernel is "foo"`, "check -kernel foo": `-kernel is "foo"`,
		"check -rounds 3": "-rounds does not go with check", "-window 1s check": "-window does not go with check", "check -full": "-full does not", "check -subject tcp": "-subject does not",
		"check -only tcp-read-1m,nosuch": `"nosuch": no target has that in its name; there are tcp-read-1m, `, "-only bulk,nosuch": `"nosuch": no workload and no group`,
		"-only memcpy": "orbitbench list names the workloads", "-only bulk -subject nosuch": `-subject "nosuch": no subject`,
		"foo": `unknown command "foo"; there are check, list`, "check foo": `unknown command "check foo"`, "list foo": `unknown command "list foo"`,
		"report": "orbitbench report FILE.jsonl", "report a b": "orbitbench report FILE.jsonl", "-nosuch": "not defined: -nosuch", "check -rounds x": "-rounds",
		"-only idle -peers /nosuch": "-peers /nosuch is no program built from perf/peers", "-only idle -out .": "-out . names a folder",
		"-only idle -out /nonexistent/x": "/nonexistent is no folder; make it first", "check -only idle -out harness_test.go/x/y": "harness_test.go/x is no folder",
	} {
		f, words, err := parse(strings.Fields(line), io.Discard)
		if err == nil {
			err = f.command(words)
		}
		var told strings.Builder
		if status(err, &told) != 2 || !strings.Contains(told.String(), want) {
			t.Errorf("%s: status %d, %q; want %q", line, status(err, io.Discard), told.String(), want)
		}
	}
}

func TestFlagsStandBeforeAndBehindTheCommand(t *testing.T) {
	for _, line := range []string{"check -only peers -out x", "-only peers -out x check", "-only peers check -out x"} {
		f, words, err := parse(strings.Fields(line), io.Discard)
		if err != nil || f.only != "peers" || f.out != "x" || !slices.Equal(words, []string{"check"}) {
			t.Errorf("%s: words %q, only %q, out %q, %v", line, words, f.only, f.out, err)
		}
		if err := f.sensible(true); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	var told strings.Builder
	_, _, err := parse([]string{"-h"}, &told)
	if status(err, io.Discard) != 0 || !strings.Contains(told.String(), "Usage: orbitbench") || !strings.Contains(told.String(), "-window") {
		t.Errorf("-h: %v, %q", err, told.String())
	}
}

func TestExitStatusTellsShortFromBroken(t *testing.T) {
	var told strings.Builder
	if got := status(errShort, &told); got != 1 || told.String() != "" {
		t.Errorf("a short target, which has its line: status %d, %q", got, told.String())
	}
	if got := status(errInterrupted, &told); got != 1 || !strings.Contains(told.String(), "interrupted") {
		t.Errorf("an interrupted check, which says nothing of the other targets: status %d, %q", got, told.String())
	}
	if got := status(nil, io.Discard); got != 0 {
		t.Errorf("status %d", got)
	}
}

func TestResultsAreNeverWrittenOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run")
	for _, name := range []string{path, path + ".jsonl"} { // one file, by both its names
		if err := os.RemoveAll(path + ".jsonl"); err != nil {
			t.Fatal(err)
		}
		o, err := newOutput(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := newOutput(path); status(err, io.Discard) != 2 || !strings.Contains(err.Error(), "run.jsonl is there, and results are never written over; take another name") {
			t.Errorf("a second run into the file: %v", err)
		}
		if err := o.abandon(); err != nil {
			t.Error(err)
		}
		if o, err = newOutput(path); err != nil { // what never began leaves nothing
			t.Fatal(err)
		}
		o.file.Close()
	}
}

// Counting makes each call slower, so it must not touch what is compared.
func TestSystemCallsAreCountedInARoundOfTheirOwn(t *testing.T) {
	var counting []bool
	b := &bench{}
	g := group{name: "g", figure: figures.Rate, subjects: []subject{{name: "s", measure: func(context.Context, *bench, int) (figures.Sample, error) {
		counting = append(counting, b.counting)
		s := figures.Sample{Bytes: 1e9, Seconds: 1, Operations: 2}
		if b.counting {
			s.Seconds, s.Usage = 2, figures.Usage{Calls: 10, CallsBy: "somebody"}
		}
		return s, nil
	}}}}
	r := &runner{bench: b, rounds: 2, window: time.Millisecond, progress: &progress{to: io.Discard}}
	c := cellsOf(g, r.measure(t.Context(), g, "test"))[0]
	if want := []bool{false, false, false, true}; !reflect.DeepEqual(counting, want) || b.counting {
		t.Errorf("counting %v, want %v; %v afterwards", counting, want, b.counting)
	}
	if c.CallsPerOp != 5 || c.CallsBy != "somebody" || c.Rounds != 2 || c.Rate.Low != 1 {
		t.Errorf("%v calls, %d rounds, at least %v GB/s", c.CallsPerOp, c.Rounds, c.Rate.Low)
	}
	if b.brief = true; len(cellsOf(g, r.measure(t.Context(), g, "test"))) != 1 || counting[len(counting)-1] {
		t.Error("a brief run counted")
	}
}

func TestSubjectIsHeldAgainstTheOneItNames(t *testing.T) {
	entries := []*entry{fakeEntry("base", 8, 8), fakeEntry("a", 4, 4), fakeEntry("raw", 2, 2), fakeEntry("raw, loaded", 1, 1)}
	entries[0].baseline, entries[2].against, entries[3].against = true, "raw", "raw"
	cells := cellsOf(group{figure: figures.Rate}, entries)
	if cells[1].Ratio == nil || cells[1].Ratio.Median != 0.5 || cells[2].Ratio != nil {
		t.Errorf("a has %v, raw has %v", cells[1].Ratio, cells[2].Ratio)
	}
	if c := cells[3]; c.Ratio == nil || c.Ratio.Median != 0.5 || c.Against != "raw" {
		t.Errorf("%v against %q", c.Ratio, c.Against)
	}
}

// On a terminal there is one line that is written over; in a file there are few, each whole.
func TestProgressIsOneLineOnATerminalAndFewElsewhere(t *testing.T) {
	var terminal, file strings.Builder
	for to, p := range map[*strings.Builder]*progress{&terminal: {terminal: true}, &file: {}} {
		p.to, p.start = to, time.Now()
		for _, name := range []string{"a", "b"} {
			p.show("group 1 of 2: %s %s", name, strings.Repeat("x", 200))
		}
		p.clear()
	}
	if text := terminal.String(); strings.Contains(text, "\n") || strings.Count(text, "\r\033[K") != 3 || !strings.HasSuffix(text, "\r\033[K") || len(text) > 300 {
		t.Errorf("on a terminal: %q", text)
	}
	if text := file.String(); strings.Count(text, "\n") != 1 || strings.Contains(text, "\r") || !strings.Contains(text, "group 1 of 2: a") {
		t.Errorf("elsewhere: %q", text)
	}
}

// Every dimension of the plan has values in a full run.
func TestAFullRunCrossesEveryDimension(t *testing.T) {
	seen := map[string]map[string]bool{}
	note := func(dimension string, value any) {
		if seen[dimension] == nil {
			seen[dimension] = map[string]bool{}
		}
		seen[dimension][fmt.Sprint(value)] = true
	}
	for _, g := range selected(options{kernel: "auto", full: true}, "") {
		note("workload", g.workload)
		for _, s := range g.subjects {
			a := s.axes
			note(g.workload+" size", a.Size)
			note("peers", a.Peers)
			note("raw streams", a.Streams)
			if a.Transport != "" {
				for dimension, value := range map[string]any{"operation": a.Operation, "batch": a.Batch, "progress": a.Transport + " " + a.Progress, "kernel": a.Transport + " " + a.Kernel, "streams": a.Streams,
					"pages": fmt.Sprint(a.Operation, " ", a.Size, " × ", a.Batch), "placement": a.Placement} {
					note(dimension, value)
				}
			}
		}
	}
	for dimension, values := range map[string]string{
		"operation": "READ,WRITE", "bulk size": "64,4096,65536,1048576,8388608,67108864", "batch": "1,8,64,1024", "streams": "1,2,4", "raw streams": "1,2,4", "peers": "1,10,100,1000", "placement": "staged,direct",
		"progress": "tcp adaptive,tcp event,tcp busy,tcp manual,hptcp adaptive,hptcp event,hptcp busy,hptcp manual", "kernel": "tcp io_uring,tcp epoll,hptcp io_uring,hptcp epoll",
		"pages": "READ 4096 × 1024,READ 4096 × 120000,WRITE 4096 × 1024,WRITE 4096 × 120000", "workload": "mixed,registrations,idle,models,tools,latency",
	} {
		for value := range strings.SplitSeq(values, ",") {
			if !seen[dimension][value] {
				t.Errorf("%s %s is not measured", dimension, value)
			}
		}
	}
}

// A stall between samples is in no figure, so it has a line of its own.
func TestWhatTookTooLongIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told strings.Builder
		p := &progress{to: &told, start: time.Now()}
		ended := p.watch("closing %s", "it")
		time.Sleep(slowAfter - time.Millisecond)
		ended()
		if told.String() != "" {
			t.Errorf("of what took no longer than others: %q", told.String())
		}
		time.Sleep(time.Millisecond)
		if ended(); told.String() != " 20 s  this took 20 s: closing it\n" {
			t.Errorf("%q", told.String())
		}
	})
}
