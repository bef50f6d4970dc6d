package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/orbitte/orbitte/perf/figures"
)

// runner measures groups, one after the other, their subjects interleaved.
type runner struct {
	bench    *bench
	rounds   int
	window   time.Duration // what a sample should take
	progress *progress
	emit     func(group string, cells []*figures.Cell) error
	// limit ends the rounds of a group early, but not before the least number of them; 0: none.
	limit time.Duration
	least int
}

// entry is a subject with its samples.
type entry struct {
	subject
	cell    *figures.Cell
	n       int
	samples []figures.Sample
	gone    bool
	counted *figures.Sample // with system calls; nil where they were not counted
}

// run measures until all groups are done or the context ends; what was measured until then is emitted, too.
func (r *runner) run(ctx context.Context, groups []group) error {
	for i, g := range groups {
		if ctx.Err() != nil {
			return nil
		}
		entries := r.measure(ctx, g, fmt.Sprintf("group %d of %d", i+1, len(groups)))
		if err := r.emit(g.name, cellsOf(g, entries)); err != nil {
			return err
		}
		if err := r.close(g); err != nil {
			return err
		}
	}
	return nil
}

// close ends the engines of a group.
func (r *runner) close(g group) error {
	r.progress.show("closing the engines of %s", g.name)
	defer r.progress.watch("closing the engines of %s", g.name)()
	err := r.bench.release(func(*pair) bool { return true })
	return distinct(err, r.bench.disperse())
}

func (r *runner) measure(ctx context.Context, g group, where string) []*entry {
	entries := make([]*entry, len(g.subjects))
	for i, s := range g.subjects {
		entries[i] = &entry{subject: s, cell: &figures.Cell{Workload: g.workload, Group: g.name, Subject: s.name, Axes: s.axes, Baseline: s.baseline, Unit: s.unit, Note: s.note}}
		entries[i].n, _, _ = s.counts()
	}
	r.bench.counting = g.cold && !r.bench.brief // such a group has no round to spare
	defer func() { r.bench.counting = false }()
	start := time.Now()
	for round := range r.rounds + 1 {
		if round == 0 && g.cold {
			continue
		}
		if r.limit > 0 && round > r.least && time.Since(start) > r.limit {
			break
		}
		for k := range entries {
			e := entries[turn(k, round, len(entries))]
			if e.gone || ctx.Err() != nil {
				continue
			}
			r.progress.show("%s, %s: %s: %s", where, r.at(round), g.name, e.name)
			r.sample(ctx, g, e, round)
		}
	}
	r.count(ctx, g, entries, where)
	return entries
}

// count counts the system calls of each subject in a round of its own that has no part in any other figure: each call
// takes about half as long again while somebody counts, so those who make many would be measured slower.
func (r *runner) count(ctx context.Context, g group, entries []*entry, where string) {
	if r.bench.brief || g.cold {
		return
	}
	r.bench.counting = true
	for _, e := range entries {
		if e.gone || ctx.Err() != nil {
			continue
		}
		r.progress.show("%s, counting calls: %s: %s", where, g.name, e.name)
		if s, err := e.once(ctx, r.bench, g.settle); err == nil {
			e.counted = &s
		}
	}
}

// turn is who is the k-th of a round: each round begins with another one, and every second one goes backwards, so that
// nobody is always first, nor always behind the same other one.
func turn(k, round, n int) int {
	at := (k + round/2) % n
	if round%2 == 1 {
		at = n - 1 - at
	}
	return at
}

// at names a round for who waits; the one that warms up is none of those that were asked for.
func (r *runner) at(round int) string {
	if round == 0 {
		return "warming up"
	}
	return fmt.Sprintf("round %d of %d", round, r.rounds)
}

// sample makes one; round 0 warms up and says how many operations fill the window.
func (r *runner) sample(ctx context.Context, g group, e *entry, round int) {
	ended := r.progress.watch("%s, %s: %s", g.name, r.at(round), e.name)
	s, err := e.once(ctx, r.bench, g.settle)
	ended()
	switch {
	case err != nil && ctx.Err() != nil: // interrupted in the middle: this sample does not count
	case err != nil && isAbsent(err):
		e.gone, e.cell.Absent = true, err.Error()
	case err != nil:
		e.gone, e.cell.Failed = true, oneLine(err.Error())
	case round > 0:
		e.samples = append(e.samples, s)
	case !g.whole:
		e.n = e.fit(s.Seconds, r.window)
	}
}

// once measures, and closes what must not stay open.
func (e *entry) once(ctx context.Context, b *bench, settle bool) (figures.Sample, error) {
	s, err := e.settled(ctx, b, settle)
	if e.alone {
		if closed := b.release(func(p *pair) bool { return p.setup.spins() }); err == nil {
			err = closed
		}
	}
	return s, err
}

// settled measures behind a part that does not count, so that caches, sockets and threads are those of this subject.
func (e *entry) settled(ctx context.Context, b *bench, settle bool) (figures.Sample, error) {
	if n, _, _ := e.counts(); settle && e.stretch == 0 { // a program of others warms itself up
		if s, err := e.measure(ctx, b, n); err != nil {
			return s, err
		}
	}
	return e.measure(ctx, b, e.n)
}

// fit is how many operations take a window, when n took so many seconds.
func (e *entry) fit(seconds float64, window time.Duration) int {
	first, step, most := e.counts()
	n := first
	if seconds > 0 {
		n = int(min(float64(first)*float64(max(e.stretch, 1))*window.Seconds()/seconds, float64(most)))
	}
	return max((n+step-1)/step, 1) * step
}

// cellsOf merges the samples and compares them with the baselines of their rounds.
func cellsOf(g group, entries []*entry) []*figures.Cell {
	var names []string
	var baselines [][]figures.Sample
	for _, e := range entries {
		if e.baseline && len(e.samples) > 0 {
			names, baselines = append(names, e.name), append(baselines, e.samples)
		}
	}
	var cells []*figures.Cell
	for _, e := range entries {
		e.cell.Fill(e.samples)
		if e.counted != nil {
			e.cell.FillCalls(e.counted)
		}
		switch other := find(entries, e.against); {
		case len(e.samples) == 0 || e.baseline || e.against == e.name:
		case other != nil:
			e.cell.Against = other.name
			e.cell.Compare(g.figure, e.samples, [][]figures.Sample{other.samples})
		case e.against == "" && len(baselines) > 0:
			e.cell.Against = strings.Join(names, " / ")
			e.cell.Compare(g.figure, e.samples, baselines)
		}
		cells = append(cells, e.cell)
	}
	return cells
}

func find(entries []*entry, name string) *entry {
	for _, e := range entries {
		if e.name == name {
			return e
		}
	}
	return nil
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
