package uring_test

import (
	"testing"

	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/kerneltest"
	"github.com/orbitte/orbitte/reactor/uring"
)

func TestConformance(t *testing.T) {
	kerneltest.Run(t, func(*testing.T) kerneltest.Harness {
		return kerneltest.Real(func() (reactor.Kernel, error) { return uring.New(uring.Options{}) })
	})
}

func TestConformanceOnAnyThread(t *testing.T) {
	kerneltest.Run(t, func(*testing.T) kerneltest.Harness {
		return kerneltest.Real(func() (reactor.Kernel, error) { return uring.New(uring.Options{AnyThread: true}) })
	})
}

// The smallest queues: every walk meets a full submission queue, completions overflow.
func TestConformanceWithTinyQueues(t *testing.T) {
	kerneltest.Run(t, func(*testing.T) kerneltest.Harness {
		return kerneltest.Real(func() (reactor.Kernel, error) {
			return uring.New(uring.Options{Entries: 2, Completions: 4})
		})
	})
}
