package hptcp

import (
	"syscall"
	"testing"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// stubborn closes descriptors, and says of the next ones, so many, that it could not.
type stubborn struct {
	reactor.Kernel
	refuses int
}

func (k *stubborn) Close(d reactor.Descriptor) error {
	if err := k.Kernel.Close(d); err != nil || k.refuses == 0 {
		return err
	}
	k.refuses--
	return syscall.EIO
}

// An idle stream that is to make room, and whose descriptor cannot be closed, keeps its slot for good. Who waited for that
// evicts another idle one, or is told at once when there is none.
//
// proves T-4, T-6, G-9
func TestWhoWaitsForASlotThatIsRetainedLooksForAnother(t *testing.T) {
	for _, streams := range []int64{1, 2} {
		mappings(t)
		r := newRig(t, 1, simkernel.WorldOptions{})
		var kernel *stubborn
		source := r.node(sourceHost, setup{epoch: sourceEpoch})
		requester := r.node(requesterHost, setup{streams: streams, wrap: func(k reactor.Kernel) reactor.Kernel {
			kernel = &stubborn{Kernel: k}
			return kernel
		}})
		remote, local := source.register(100, netproto.RemoteRead, 1), requester.register(100, netproto.LocalOnly, 2)
		first := requester.peer(source)
		for _, p := range []*Peer{first, requester.peer(source)}[:streams] {
			if o := r.wait(requester.ask(lanes.Read, local, remote.ID()).start(p)); o.Err != nil {
				t.Fatal(o.Err)
			}
			r.pass(soon)
		}
		late := requester.ask(lanes.Read, local, remote.ID())
		late.Deadline = reactor.Forever
		kernel.refuses = 1
		late.start(requester.peer(source))
		if o := r.wait(late); streams == 2 && o.Err != nil {
			t.Error(o.Err)
		} else if streams == 1 && fault(t, o).Cause != lanes.Exhausted {
			t.Errorf("%+v", o)
		}
		if used, n := requester.config.Streams.Used(), requester.lane.Counts.RetainedDescriptors.Load(); used != streams || n != 1 {
			t.Errorf("%d slots are used, %d descriptors retained", used, n)
		}
		first.links[0].charge.Repay() // stands for the end of the process
		r.finish()
	}
}
