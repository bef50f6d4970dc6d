//go:build planted

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// seedsMax is within how many seeds each plant must be found.
const seedsMax = 2000

// TestEveryPlantIsFound builds each plant and runs seeds until an oracle that it names has seen it; the program without
// plants must find nothing in the same seeds. PLANT=name runs one.
func TestEveryPlantIsFound(t *testing.T) {
	root, plants := loaded(t)
	if only := os.Getenv("PLANT"); only != "" {
		p, err := named(plants, only)
		if err != nil {
			t.Fatal(err) // a misspelt name must not pass as found
		}
		plants = []*Plant{p}
	}
	scratch := t.TempDir()
	took := make([]int, len(plants)) // how many seeds each took
	t.Run("plants", func(t *testing.T) {
		for i, p := range plants {
			t.Run(p.Name, func(t *testing.T) {
				t.Parallel()
				took[i] = discover(t, root, scratch, p)
			})
		}
	})
	var none *Plant
	clean := &world{t: t, program: filepath.Join(scratch, "clean")}
	if err := none.Build(root, scratch, clean.program); err != nil {
		t.Fatal(err)
	}
	defer clean.stop()
	for seed := 1; seed <= slices.Max(took); seed++ {
		if s := clean.run(seed); s.Violation != nil {
			t.Errorf("without a plant, SEED=%d: %v", seed, s)
		}
	}
	t.Logf("without a plant: nothing in %d seeds", slices.Max(took))
}

// discover runs seeds until an expected oracle has seen the plant, and returns how many it took.
func discover(t *testing.T, root, scratch string, p *Plant) int {
	w := &world{t: t, program: filepath.Join(scratch, p.Name+".program")}
	if err := p.Build(root, scratch, w.program); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(w.program)
	defer w.stop()
	var others []string // oracles that saw it before
	for seed := 1; seed <= seedsMax; seed++ {
		s := w.run(seed)
		switch {
		case s.Violation == nil:
		case slices.Contains(p.Oracles, s.Violation.Oracle):
			before := ""
			if len(others) > 0 {
				before = fmt.Sprintf(" (before it: %s)", strings.Join(others, " "))
			}
			t.Logf("%s: SEED=%d, after %d seeds%s, %v", p.Name, seed, seed, before, s)
			return seed
		case !slices.Contains(others, s.Violation.Oracle):
			others = append(others, s.Violation.Oracle)
		}
	}
	t.Errorf("%s: not found by %v in %d seeds; seen by %v", p.Name, p.Oracles, seedsMax, others)
	return 0
}
