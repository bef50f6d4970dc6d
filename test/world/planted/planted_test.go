//go:build planted

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	// seedsMax is within how many seeds each plant must be found.
	seedsMax = 2000
	// patience bounds one program, far above what its seeds take: a run that spins inside one turn is a finding, too.
	patience = 3 * time.Minute
)

// sighting is one violation that a program printed.
type sighting struct {
	seed   int
	oracle string
	text   string
}

func (s sighting) String() string { return fmt.Sprintf("seed %d, %s: %s", s.seed, s.oracle, s.text) }

// TestEveryPlantIsFound builds each plant and runs seeds until an oracle that it names has seen it; the program without
// plants must find nothing in the same seeds. PLANT=name runs one.
func TestEveryPlantIsFound(t *testing.T) {
	root, plants := loaded(t)
	scratch := t.TempDir()
	last := make([]int, len(plants)) // the seed at which each was found
	t.Run("plants", func(t *testing.T) {
		for i, p := range plants {
			if only := os.Getenv("PLANT"); only != "" && only != p.Name {
				continue
			}
			t.Run(p.Name, func(t *testing.T) {
				t.Parallel()
				last[i] = discover(t, root, scratch, p)
			})
		}
	})
	var none *Plant
	clean := filepath.Join(scratch, "clean")
	if err := none.Build(root, scratch, clean); err != nil {
		t.Fatal(err)
	}
	seeds := slices.Max(last) + 1
	if s, found := firstSighting(t, clean, 0, seeds); found {
		t.Errorf("without a plant: %v", s)
	}
	t.Logf("without a plant nothing is seen in %d seeds", seeds)
}

// discover runs seeds until an expected oracle has seen the plant, and returns that seed.
func discover(t *testing.T, root, scratch string, p *Plant) int {
	out := filepath.Join(scratch, p.Name+".program")
	if err := p.Build(root, scratch, out); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(out)
	var others []string // oracles that saw it before
	for seed := 0; seed < seedsMax; {
		s, found := firstSighting(t, out, seed, seedsMax-seed)
		if !found {
			break
		}
		if slices.Contains(p.Oracles, s.oracle) {
			before := ""
			if len(others) > 0 {
				before = fmt.Sprintf(" (before it: %s)", strings.Join(others, " "))
			}
			t.Logf("%s: found after %d seeds by %s%s: %s", p.Name, s.seed+1, s.oracle, before, s.text)
			return s.seed
		}
		if !slices.Contains(others, s.oracle) {
			others = append(others, s.oracle)
		}
		seed = s.seed + 1
	}
	t.Errorf("%s: not found by %v in %d seeds; seen by %v", p.Name, p.Oracles, seedsMax, others)
	return 0
}

var violation = regexp.MustCompile(`(?m)^VIOLATION seed=(\d+) oracle=(\w+) ?(.*)$`)

// firstSighting runs seeds until a violation. A program that dies or does not end is one as well.
func firstSighting(t *testing.T, program string, first, seeds int) (sighting, bool) {
	t.Helper()
	s, verdict := runSeeds(t, program, first, seeds)
	if verdict == died || verdict == stuck { // it could not say where: look for the first seed that does it
		low, high := 0, seeds // so many seeds are fine, so many are not
		for high-low > 1 {
			middle := (low + high) / 2
			if _, again := runSeeds(t, program, first, middle); again == fine {
				low = middle
			} else {
				high = middle
			}
		}
		s.seed = first + low
	}
	return s, verdict != fine
}

// verdict is how a program ended.
type verdict int

const (
	fine  verdict = iota
	seen          // it printed a violation
	died          // it crashed
	stuck         // it had to be killed
)

func runSeeds(t *testing.T, program string, first, seeds int) (sighting, verdict) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-from", strconv.Itoa(first), "-seeds", strconv.Itoa(seeds))
	said, err := cmd.CombinedOutput()
	if m := violation.FindSubmatch(said); m != nil {
		seed, _ := strconv.Atoi(string(m[1]))
		return sighting{seed, string(m[2]), string(m[3])}, seen
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
		return sighting{}, fine
	case ctx.Err() != nil:
		return sighting{oracle: "hang", text: "the program does not end"}, stuck
	case errors.As(err, &exit) && exit.ExitCode() == 2:
		line, _, _ := strings.Cut(string(said), "\n")
		return sighting{oracle: "panic", text: line}, died
	}
	t.Fatalf("%s: %v\n%s", program, err, said)
	return sighting{}, fine
}
