package orbitte

import (
	"testing"
	"time"
)

// An engine that the program drives has no thread for RDMA's slow native calls: what other goroutines ask for is done at
// once although the driver waits in its kernel, and not when the lane's next timer is due, which is that of the monitor.
//
// proves L-4
func TestAWaitingProgressDoesSlowNativeWorkThatOthersAskFor(t *testing.T) {
	f := realFabric(t)
	e := newEngine(t, Config{Progress: Manual, Verbs: f.Host("here").Process("here"), RDMA: &RDMAConfig{}})
	t.Cleanup(func() { closeEngine(t, e) })
	m := allocated(t, 4096)
	registered(t, e, m, ReadWrite) // so that the memory outlives what is registered below
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-over:
				return
			default:
				e.Progress(10 * time.Second)
			}
		}
	}()
	const times = 4
	took := time.Duration(0)
	for i := range times {
		list, err := e.RegisterBatch([]Range{{Memory: m, Offset: uint64(i), Length: 64, Permission: ReadWrite}})
		must(t, err)
		time.Sleep(20 * time.Millisecond) // until the driver waits
		began := time.Now()
		must(t, e.Unregister(soon(t), list[0]))
		took += time.Since(began)
	}
	if took > 500*time.Millisecond { // some ticks of a second, without it
		t.Errorf("%d registrations and their ends took %v", times, took)
	}
	close(over)
	<-done
}

// proves L-4
func TestProgressWithoutTimeNeverWaitsThoughRDMAPolls(t *testing.T) {
	p := newRDMAPair(t, 960, Config{}, Config{}, 4096)
	began := p.Now()
	for range 1000 {
		p.requester.Progress(0)
	}
	if took := time.Duration(p.Now() - began); took > 20*time.Millisecond {
		t.Errorf("1,000 turns that must not wait took %v", took)
	}
}
