package epoll_test

import (
	"testing"

	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/epoll"
	"github.com/orbitte/orbitte/reactor/kerneltest"
)

func TestConformance(t *testing.T) {
	kerneltest.Run(t, func(*testing.T) kerneltest.Harness {
		return kerneltest.Real(func() (reactor.Kernel, error) { return epoll.New(epoll.Options{}) })
	})
}
