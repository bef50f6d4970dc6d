//go:build planted

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// linesMax is how long a script may be after it was made short, settings and comments apart.
const linesMax = 15

// TestAFoundPlantBecomesAShortScript makes the failing seeds of some plants short. Each script must fail with its plant, and pass
// without.
func TestAFoundPlantBecomesAShortScript(t *testing.T) {
	if os.Getenv("PLANT") != "" {
		t.Skip("one-plant: PLANT names what is wanted")
	}
	root, plants := loaded(t)
	scratch := t.TempDir()
	var none *Plant
	clean := filepath.Join(scratch, "clean")
	if err := none.Build(root, scratch, clean); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"repay-early", "partial-write-committed", "unknown-reported-as-none", "unregister-returns-early"} {
		t.Run(name, func(t *testing.T) {
			p, err := named(plants, name)
			if err != nil {
				t.Fatal(err)
			}
			shorten(t, root, scratch, clean, p)
		})
	}
}

func shorten(t *testing.T, root, scratch, clean string, p *Plant) {
	w := &world{t: t, program: filepath.Join(scratch, p.Name+".program")}
	if err := p.Build(root, scratch, w.program); err != nil {
		t.Fatal(err)
	}
	defer w.stop()
	seed := 1
	for ; w.run(seed).Violation == nil; seed++ {
		if seed > seedsMax {
			t.Fatalf("nothing found in %d seeds", seedsMax)
		}
	}
	script := filepath.Join(scratch, p.Name+".script")
	if said, err := exec.Command(w.program, "-seed", strconv.Itoa(seed), "-shrink", script).CombinedOutput(); exitStatus(err) != 1 {
		t.Fatalf("SEED=%d: %v\n%s", seed, err, said)
	}
	text, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n(at "); n > linesMax {
		t.Errorf("SEED=%d became %d lines, want %d at most:\n%s", seed, n, linesMax, text)
	}
	if said, err := exec.Command(w.program, "-script", script).CombinedOutput(); exitStatus(err) != 1 {
		t.Errorf("with the plant: %v\n%s", err, said)
	}
	if said, err := exec.Command(clean, "-script", script).CombinedOutput(); err != nil {
		t.Errorf("without the plant: %v\n%s", err, said)
	}
	t.Logf("SEED=%d, short:\n%s", seed, text)
}

// exitStatus is a program's; 0 also for one that did not start.
func exitStatus(err error) int {
	if exit, ok := err.(*exec.ExitError); ok {
		return exit.ExitCode()
	}
	return 0
}
