package orbitte

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/verbs/simverbs"
)

// realFabric is a fabric on the real clock, whose descriptors are eventfds: for engines with threads of their own.
func realFabric(t testing.TB) *simverbs.Fabric {
	t.Helper()
	leavesNothing(t)
	began := time.Now()
	var timers sync.WaitGroup // so that none outlives the test
	f := simverbs.NewFabric(1, simverbs.Options{
		Now: func() time.Duration { return time.Since(began) },
		Later: func(d time.Duration, do func()) {
			timers.Add(1)
			time.AfterFunc(d, func() { do(); timers.Done() })
		},
		Violation: func(err error) { t.Error(err) },
		Signal: func(*simverbs.Process) (int, func(), func(), func(), error) {
			fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
			set := func() { unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }
			clear := func() { unix.Read(fd, make([]byte, 8)) }
			return fd, set, clear, func() { unix.Close(fd) }, err
		},
	})
	t.Cleanup(func() {
		timers.Wait()
		for _, left := range f.Live() {
			t.Errorf("native objects are left: %+v", left)
		}
	})
	return f
}

// proves L-2, L-4, R-3, R-10
func TestManyGoroutinesTransferOverRDMAOnRealLanes(t *testing.T) {
	eachKernel(t, func(t *testing.T, c Config) { // six busy lanes would need a core each
		for name, mode := range map[string]Progress{"adaptive": Adaptive, "event": EventDriven, "manual": Manual} {
			t.Run(name, func(t *testing.T) {
				c.Progress = mode
				transferOnRealLanes(t, c)
			})
		}
	})
}

func transferOnRealLanes(t *testing.T, c Config) {
	f := realFabric(t)
	c.Lanes = 2
	if c.Progress == Manual {
		c.Lanes = 1
	}
	engine := func(name string, progress RDMAProgress, h HostMemory) *Engine {
		own := c
		own.Verbs, own.RDMA = f.Host(name).Process(name), &RDMAConfig{Progress: progress, HostMemory: h, Width: 2}
		return newEngine(t, own)
	}
	source, second := engine("source", RDMAEventDriven, HostDirect), engine("second", RDMAPolling, HostStaged)
	requester := engine("requester", RDMAEventDriven, HostDirect)
	driven(t, source, second)
	const each = 64 << 10
	const workers = 4
	local := allocated(t, workers*each)
	registered(t, requester, local, LocalOnly)
	var group sync.WaitGroup
	for i := range workers {
		from := []*Engine{source, second}[i%2]
		remote := allocated(t, each)
		pattern(remote, i)
		registered(t, from, remote, ReadWrite)
		segment := opened(t, requester, from)
		group.Add(1)
		go func() {
			defer group.Done()
			if err := moveAbout(requester, segment, local, remote, i*each, each); err != nil {
				t.Error(err)
			}
		}()
	}
	group.Wait()
}

// moveAbout reads and writes pieces of one remote memory, and compares.
func moveAbout(e *Engine, s *Segment, local, remote *Memory, offset, size int) error {
	random := rand.New(rand.NewPCG(uint64(offset), 1))
	for i := range 12 {
		at := random.IntN(size / 2)
		r := Request{
			Operation: []Operation{Read, Write}[i%2], Transport: TransportRDMA, Segment: s, Length: uint64(1 + random.IntN(size/2)),
			Local: local.Address() + uint64(offset+at), Remote: remote.Address() + uint64(at),
		}
		if i%5 == 4 {
			r.Transport = TransportTCP
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		_, err := e.SubmitAndWait(ctx, []Request{r})
		cancel()
		if err != nil {
			return fmt.Errorf("%v of %d over %v: %w", r.Operation, r.Length, r.Transport, err)
		}
		if n := int(r.Length); !bytes.Equal(local.Bytes()[offset+at:offset+at+n], remote.Bytes()[at:at+n]) {
			return fmt.Errorf("%v of %d over %v brought other bytes", r.Operation, r.Length, r.Transport)
		}
	}
	return nil
}
