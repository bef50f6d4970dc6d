package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/orbitte/orbitte/perf/figures"
)

// aim is one target: the best of some subjects against the best of others, round by round.
type aim struct {
	name    string
	bound   float64
	atMost  bool
	ours    []string // subjects
	theirs  []string
	against string  // empty: theirs, by name
	figure  measure // of each side
	unit    string
	// result, if not nil, makes the measured figure of ours and theirs of one round; nil: their ratio.
	result func(ours, theirs *figures.Sample) float64
	// reference, if not empty, are two subjects whose ratio says what the machine itself does, for the detail.
	reference []string
}

// examination is a group with the targets that it settles.
type examination struct {
	group  group
	rounds int
	window time.Duration
	limit  time.Duration // its part of the time that there is; 0: 4 s
	aims   []aim
}

// measure reads one side's figure from a sample, and says in which unit.
type measure struct {
	of   func(*figures.Sample) float64
	unit string
}

var (
	rateOf    = measure{(*figures.Sample).Rate, "GB/s"}
	perSecond = measure{(*figures.Sample).PerSecond, "a second"}
	p50       = measure{figures.P50.Of, "µs"}
	p99       = measure{func(s *figures.Sample) float64 { return float64(s.Latency.Quantile(0.99)) / 1e3 }, "µs"}
	valueOf   = measure{func(s *figures.Sample) float64 { return s.Value }, ""}
	// processorEach is the processor time of one operation, both processes.
	processorEach = measure{func(s *figures.Sample) float64 { return (s.Usage.User + s.Usage.System) / float64(s.Operations) * 1e9 }, "ns"}
)

func valueAlone(o, _ *figures.Sample) float64 { return o.Value }

// check measures the targets and prints a line each.
func (f *flags) check(ctx context.Context, b *bench, p *progress, o *output) error {
	short := false
	p.start = time.Now()
	list := f.examinations()
	for i, e := range list {
		left := checkTime - time.Since(p.start)
		r := &runner{bench: b, rounds: e.rounds, window: e.window, progress: p, limit: share(list[i:], left), least: 3}
		if left < checkTime/10 {
			r.least = 1 // an overloaded machine: better few rounds than no end
		}
		entries := r.measure(ctx, e.group, "check")
		p.clear()
		if err := o.cells(cellsOf(e.group, entries)); err != nil || ctx.Err() != nil {
			return err
		}
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
		if err := r.close(e.group); err != nil {
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

// examinations are those that settle a target that the user wants.
func (f *flags) examinations() []examination {
	return slices.DeleteFunc(examinations(f.options()), func(e examination) bool { return !e.wanted(f.only) })
}

// checkTime is what all examinations may take together; the last round of each may go beyond its share.
const checkTime = 50 * time.Second

// share is the first one's part of the time that is left.
func share(list []examination, left time.Duration) time.Duration {
	sum := time.Duration(0)
	for _, e := range list {
		sum += e.part()
	}
	return max(time.Duration(float64(left)*float64(list[0].part())/float64(sum)), time.Millisecond)
}

func (e *examination) part() time.Duration {
	if e.limit == 0 {
		return 4 * time.Second
	}
	return e.limit
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
		t.Absent = why // nothing to compare with is neither ok nor short
		return t
	}
	mine, yours := a.best(ours), a.best(theirs)
	var measured, left, right []float64
	for round := range mine.samples {
		o, y := &mine.samples[round], (*figures.Sample)(nil)
		if yours != nil {
			if round >= len(yours.samples) {
				break
			}
			y = &yours.samples[round]
			right = append(right, a.figure.of(y))
		}
		left = append(left, a.figure.of(o))
		if a.result != nil {
			measured = append(measured, a.result(o, y))
		} else {
			measured = append(measured, a.figure.of(o)/a.figure.of(y))
		}
	}
	t.Measured = figures.SpreadOf(measured)
	t.Detail = fmt.Sprintf("%d rounds", len(measured))
	if len(measured) == 1 {
		t.Detail = "1 round"
	}
	if len(right) > 0 {
		t.Detail = strings.TrimRight(fmt.Sprintf("%s against %s %s", figures.Number(figures.Median(left)), figures.Number(figures.Median(right)), a.figure.unit), " ") + ", " + t.Detail
	}
	t.Detail += chosen(ours, mine) + chosen(theirs, yours)
	if len(a.reference) == 2 {
		t.Detail += a.referenceText(entries)
	}
	return t
}

func (a *aim) referenceText(entries []*entry) string {
	one, _ := pick(entries, a.reference[:1])
	two, _ := pick(entries, a.reference[1:])
	var ratios []float64
	if len(one) > 0 && len(two) > 0 {
		for i := range min(len(one[0].samples), len(two[0].samples)) {
			ratios = append(ratios, a.figure.of(&one[0].samples[i])/a.figure.of(&two[0].samples[i]))
		}
	}
	return "; the same without an engine, raw: " + figures.Number(figures.Median(ratios))
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

// best is the entry that is best over the whole run (figures.Best); nil when there is none.
func (a *aim) best(entries []*entry) *entry {
	var lists [][]figures.Sample
	for _, e := range entries {
		lists = append(lists, e.samples)
	}
	if at := figures.Best(a.figure.of, a.atMost, lists); at >= 0 {
		return entries[at]
	}
	if len(entries) > 0 { // none has the figure: one whose rounds show that
		return entries[0]
	}
	return nil
}

// chosen names the one that was taken where there was a choice.
func chosen(entries []*entry, one *entry) string {
	if len(entries) < 2 {
		return ""
	}
	return "; " + one.name
}
