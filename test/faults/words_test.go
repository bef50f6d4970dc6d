package faults

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// A script can be written by hand from WORDS.md: it has every form with its parameters, in their order.
func TestWordsAreDescribed(t *testing.T) {
	page, err := os.ReadFile("WORDS.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range append(Kinds(), World, Engine) {
		row := fmt.Sprintf("| %v | %s |", k, strings.Trim(fmt.Sprint(k.Params()), "[]"))
		if !strings.Contains(string(page), "\n"+row) {
			t.Errorf("WORDS.md has no row that begins with %q", row)
		}
		for _, p := range k.Params() {
			for _, w := range p.Words() {
				if !strings.Contains(string(page), w) {
					t.Errorf("WORDS.md does not say that %v may be %s", p, w)
				}
			}
		}
	}
}
