package world

import (
	"strings"
	"testing"

	"github.com/orbitte/orbitte/test/faults"
)

// first is the first line in which two texts differ.
func first(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return x[i] + "\n" + y[i]
		}
	}
	return "one is longer"
}

// proves L-3: engines, network and faults give the same history again, to the byte, from text alone.
func TestSameScriptGivesTheSameHistory(t *testing.T) {
	for seed := uint64(1); seed <= 40; seed++ {
		a := Run(Generate(seed, 0), Options{})
		script, err := faults.Parse(a.Script.String())
		if err != nil {
			t.Fatal(err)
		}
		b := Run(script, Options{})
		if a.History != b.History || a.Turns != b.Turns {
			t.Fatalf("SEED=%d: two runs of one script differ first in\n%s", seed, first(a.History, b.History))
		}
	}
}
