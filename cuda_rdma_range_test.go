package orbitte

import (
	"bytes"
	"testing"
	"time"

	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// emptyWriter is a device whose payload of WRITEs is empty once it is told so; work completes all the same.
type emptyWriter struct {
	verbs.Calls
	on *bool
}

func (d *emptyWriter) PostSend(p verbs.PairHandle, list []verbs.SendWork) (int, error) {
	for i := range list {
		if *d.on && list[i].Operation == verbs.Write {
			list[i].Length = 0
		}
	}
	return d.Calls.PostSend(p, list)
}

// A requester that says that it has written a chunk, and has not, gets nothing there of what others have moved through it.
//
// proves C-4, R-6
func TestAChunkThatAPeerLeavesAsItIsHasNothingOfOthers(t *testing.T) {
	const chunk = 4096
	empty := false
	p := newGPUPair(t, 700, 2*chunk, gpuSide{config: chunked(chunk, 1), device: true}, gpuSide{
		seen: func(n *simverbs.Process) verbs.Calls { return &emptyWriter{n, &empty} },
	})
	p.move(t, Read, 0, chunk, 1) // through the one chunk
	empty = true
	_, err := p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(Write, chunk, chunk)})
	must(t, err)
	if got := content(t, p.sourceDriver, p.remote)[chunk:]; !bytes.Equal(got, make([]byte, chunk)) {
		t.Errorf("the range has %x… of what went through the chunk before", got[:16])
	}
	p.atRest(t)
}

// A range that is read is free again once its bytes are in the chunk, however long the network has that.
//
// proves C-4, M-9
func TestARangeOnAGPUIsFreeOnceItIsCopiedForARead(t *testing.T) {
	const size = 4096
	p := newGPUPair(t, 701, size, gpuSide{config: chunked(size, 1), device: true}, gpuSide{})
	p.fabric.Plan(simverbs.Fault{Kind: simverbs.DelayPacket, By: 200 * time.Millisecond, Count: -1})
	b, err := p.requester.Submit(soon(t), []Request{p.overRDMA(Read, 0, size)})
	must(t, err)
	p.until(time.Second, func() bool { return p.source.Stats().CUDA.Copies == 1 })
	p.Advance(time.Millisecond)
	if gauge(t, p.source, "RDMA grants").Used != 1 || !p.remote.backing.Quiet() {
		t.Errorf("%d grants are out, and the range is free: %v", gauge(t, p.source, "RDMA grants").Used, p.remote.backing.Quiet())
	}
	_, err = b.Wait(soon(t))
	must(t, err)
	must(t, b.Free())
	p.atRest(t)
}
