package rdma

import (
	"errors"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
)

// A flush that does not return is given up after the cleanup window: its transfer is unquiesced, what it is about is kept
// and listed, no other flush is tried on that GPU meanwhile, and all other slow calls go on. When it returns after all, the
// GPU is used again.
//
// proves C-7, G-9, R-18
func TestAFlushThatHangsIsGivenUpAndHoldsUpNobodyElse(t *testing.T) {
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		t.Run(d.String(), func(t *testing.T) {
			e := newGPUEnds(t, EventDriven)
			n := map[lanes.Direction]*engine{lanes.Read: e.from, lanes.Write: e.to}[d] // who is written, and has to flush
			var held []func()
			n.transport.config.Thread = func(f func()) { held = append(held, f) }
			there := e.memory(e.to, 8192, netproto.ReadWrite, 1)
			here, second := e.memory(e.from, 8192, netproto.LocalOnly, 2), e.memory(e.from, 8192, netproto.LocalOnly, 3)
			host := e.to.memory(8192, netproto.ReadWrite, 4)
			set := func(m *gpuMemory) *attempt {
				a := e.transfer(d, &m.memory, &there.memory, 0)
				if a.Remote = RemoteDirect; d == lanes.Read { // from host memory, so that only the requester needs a flush
					a = e.transfer(d, &m.memory, host, 0)
				}
				a.Deadline = e.world.Now().After(time.Minute)
				return a
			}
			began := e.world.Now()
			a := e.start(set(here))
			e.until("a flush", func() bool { return len(held) > 0 })
			turned := false
			e.on(n.cold, func() { turned = true })
			e.until("a turn of the cold loop", func() bool { return turned })
			if d == lanes.Read { // a requester makes the queue pairs of another transfer, one that needs no flush
				free := e.transfer(lanes.Write, &second.memory, host, 0)
				complete(t, e.run(free), lanes.Write, 8192)
			}
			o := e.wait(a)
			if d == lanes.Read {
				var hangs *FlushHung
				if f := faultIn(t, o); o.Drained || o.Local != lanes.EffectPartial || !errors.As(f.Err, &hangs) {
					t.Errorf("%+v", o)
				}
			} else if o.Err == nil || o.Remote != lanes.EffectUnknown {
				t.Errorf("%+v", o)
			}
			e.until("the residue", func() bool { return len(n.transport.Residues()) == 1 })
			if waited := time.Duration(e.world.Now() - began); waited < CleanupWindow || waited > CleanupWindow+5*time.Second {
				t.Errorf("it was given up after %v", waited)
			}
			written := map[lanes.Direction]*gpuMemory{lanes.Read: here, lanes.Write: there}[d]
			if written.backing.Quiet() || written.native.Retained() == nil {
				t.Error("the range is not kept")
			}
			if d == lanes.Read { // no other flush is tried, and nobody waits for one
				began = e.world.Now()
				if o := e.run(set(second)); o.Drained || time.Duration(e.world.Now()-began) > time.Second || len(held) != 1 {
					t.Errorf("%+v after %v, %d flushes", o, time.Duration(e.world.Now()-began), len(held))
				}
			}
			held[0]()
			n.transport.config.Thread = nil
			e.until("its return", func() bool { return n.transport.hung[0].Load() == 0 })
			third := e.memory(e.from, 8192, netproto.LocalOnly, 5)
			a = set(third)
			if d == lanes.Write {
				other := e.memory(e.to, 8192, netproto.ReadWrite, 6)
				a = e.direct(d, &third.memory, &other.memory, 0)
			}
			complete(t, e.run(a), d, 8192)
			e.retire()
			for _, n := range []*engine{e.from, e.to} {
				n.registers = nil
			}
			e.close()
			e.endLoops()
		})
	}
}
