//go:build vm && cgo

package libibverbs_test

import (
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/verbs/libibverbs"
	"github.com/orbitte/orbitte/verbs/verbstest"
)

// TestTheLibraryConforms runs the suite that the twin passes on the guest's two soft-RoCE devices (test/vm).
//
// proves
func TestTheLibraryConforms(t *testing.T) {
	facts := verbstest.SoftRoCEFacts()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	if strings.HasPrefix(unix.ByteSliceToString(name.Release[:]), "6.1.") {
		facts = verbstest.OldSoftRoCEFacts()
	}
	verbstest.Run(t, func(t *testing.T) verbstest.Harness {
		calls, err := libibverbs.Load()
		if err != nil {
			t.Fatal(err)
		}
		h := verbstest.Real(calls, "rxe0", "rxe1", facts)
		h.Link = func(up bool) {
			word := map[bool]string{false: "down", true: "up"}[up]
			if out, err := exec.Command("rail", word, "rxe0").CombinedOutput(); err != nil {
				t.Fatalf("rail %s: %v: %s", word, err, out)
			}
		}
		return h
	})
}
