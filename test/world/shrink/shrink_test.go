package shrink

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/orbitte/orbitte/test/faults"
)

// long is a script of n lines: engines and objects take turns, each with numbers of its own.
func long(n int) faults.Script {
	s := faults.Script{World: faults.New(faults.World).With(faults.Seed, 9).With(faults.Engines, 4).With(faults.ChopReceive, 100).With(faults.DelayMax, 1e6)}
	for i := range int64(4) {
		s.Engines = append(s.Engines, faults.New(faults.Engine).With(faults.Number, i).With(faults.Handlers, 2).With(faults.Queue, 1))
	}
	for i := range n {
		a := faults.New(faults.Fill).With(faults.Memory, int64(i%7)).With(faults.Length, 1000).With(faults.Offset, int64(i))
		if i%5 == 0 {
			a = faults.New(faults.Kill).With(faults.EngineOf, int64(i%4))
		}
		if i%6 == 0 {
			a = faults.New(faults.Transfer).With(faults.EngineOf, int64(i%4)).With(faults.Deadline, 5e6)
			for k := range 4 {
				a.Requests = append(a.Requests, faults.Request{Write: k%2 == 0, Memory: k, Length: 4096, Offset: 64, Segment: i})
			}
		}
		s.Lines = append(s.Lines, faults.Line{Turn: 3 * i, Action: a})
	}
	return s
}

// has says whether the texts of the lines contain the wanted words in this order.
func has(s faults.Script, wanted ...string) bool {
	for _, line := range s.Lines {
		if len(wanted) > 0 && strings.Contains(line.String(), wanted[0]) {
			wanted = wanted[1:]
		}
	}
	return len(wanted) == 0
}

func shrunk(t *testing.T, s faults.Script, fails func(faults.Script) bool) Result {
	t.Helper()
	r, err := Shrink(s, fails, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !fails(r.Script) {
		t.Fatalf("the result does not fail:\n%s", r.Script)
	}
	if back, err := faults.Parse(r.Script.String()); err != nil || back.String() != r.Script.String() {
		t.Fatalf("the result is no script: %v\n%s", err, r.Script)
	}
	return r
}

// oneMinimal checks that every line is needed.
func oneMinimal(t *testing.T, s faults.Script, fails func(faults.Script) bool) {
	t.Helper()
	for i := range s.Lines {
		if fails(without(s, func(k int, _ faults.Action) bool { return k == i })) {
			t.Errorf("line %d can be removed from\n%s", i, s)
		}
	}
}

func TestOnlyTheLinesThatMatterStay(t *testing.T) {
	fails := func(s faults.Script) bool { return has(s, "(fill (memory 3)", "(kill (engine 1))", "(fill (memory 4)") }
	r := shrunk(t, long(200), fails)
	oneMinimal(t, r.Script, fails)
	want := "(world (seed 9) (engines 2))\n(at 0 (fill (memory 3)))\n(at 0 (kill (engine 1)))\n(at 0 (fill (memory 4)))\n"
	if got := r.Script.String(); got != want || !r.Minimal {
		t.Errorf("minimal %v after %d runs:\n%swant\n%s", r.Minimal, r.Runs, got, want)
	}
}

func TestNumbersRequestsAndTurnsBecomeAsSmallAsTheyCanBe(t *testing.T) {
	fails := func(s faults.Script) bool {
		for _, line := range s.Lines {
			a := line.Action
			if line.Turn < 5 || a.Kind != faults.Transfer || a.Get(faults.Deadline) < 1000 || len(a.Requests) < 2 || a.Requests[1].Length < 100 {
				continue
			}
			return s.World.Get(faults.ChopReceive) >= 16
		}
		return false
	}
	r := shrunk(t, long(100), fails)
	oneMinimal(t, r.Script, fails)
	a := r.Script.Lines[0].Action
	if len(r.Script.Lines) != 1 || len(r.Script.Engines) != 0 || r.Script.Lines[0].Turn != 5 || a.Duration(faults.Deadline) != 1000 ||
		len(a.Requests) != 2 || a.Requests[1].Length != 100 || a.Requests[0].Length != 0 || r.Script.World.Get(faults.ChopReceive) != 16 || r.Script.World.Get(faults.DelayMax) != 0 {
		t.Errorf("after %d runs:\n%s", r.Runs, r.Script)
	}
}

// TestAnEngineGoesWithWhatItDoesAndTheRestIsNumberedAnew has a failure that needs the last of four engines.
func TestAnEngineGoesWithWhatItDoesAndTheRestIsNumberedAnew(t *testing.T) {
	s := long(40)
	s.Engines[3] = s.Engines[3].With(faults.Handlers, 7)
	fails := func(s faults.Script) bool {
		for _, e := range s.Engines {
			if e.Get(faults.Handlers) == 7 {
				return has(s, fmt.Sprintf("(kill (engine %d))", e.Get(faults.Number))) || e.Get(faults.Number) == 0 && has(s, "(kill)")
			}
		}
		return false
	}
	r := shrunk(t, s, fails)
	if got, want := r.Script.String(), "(world (seed 9) (engines 1))\n(engine (handlers 7))\n(at 0 (kill))\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestRandomFailuresBecomeMinimalAndTheSameEachTime(t *testing.T) {
	seed := rand.Uint64()
	if text := os.Getenv("SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	t.Logf("SEED=%d replay: SEED=%d go test ./test/world/shrink -run '^%s$'", seed, seed, t.Name())
	random := rand.New(rand.NewPCG(seed, 0))
	for range 30 {
		s := long(20 + random.IntN(150))
		need := map[string]bool{}
		for range 1 + random.IntN(6) {
			need[s.Lines[random.IntN(len(s.Lines))].Action.String()] = true
		}
		either := random.IntN(2) == 0 // a failure with two causes: half of them will do
		fails := func(c faults.Script) bool {
			found := map[string]bool{}
			for _, line := range c.Lines {
				if text := line.Action.String(); need[text] {
					found[text] = true
				}
			}
			return len(found) == len(need) || either && 2*len(found) >= len(need)
		}
		r := shrunk(t, s, fails)
		oneMinimal(t, r.Script, fails)
		if !r.Minimal {
			t.Errorf("not minimal after %d runs", r.Runs)
		}
		if again := shrunk(t, s, fails); again.Script.String() != r.Script.String() || again.Runs != r.Runs {
			t.Errorf("two results for one script:\n%s\n%s", r.Script, again.Script)
		}
	}
}

func TestTheRunsAreBoundedAndWhatWasReachedIsKept(t *testing.T) {
	runs := 0
	fails := func(s faults.Script) bool {
		runs++
		return has(s, "(kill (engine 1))", "(fill (memory 2)")
	}
	r, err := Shrink(long(300), fails, Options{Runs: 20})
	if err != nil || runs > 20 || r.Runs != runs || r.Minimal || !fails(r.Script) || len(r.Script.Lines) >= 300 {
		t.Errorf("%v; %d runs, the result says %d, minimal %v, %d lines", err, runs, r.Runs, r.Minimal, len(r.Script.Lines))
	}
}

func TestAScriptThatPassesIsNotShrunk(t *testing.T) {
	if _, err := Shrink(long(5), func(faults.Script) bool { return false }, Options{}); !errors.Is(err, ErrPasses) {
		t.Errorf("got %v", err)
	}
}

func TestProgressIsTold(t *testing.T) {
	var told []string
	_, err := Shrink(long(50), func(s faults.Script) bool { return has(s, "(fill (memory 2)") }, Options{Progress: func(text string) { told = append(told, text) }})
	if err != nil || len(told) < 3 || !strings.Contains(told[len(told)-1], "1 lines") {
		t.Errorf("%v, told %q", err, told)
	}
}
