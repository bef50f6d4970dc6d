package simkernel_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/kerneltest"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

func harness(w *simkernel.World) kerneltest.Harness {
	p := w.Process("test", netip.MustParseAddr("127.0.0.1"))
	return kerneltest.Harness{
		Open:  func() (reactor.Kernel, error) { return p.Kernel(), nil },
		Later: func(d time.Duration, f func()) { w.Later(d, f) },
		Foreign: func() (reactor.Descriptor, func(), func(), error) {
			d, signal, err := p.Signal()
			return d, signal, func() {}, err
		},
		IPv4: netip.MustParseAddr("127.0.0.1"),
		IPv6: netip.MustParseAddr("::1"),
	}
}

// proves L-1: the twin keeps the same contract as the kernels over the operating system.
func TestKernelConformance(t *testing.T) {
	for seed := range uint64(10) {
		kerneltest.Run(t, func(t *testing.T) kerneltest.Harness {
			t.Logf("SEED=%d", seed)
			h := harness(simkernel.NewWorld(seed, simkernel.WorldOptions{Reorder: int(seed % 2)}))
			h.Reorders = seed%2 != 0
			return h
		})
	}
}

func kerneltestRun(t *testing.T, o simkernel.WorldOptions) {
	kerneltest.Run(t, func(t *testing.T) kerneltest.Harness { return harness(simkernel.NewWorld(9, o)) })
}
