package uring

import (
	"fmt"
	"testing"

	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/kerneltest"
)

// Each set of flags, as older systems leave them, makes a kernel that conforms.
func TestEveryFlagSetConforms(t *testing.T) {
	for _, anyThread := range []bool{false, true} {
		for i, flags := range flagSets(anyThread) {
			o := Options{AnyThread: anyThread, flags: []uint32{flags}}
			if i == 0 {
				continue // TestConformance
			}
			t.Run(fmt.Sprintf("AnyThread=%v/%#x", anyThread, flags), func(t *testing.T) {
				kerneltest.Run(t, func(*testing.T) kerneltest.Harness {
					return kerneltest.Real(func() (reactor.Kernel, error) { return New(o) })
				})
			})
		}
	}
}

// A system that refuses newer flags gets the next set.
func TestUnknownFlagsAreLeftOut(t *testing.T) {
	k, err := New(Options{flags: []uint32{1 << 31, 1<<31 | setupClamp, flagSets(false)[0]}})
	if err != nil {
		t.Fatal(err)
	}
	if k.ring.flags != flagSets(false)[0] {
		t.Errorf("flags %#x", k.ring.flags)
	}
	if err := k.Shutdown(); err != nil {
		t.Error(err)
	}
	if _, err := New(Options{flags: []uint32{1 << 31}}); err == nil || unavailable(t, err).Reason != OldKernel {
		t.Error(err)
	}
}
