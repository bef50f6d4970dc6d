package spec

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// lines is the file that says what each number means.
const lines = "REQUIREMENTS.md"

// explained reads the numbers that have a line.
func explained(text string) []string {
	var all []string
	for _, m := range regexp.MustCompile(`(?m)^- ([A-Z]-\d+): \S.*$`).FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}

func TestEveryRequirementHasALineThatSaysWhatItMeans(t *testing.T) {
	text, err := os.ReadFile(lines)
	if err != nil {
		t.Fatal(err)
	}
	have := explained(string(text))
	for _, n := range required() {
		if !slices.Contains(have, n) {
			t.Errorf("%s has no line for %s", lines, n)
		}
	}
	for i, n := range have {
		if !exists(n) {
			t.Errorf("%s explains %s, which the contract does not have", lines, n)
		}
		if slices.Contains(have[:i], n) {
			t.Errorf("%s explains %s twice", lines, n)
		}
	}
	for _, p := range collect(t) { // what a test names, a reader wants to look up
		if exists(p.number) && !slices.Contains(have, p.number) {
			t.Errorf("%s names %s, which has no line in %s", p.place, p.number, lines)
		}
	}
}

func TestALineNeedsANumberAndAMeaning(t *testing.T) {
	const text = "- T-1: a meaning\n- T-2:\n- T-3: \nT-4: no item\n- 5: no letter\n- F-6: é\n"
	if got := strings.Join(explained(text), " "); got != "T-1 F-6" {
		t.Errorf("got %s", got)
	}
}
