package world

import (
	"strings"
	"testing"
)

// A violation that quotes an error of the engine names no place of this process, so that a failing seed has one history.
func TestAViolationNamesNoRealAddress(t *testing.T) {
	r := &run{options: Options{Quiet: true}}
	r.violate(OracleError, "no region covers [0x7fea61fd4021, +23); the magic is 0x20061f697a4, the epoch 0xe0")
	if got := r.violation.What; strings.Contains(got, "7fea61fd4021") || !strings.HasSuffix(got, "0xe0") {
		t.Errorf("it says %q", got)
	}
}
