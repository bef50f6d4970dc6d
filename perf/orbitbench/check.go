package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
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

// check measures the targets, and tells a line each and one about all.
func (f *flags) check(ctx context.Context, b *bench, p *progress, o *output, told io.Writer) error {
	p.start = time.Now()
	c := &checking{r: runner{bench: b, progress: p}, out: o, told: told}
	c.tally = tally{cpus: runtime.NumCPU(), before: o.run.Machine.Load, verdicts: map[string]int{}}
	list := f.examinations()
	for i := range list {
		c.tally.all += len(list[i].aims)
	}
	var err error
	for i := range list {
		if err = c.examine(ctx, list[i:]); err != nil || ctx.Err() != nil {
			break
		}
	}
	p.clear()
	c.tally.took, c.tally.after = time.Since(p.start), load()
	fmt.Fprintln(told, c.tally.line())
	if err == nil && c.tally.verdicts["short"] > 0 {
		return errShort
	}
	return err
}

// checking is a check under way.
type checking struct {
	r     runner
	out   *output
	told  io.Writer
	tally tally
}

// examine settles the first of the examinations that are left.
func (c *checking) examine(ctx context.Context, list []examination) error {
	e, r := &list[0], &c.r
	left := checkTime - time.Since(r.progress.start)
	r.rounds, r.window, r.limit, r.least = e.rounds, e.window, share(list, left), 3
	if left < checkTime/10 {
		r.least = 1 // an overloaded machine: better few rounds than no end
	}
	entries := r.measure(ctx, e.group, "check")
	r.progress.clear()
	if err := c.out.cells(cellsOf(e.group, entries)); err != nil || ctx.Err() != nil {
		return err
	}
	for i := range e.aims {
		t := e.judge(&e.aims[i], entries)
		c.tally.verdicts[t.Verdict()]++
		fmt.Fprintln(c.told, t.Line())
		if err := c.out.target(t); err != nil {
			return err
		}
	}
	return r.close(e.group)
}

// examinations are those that settle a target that the user wants, with such targets alone.
func (f *flags) examinations() (list []examination) {
	for _, e := range examinations(f.options()) {
		e.aims = slices.DeleteFunc(e.aims, func(a aim) bool { return f.only != "" && !matchesAny(a.name, f.only) })
		if len(e.aims) > 0 {
			list = append(list, e)
		}
	}
	return list
}

// tally is what a check says of all its targets.
type tally struct {
	all           int
	verdicts      map[string]int
	took          time.Duration
	cpus          int
	before, after string // load averages
}

// line says how many targets are ok, whether the machine was fit for it, and where to read on.
func (t *tally) line() string {
	text := fmt.Sprintf("%d of %d targets ok", t.verdicts["ok"], t.all)
	for _, verdict := range []string{"short", "absent"} {
		if n := t.verdicts[verdict]; n > 0 {
			text += fmt.Sprintf(", %d %s", n, verdict)
		}
	}
	if left := t.all - t.verdicts["ok"] - t.verdicts["short"] - t.verdicts["absent"]; left > 0 {
		text += fmt.Sprintf(", %d not measured", left)
	}
	text += fmt.Sprintf(", in %.0f s; load %s at the start, %s at the end, on %d CPUs", t.took.Seconds(), lastMinute(t.before), lastMinute(t.after), t.cpus)
	if busy(t.before, t.cpus) {
		text += fmt.Sprintf(" (above %s at the start: busy, which makes figures like these worthless; run it again when all else has been quiet for a minute)", figures.Number(busyAbove(t.cpus)))
	}
	return text + "; why some are known to be short: perf/results/, the newest file …-targets.md"
}

// busyAbove is the load above which a machine counts as busy: half of its processors. Load is how many threads wanted one, on
// average over the last minute or so, and the two sides of a ratio want one each. Above half, others have had on two processors
// more than half of what both sides want; on more there is room for both, but caches, memory and clock are clearly shared.
// What a quiet machine begins with is below: go run that compiled for 20 s on n processors leaves n·(1-e^(-20/60)) = 0.28·n.
func busyAbove(cpus int) float64 { return float64(cpus) / 2 }

func busy(averages string, cpus int) bool {
	v, err := strconv.ParseFloat(lastMinute(averages), 64)
	return err == nil && v > busyAbove(cpus)
}

// lastMinute is the first of three load averages.
func lastMinute(averages string) string {
	first, _, _ := strings.Cut(averages, " ")
	return cmp.Or(first, "unknown")
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

func matchesAny(name, only string) bool {
	for word := range strings.SplitSeq(only, ",") {
		if strings.Contains(name, strings.TrimSpace(word)) {
			return true
		}
	}
	return false
}

// judge makes the verdict on one of the examination's targets.
func (e *examination) judge(a *aim, entries []*entry) figures.Target {
	t := a.judge(entries)
	t.Planned = e.rounds
	return t
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
	t.Rounds = len(measured)
	t.Detail = a.detail(left, right) + chosen(ours, mine) + chosen(theirs, yours)
	if len(a.reference) == 2 {
		t.Detail += a.referenceText(entries)
	}
	t.Detail = strings.TrimPrefix(t.Detail, "; ")
	return t
}

// detail is both sides' medians and the number of rounds; of a single one the line says that before (Target.SpreadText).
func (a *aim) detail(left, right []float64) string {
	var parts []string
	if len(right) > 0 {
		parts = append(parts, strings.TrimRight(fmt.Sprintf("%s against %s %s", figures.Number(figures.Median(left)), figures.Number(figures.Median(right)), a.figure.unit), " "))
	}
	if len(left) > 1 {
		parts = append(parts, fmt.Sprintf("%d rounds", len(left)))
	}
	return strings.Join(parts, ", ")
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
