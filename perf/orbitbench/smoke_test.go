package main

import (
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/orbitte/orbitte/perf/figures"
)

// Every workload runs, small, in every test run: what fails is a program that does not work, never a figure.
func TestEveryWorkloadRunsSmall(t *testing.T) {
	b, err := newBench("auto")
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	out, err := newOutput(filepath.Join(t.TempDir(), "run.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	out.run.Machine = thisMachine()
	out.note(b, nil)
	seen := map[string]int{}
	r := &runner{bench: b, rounds: 1, window: time.Millisecond, progress: &progress{to: io.Discard, start: time.Now()}, emit: func(group string, cells []*figures.Cell) error {
		for _, c := range cells {
			seen[c.Workload]++
			judgeSmall(t, c)
		}
		return out.cells(cells)
	}}
	if err := r.run(t.Context(), selected(options{kernel: "auto", small: true}, "")); err != nil {
		t.Fatal(err)
	}
	for _, w := range workloads {
		if seen[w.name] == 0 && w.name != "tools" { // those are not everywhere
			t.Errorf("workload %s has no cell", w.name)
		}
	}
	if err := out.finish(b, endOf(nil)); err != nil {
		t.Fatal(err)
	}
	if err := remake(out.base + ".jsonl"); err != nil {
		t.Error(err)
	}
}

func judgeSmall(t *testing.T, c *figures.Cell) {
	t.Helper()
	name := c.Group + ": " + c.Subject
	switch {
	case c.Failed != "" || c.Absent != "":
		t.Errorf("%s: failed %q, absent %q", name, c.Failed, c.Absent)
	case c.Rounds != 1 || c.Ops.Median <= 0:
		t.Errorf("%s: %d rounds, %v operations a second", name, c.Rounds, c.Ops.Median)
	case c.Unit == "" && c.Workload != "registrations" && c.Rate.Median <= 0:
		t.Errorf("%s: no rate", name)
	case strings.HasPrefix(c.Subject, "orbitte") && c.Unit == "" && (c.Latency == nil || c.AllocsPerOp < 0 || c.CrossingsPerOp <= 0):
		t.Errorf("%s: latency %v, %v allocations, %v crossings", name, c.Latency, c.AllocsPerOp, c.CrossingsPerOp)
	case c.Axes.Transport != "" && c.Axes.Batch > 0 && c.Workload == "bulk" && c.TransferMicros <= 0:
		t.Errorf("%s: no phases", name)
	}
}

func TestWrongBytesAreFound(t *testing.T) {
	b, err := newBench("auto")
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	p, err := b.pair(options{kernel: "auto"}.staged())
	if err != nil {
		t.Fatal(err)
	}
	p.remote += 8 // as if every answer came from another place
	if err := b.verify(p); err == nil || !strings.Contains(err.Error(), "is wrong") {
		t.Errorf("bytes of another place: %v", err)
	}
}
