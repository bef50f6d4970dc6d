//go:build cgo

package libibverbs

import (
	"os"
	"strings"
	"testing"

	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/verbstest"
)

// The suite needs two devices that reach each other. In the soft-RoCE gate these are the two ends of a wire, rxe0 and
// rxe1; elsewhere ORBITTE_VERBS_PAIR names them, separated by a comma.
func rails(t *testing.T, l *library) (a, b string, facts verbstest.Facts) {
	t.Helper()
	if a, b, ok := strings.Cut(os.Getenv("ORBITTE_VERBS_PAIR"), ","); ok {
		return a, b, verbstest.HardwareFacts()
	}
	var found []string
	for _, d := range must(l.Devices())(t) {
		if d.Accessible == nil && strings.HasPrefix(d.Name, "rxe") {
			found = append(found, d.Name)
		}
	}
	if len(found) < 2 {
		t.Skip("device: no two soft-RoCE devices here; make vm has them, or name two of hardware in ORBITTE_VERBS_PAIR")
	}
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	if strings.HasPrefix(string(release), "6.1.") {
		return found[0], found[1], verbstest.OldSoftRoCEFacts()
	}
	return found[0], found[1], verbstest.SoftRoCEFacts()
}

func TestTheRealLibraryPassesTheConformanceSuite(t *testing.T) {
	l, _ := installed(t)
	a, b, facts := rails(t, l)
	verbstest.Run(t, func(*testing.T) verbstest.Harness { return verbstest.Real(verbs.Calls(l), a, b, facts) })
}
