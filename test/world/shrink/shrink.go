package shrink

import (
	"errors"
	"fmt"

	"github.com/orbitte/orbitte/test/faults"
)

// runsDefault is how many candidates are tried at most: a few thousand runs of the world take about a minute.
const runsDefault = 4000

// ErrPasses says that the script does not fail at all, so that there is nothing to shrink.
var ErrPasses = errors.New("the script does not fail: nothing to shrink")

// Options bound a reduction and let somebody watch it.
type Options struct {
	// Runs is how many candidates are tried at most, the script itself included; 0: 4,000.
	Runs int
	// Progress is told about each smaller script; nil: nobody.
	Progress func(string)
}

// Result is the smallest failing script that was found.
type Result struct {
	Script faults.Script
	Runs   int
	// Minimal is true exactly when no single line can be removed; otherwise the runs did not suffice.
	Minimal bool
}

// Shrink reduces a script for which fails is true. The answer depends on the script and on fails alone.
func Shrink(s faults.Script, fails func(faults.Script) bool, o Options) (Result, error) {
	if o.Runs <= 0 {
		o.Runs = runsDefault
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	j := &job{fails: fails, options: o, passed: map[string]bool{}}
	if !j.try(s.Clone()) {
		return Result{}, ErrPasses
	}
	for !j.spent() {
		before := j.text
		for _, reduce := range [...]func(*job){(*job).lines, (*job).objects, (*job).engines, (*job).conditions, (*job).requests, (*job).numbers, (*job).turns} {
			reduce(j)
		}
		if j.text == before {
			return Result{j.best, j.runs, !j.spent()}, nil
		}
	}
	return Result{j.best, j.runs, false}, nil
}

// job is one reduction under way.
type job struct {
	fails   func(faults.Script) bool
	options Options
	best    faults.Script // the smallest that fails
	text    string        // of best
	passed  map[string]bool
	runs    int
}

func (j *job) spent() bool { return j.runs >= j.options.Runs }

// try makes the candidate the best one if it fails. What has passed before is not run again.
func (j *job) try(candidate faults.Script) bool {
	text := candidate.String()
	if text == j.text || j.passed[text] || j.spent() {
		return false
	}
	j.runs++
	if !j.fails(candidate) {
		j.passed[text] = true
		return false
	}
	if len(candidate.Lines) != len(j.best.Lines) || j.text == "" {
		j.options.Progress(fmt.Sprintf("run %d: %d lines, %d bytes of text", j.runs, len(candidate.Lines), len(text)))
	}
	j.best, j.text = candidate, text
	return true
}

// lines removes runs of lines, from the end, since what follows the failure matters least: long runs first, single
// lines last. A round in which no single line goes proves that the script is minimal.
func (j *job) lines() {
	for size := len(j.best.Lines); size >= 1; size /= 2 {
		for end := len(j.best.Lines); end > 0; end -= size {
			begin := max(end-size, 0)
			j.try(without(j.best, func(i int, _ faults.Action) bool { return i >= begin && i < end }))
		}
	}
}

// without is the script without the lines that leave says go.
func without(s faults.Script, goes func(i int, a faults.Action) bool) faults.Script {
	kept := s
	kept.Lines = nil
	for i, line := range s.Lines {
		if !goes(i, line.Action) {
			kept.Lines = append(kept.Lines, line)
		}
	}
	return kept
}

// named are the parameters by which lines speak of one object.
var named = [...]faults.Param{faults.Batch, faults.Registration, faults.Segment, faults.Memory}

// objects removes every line that speaks of one object: alone, each of them might have to stay for the others.
func (j *job) objects() {
	for _, p := range named {
		for _, value := range j.values(p) {
			j.try(without(j.best, func(_ int, a faults.Action) bool { return a.Kind.Has(p) && a.Get(p) == value }))
		}
	}
}

// values lists what a parameter is in the script, in the order of their first lines.
func (j *job) values(p faults.Param) (all []int64) {
	seen := map[int64]bool{}
	for _, line := range j.best.Lines {
		if value := line.Action.Get(p); line.Action.Kind.Has(p) && !seen[value] {
			seen[value] = true
			all = append(all, value)
		}
	}
	return all
}

// engines takes one engine after the other out of the world, with what it does, and numbers the rest anew.
func (j *job) engines() {
	for k := j.best.World.Get(faults.Engines) - 1; k >= 0 && j.best.World.Get(faults.Engines) > 1; k-- {
		j.try(withoutEngine(j.best, k))
	}
}

func withoutEngine(s faults.Script, gone int64) faults.Script {
	kept := faults.Script{World: s.World.With(faults.Engines, s.World.Get(faults.Engines)-1)}
	for _, e := range s.Engines {
		if e.Get(faults.Number) != gone {
			kept.Engines = append(kept.Engines, renumbered(e, faults.Number, gone))
		}
	}
	for _, line := range s.Lines {
		a, of := line.Action, false
		for _, p := range [...]faults.Param{faults.EngineOf, faults.Peer} {
			if a.Kind.Has(p) {
				of = of || a.Get(p) == gone
				a = renumbered(a, p, gone)
			}
		}
		if !of {
			kept.Lines = append(kept.Lines, faults.Line{Turn: line.Turn, Action: a})
		}
	}
	return kept
}

// renumbered closes the gap that an engine leaves.
func renumbered(a faults.Action, p faults.Param, gone int64) faults.Action {
	if n := a.Get(p); n > gone {
		return a.With(p, n-1)
	}
	return a
}
