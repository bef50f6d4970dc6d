package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Mistakes that only a hostile peer brings to light are listed beside the plants, each with a test that is there.
func TestMistakesThatTheWorldCannotSeeHaveTheirTests(t *testing.T) {
	root, err := repository()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("testdata/elsewhere.txt")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		words := strings.Split(line, " | ")
		if len(words) != 4 {
			t.Fatalf("%q has %d parts, want name, mistake, folder and test", line, len(words))
		}
		files, err := filepath.Glob(filepath.Join(root, words[2], "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		there := false
		for _, f := range files {
			code, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			there = there || strings.Contains(string(code), "\nfunc "+words[3]+"(")
		}
		if !there {
			t.Errorf("%s: no test %s in %s", words[0], words[3], words[2])
		}
		found++
	}
	if found < 5 {
		t.Errorf("%d mistakes are listed, want 5 or more", found)
	}
}
