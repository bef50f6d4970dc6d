package world

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/orbitte/orbitte/test/faults"
)

// outcomesOf is what happened in a history, without turns and times, which a faster engine may change.
func outcomesOf(history string) string {
	var text strings.Builder
	for line := range strings.Lines(history) {
		_, line, _ = strings.Cut(line, " ")
		_, line, _ = strings.Cut(line, " ")
		action, result, isAction := strings.Cut(strings.TrimSpace(line), " => ")
		switch {
		case strings.HasPrefix(line, "done"):
			continue
		case isAction && strings.HasPrefix(action, "("):
			kind, _, _ := strings.Cut(strings.Trim(action, "()"), " ")
			text.WriteString(kind + " => " + result + "\n")
		default:
			text.WriteString(strings.TrimSpace(line) + "\n")
		}
	}
	return text.String()
}

// Golden scripts keep their outcomes. ORBITTE_UPDATE=1 writes them anew.
//
// proves L-3, T-2, T-5, T-7, T-10, G-1, G-8, N-3, N-4; field cases F-5, F-16, F-20, F-21, F-35
func TestGoldenScriptsKeepTheirOutcomes(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.script")
	if err != nil || len(paths) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".script"), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			script, err := faults.Parse(string(text))
			if err != nil {
				t.Fatal(err)
			}
			r := Run(script, Options{})
			if r.Violation != nil {
				t.Fatalf("%v\n%s\nreplay: make sim SCRIPT=test/world/%s", r.Violation, r.History, path)
			}
			for range 4 {
				if again := Run(script, Options{}); again.History != r.History {
					t.Fatalf("two runs differ first in\n%s", first(r.History, again.History))
				}
			}
			checkOutcomes(t, strings.TrimSuffix(path, ".script")+".outcomes", outcomesOf(r.History))
		})
	}
}

func checkOutcomes(t *testing.T, path, got string) {
	if os.Getenv("ORBITTE_UPDATE") != "" {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Fatalf("the outcomes are\n%s\nand were\n%s", got, want)
	}
}
