//go:build cgo

package libibverbs

import (
	"os"
	"strings"
	"testing"

	"github.com/orbitte/orbitte/verbs/verbstest"
)

// TestRealAdaptersPassTheConformanceSuite runs on two devices of hardware whose first ports reach each other, named by
// ORBITTE_VERBS_PAIR=mlx5_0,mlx5_1. The soft-RoCE gate has a test of its own (conformance_test.go).
func TestRealAdaptersPassTheConformanceSuite(t *testing.T) {
	a, b, ok := strings.Cut(os.Getenv("ORBITTE_VERBS_PAIR"), ",")
	if !ok {
		t.Skip("device: no two adapters named in ORBITTE_VERBS_PAIR")
	}
	l, err := load("libibverbs.so.1")
	check(t, err)
	verbstest.Run(t, func(*testing.T) verbstest.Harness { return verbstest.Real(l, a, b, verbstest.HardwareFacts()) })
}
