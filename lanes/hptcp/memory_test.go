package hptcp

import (
	"syscall"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// starve takes all idle memory of a lane and lets the system have no more; the answer ends both.
func (n *node) starve() func() {
	arena := &n.lane.Arena
	arena.Refuse = func(uint64) error { return syscall.ENOMEM }
	var held []lanes.Buffer
	for {
		b, err := arena.Get(boxHeaderBytes)
		if err != nil {
			break
		}
		held = append(held, b)
	}
	return func() {
		arena.Refuse = nil
		for i := range held {
			arena.Put(&held[i])
		}
	}
}

// A side that has no memory for its frames for a while sends them when it has: nothing else would happen on the stream. One
// that never has any ends by the deadline, and nothing of it stays.
//
// proves H-3, T-9
func TestFramesWithoutMemoryAreSentWhenThereIsSome(t *testing.T) {
	mappings(t)
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		for _, atSource := range []bool{false, true} {
			for _, ends := range []bool{true, false} {
				r := newRig(t, 1, simkernel.WorldOptions{})
				source, requester, peer := r.pair(setup{sourceTimeout: time.Minute}, setup{sourceTimeout: time.Minute})
				remote, local := source.register(5000, netproto.ReadWrite, 1), requester.register(5000, netproto.ReadWrite, 2)
				if o := r.wait(requester.ask(d, local, remote.ID()).start(peer)); o.Err != nil { // the streams are there
					t.Fatal(o.Err)
				}
				starved := requester
				if atSource {
					starved = source
				}
				feed := starved.starve()
				a := requester.ask(d, local, remote.ID())
				a.Deadline = requester.lane.Kernel().Now().After(10 * time.Second)
				began := requester.lane.Kernel().Now()
				a.start(peer)
				r.pass(time.Second)
				if a.done != 0 {
					t.Fatalf("%v ended without memory for its frames: %+v", d, a.Outcome)
				}
				if ends {
					feed()
				}
				o := r.wait(a)
				took := time.Duration(a.at - began)
				switch {
				case ends && (o.Err != nil || took > time.Second+2*boxRetry):
					t.Errorf("%v, at the source %v: %v after %v", d, atSource, o.Err, took)
				case !ends && (fault(t, o).Cause != lanes.Deadline || took < 10*time.Second || took > 10*time.Second+2*boxRetry):
					t.Errorf("%v, at the source %v: %v after %v", d, atSource, o.Err, took)
				}
				if !ends {
					feed()
				}
				r.finish()
			}
		}
	}
}
