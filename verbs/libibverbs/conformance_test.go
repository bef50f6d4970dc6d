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
		// The address takes the route of its rule with it (test/vm/net.sh).
		h.Address = func(present bool) {
			command := "ip addr del 10.90.0.1/24 dev ve0"
			if present {
				command = "ip addr add 10.90.0.1/24 dev ve0 && ip route replace 10.90.0.2 dev ve0 src 10.90.0.1 table 101"
			}
			if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v: %s", command, err, out)
			}
		}
		return h
	})
}
