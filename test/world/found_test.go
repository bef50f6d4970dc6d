package world

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/orbitte/orbitte/test/faults"
)

// proves L-3: what was found once stays found. Each script of testdata/found made an oracle speak, or two runs differ; its
// first line says why.
func TestFoundScriptsPassAndGiveOneHistory(t *testing.T) {
	paths, _ := filepath.Glob("testdata/found/*.script")
	if len(paths) < 12 {
		t.Fatalf("%d scripts, want 12 or more", len(paths))
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		script, err := faults.Parse(string(text))
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		once := Run(script, Options{})
		if once.Violation != nil {
			t.Errorf("%s: %v\nreplay: make sim SCRIPT=test/world/%s", path, once.Violation, path)
		}
		for range 8 { // a goroutine that races shows in one of two runs
			if again := Run(script, Options{}); again.History != once.History {
				t.Fatalf("%s: two runs of one script differ first in\n%s", path, first(once.History, again.History))
			}
		}
	}
}
