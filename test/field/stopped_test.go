package field

import (
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/orbitte/orbitte"
)

// field case F-21
func TestAStoppedPeerFailsByItsDeadlineAndTheOthersKeepTheirRate(t *testing.T) {
	const (
		peers    = 5 // the first is stopped
		timeout  = 200 * time.Millisecond
		window   = 250 * time.Millisecond
		turns    = 8 // fewer say little on a busy machine
		keepRate = 0.5
	)
	onKernels(t, func(t *testing.T, kernel orbitte.KernelChoice) {
		e := openEngine(t, orbitte.Config{Kernel: kernel})
		var counts [peers]atomic.Int64
		var failed atomic.Int64 // of the stopped peer, by deadline
		var stop atomic.Bool
		var loops sync.WaitGroup
		sources := make([]*source, peers)
		for i := range sources {
			src := spawnSource(t, settings{Kernel: kernel, Lanes: 1}, pageBytes)
			sources[i] = src
			s := openSegment(t, e, src.Endpoint, src.Epoch)
			local := buffer(t, e, pageBytes)
			loops.Add(1)
			go func() {
				defer loops.Done()
				for !stop.Load() {
					patience := 20 * time.Second // the others are judged by their rate
					if i == 0 {
						patience = timeout
					}
					_, err := submit(e, patience, orbitte.Request{Operation: orbitte.Read, Segment: s, Local: local.Address(), Remote: src.Address, Length: pageBytes})
					switch {
					case err == nil:
						counts[i].Add(1)
					case i == 0 && errors.Is(err, orbitte.ErrDeadline):
						failed.Add(1)
					default:
						t.Errorf("peer %d: %v", i, err)
						return
					}
				}
			}()
		}
		others := func() (n int64) {
			for i := 1; i < peers; i++ {
				n += counts[i].Load()
			}
			return n
		}
		var running, stopped int64
		for range turns {
			before := others()
			time.Sleep(window)
			running += others() - before
			sources[0].signal(syscall.SIGSTOP)
			// The first request behind the stop may still find its answer; the next one fails by its deadline.
			if !eventually(10*timeout, func() bool { return failed.Load() > 0 }) {
				t.Error("no request to the stopped peer ended by its deadline")
			}
			before = others()
			time.Sleep(window)
			stopped += others() - before
			sources[0].signal(syscall.SIGCONT)
			answered := counts[0].Load()
			if !eventually(10*time.Second, func() bool { return counts[0].Load() > answered }) {
				t.Error("the peer that runs again is not served again")
			}
			failed.Store(0)
		}
		stop.Store(true)
		loops.Wait()
		ratio := float64(stopped) / float64(running)
		t.Logf("others: %d requests while all ran, %d in as long while one was stopped: ratio %.2f", running, stopped, ratio)
		if ratio < keepRate {
			t.Errorf("ratio %.2f is under %.2f", ratio, keepRate)
		}
		for _, src := range sources {
			src.closeClean()
		}
	})
}
