package simverbs_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
	"github.com/orbitte/orbitte/verbs/verbstest"
)

// seedOf is a test's seed: from ORBITTE_SEED, or a new one. It prints how to replay.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("ORBITTE_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	t.Logf("SEED=%d (replay: ORBITTE_SEED=%d go test -run '%s' ./verbs/simverbs)", seed, seed, t.Name())
	return seed
}

// harness is two hosts on a fabric whose clock moves when a test waits.
func harness(t *testing.T, p simverbs.Personality, facts verbstest.Facts) verbstest.Harness {
	f := simverbs.NewFabric(seedOf(t), simverbs.Options{Personality: p, Mapped: verbstest.Mapped, Violation: func(err error) { t.Error(err) }})
	device := "rxe0"
	if p == simverbs.Hardware {
		device = "mlx5_0"
	}
	a, b := f.Host("a").Process("p"), f.Host("b").Process("q")
	port := f.Host("a").Device(device).Port(1)
	idle := false
	return verbstest.Harness{
		A: verbstest.Side{Calls: a, Device: device, Port: 1}, B: verbstest.Side{Calls: b, Device: device, Port: 1}, Facts: facts,
		Now: f.Now, Readable: f.Readable,
		Pass: func() {
			idle = !f.Step()
			if idle {
				f.Advance(1e6)
			}
		},
		Idle: func() bool { return idle },
		Link: func(up bool) {
			if up {
				port.Up()
			} else {
				port.Down()
			}
		},
		Address: func(present bool) {
			if present { // under another index
				port.SetGID(verbs.GIDEntry{Index: 5, GID: verbs.GID{10: 0xff, 11: 0xff, 12: 10, 13: 77, 14: 1, 15: 1}, Type: verbs.GIDRoCEv2})
			} else {
				port.RemoveGID(1)
			}
		},
		Done: func() error {
			if left := f.Live(); len(left) > 0 {
				return fmt.Errorf("objects are left: %+v", left)
			}
			return nil
		},
	}
}

func TestHardwareTwinConforms(t *testing.T) {
	verbstest.Run(t, func(t *testing.T) verbstest.Harness { return harness(t, simverbs.Hardware, verbstest.HardwareFacts()) })
}

func TestSoftRoCETwinConforms(t *testing.T) {
	verbstest.Run(t, func(t *testing.T) verbstest.Harness { return harness(t, simverbs.SoftRoCE, verbstest.SoftRoCEFacts()) })
}

func TestOldSoftRoCETwinConforms(t *testing.T) {
	verbstest.Run(t, func(t *testing.T) verbstest.Harness {
		return harness(t, simverbs.OldSoftRoCE, verbstest.OldSoftRoCEFacts())
	})
}
