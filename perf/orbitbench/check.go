package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/orbitte/orbitte/perf/figures"
)

// aim is one target: the best of some subjects against the best of others, in the same rounds.
type aim struct {
	name    string
	bound   float64
	atMost  bool
	ours    []string // subjects
	theirs  []string
	against string // empty: theirs, by name
	figure  func(*figures.Sample) float64
	unit    string
	// result, if not nil, makes the measured figure of ours and theirs of one round; nil: their ratio.
	result func(ours, theirs *figures.Sample) float64
}

// examination is a group with the targets that it settles.
type examination struct {
	group  group
	rounds int
	window time.Duration
	aims   []aim
}

func rateOf(s *figures.Sample) float64        { return s.Rate() }
func perSecond(s *figures.Sample) float64     { return s.PerSecond() }
func p50(s *figures.Sample) float64           { return figures.P50.Of(s) }
func p99(s *figures.Sample) float64           { return float64(s.Latency.Quantile(0.99)) / 1e3 }
func valueOf(s *figures.Sample) float64       { return s.Value }
func valueAlone(o, _ *figures.Sample) float64 { return o.Value }
func secondsEach(s *figures.Sample) float64   { return s.Seconds / float64(s.Operations) }

// check measures the targets and prints a line each.
func (f *flags) check(ctx context.Context, b *bench, p *progress, o *output) error {
	short := false
	p.start = time.Now()
	for _, e := range examinations(options{kernel: f.kernel}) {
		if !e.wanted(f.only) {
			continue
		}
		r := &runner{bench: b, rounds: e.rounds, window: e.window, progress: p}
		entries := r.measure(ctx, e.group, "check")
		if ctx.Err() != nil {
			return nil
		}
		p.clear()
		for _, a := range e.aims {
			if f.only != "" && !matchesAny(a.name, f.only) {
				continue
			}
			t := a.judge(entries)
			fmt.Println(t.Line())
			short = short || t.Verdict() == "short"
			if err := o.target(t); err != nil {
				return err
			}
		}
		if err := o.cells(cellsOf(e.group, entries)); err != nil {
			return err
		}
		if err := b.release(func(*pair) bool { return true }); err != nil {
			return err
		}
		if err := b.disperse(); err != nil {
			return err
		}
	}
	p.clear()
	fmt.Printf("measured in %.0f s\n", time.Since(p.start).Seconds())
	if short {
		return errShort
	}
	return nil
}

func (e *examination) wanted(only string) bool {
	for _, a := range e.aims {
		if only == "" || matchesAny(a.name, only) {
			return true
		}
	}
	return false
}

func matchesAny(name, only string) bool {
	for word := range strings.SplitSeq(only, ",") {
		if strings.Contains(name, strings.TrimSpace(word)) {
			return true
		}
	}
	return false
}

// judge makes the verdict of what was measured.
func (a *aim) judge(entries []*entry) figures.Target {
	t := figures.Target{Name: a.name, Against: a.against, Unit: a.unit, Bound: a.bound, AtMost: a.atMost}
	if t.Against == "" {
		t.Against = strings.Join(a.theirs, " / ")
	}
	ours, why := pick(entries, a.ours)
	if len(ours) == 0 {
		t.Failed = why // the engine's own: nothing excuses it
		return t
	}
	theirs, why := pick(entries, a.theirs)
	if len(theirs) == 0 && len(a.theirs) > 0 {
		t.Absent = why
		return t
	}
	var measured, left, right []float64
	for round := range ours[0].samples {
		mine, yours := best(ours, round, a.figure, a.atMost), best(theirs, round, a.figure, a.atMost)
		if mine == nil || yours == nil && len(theirs) > 0 {
			continue
		}
		left = append(left, a.figure(mine))
		if yours != nil {
			right = append(right, a.figure(yours))
		}
		switch {
		case a.result != nil:
			measured = append(measured, a.result(mine, yours))
		default:
			measured = append(measured, a.figure(mine)/a.figure(yours))
		}
	}
	t.Measured = figures.SpreadOf(measured)
	t.Detail = fmt.Sprintf("%d rounds", len(measured))
	if len(right) > 0 && a.result == nil {
		t.Detail = fmt.Sprintf("%s against %s, %d rounds", figures.Number(figures.Median(left)), figures.Number(figures.Median(right)), len(measured))
	}
	return t
}

// pick finds the entries that have samples, and why others have none.
func pick(entries []*entry, names []string) (found []*entry, why string) {
	why = "not measured"
	for _, e := range entries {
		for _, name := range names {
			switch {
			case e.name != name:
			case len(e.samples) > 0:
				found = append(found, e)
			case e.cell.Absent != "":
				why = e.cell.Absent
			default:
				why = "failed: " + e.cell.Failed
			}
		}
	}
	return found, why
}

// best is the best sample of a round.
func best(entries []*entry, round int, figure func(*figures.Sample) float64, least bool) *figures.Sample {
	var found *figures.Sample
	for _, e := range entries {
		if round >= len(e.samples) {
			continue
		}
		s := &e.samples[round]
		if found == nil || least && figure(s) < figure(found) || !least && figure(s) > figure(found) {
			found = s
		}
	}
	return found
}
