package control

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
)

type inquiry struct {
	Inquiry
	ended int
}

func (n *node) inquire(c *Channel, expected netproto.Epoch) *inquiry {
	q := &inquiry{}
	q.Epoch, q.Deadline = expected, n.soon()
	q.Done = func(*Inquiry) { q.ended++ }
	q.Start(c)
	return q
}

func (r *rig) answered(q *inquiry) error {
	r.t.Helper()
	r.until("an inquiry", func() bool { return q.ended > 0 })
	if q.ended != 1 {
		r.t.Errorf("Done was called %d times", q.ended)
	}
	return q.Err
}

// A describe with the right epoch gives the descriptor; with a zero one it learns the epoch from the
// mismatch and asks again, over the same stream; with a wrong one it is refused with the real one.
//
// proves W-12, G-1
func TestDescribeLearnsTheEpochOrChecksIt(t *testing.T) {
	r := newRig(t, 1)
	source, requester := r.node(nodeHost, 4), r.node(otherHost, 4)
	source.described.Regions = []netproto.Region{
		{ID: 1, Base: 0x1000, Length: 10, Permission: netproto.RemoteRead}, {ID: 7, Base: 0x2000, Length: 20, Permission: netproto.ReadWrite},
	}
	must(t, source.described.Check())
	c := requester.channel(source.address)
	for _, expected := range []netproto.Epoch{epoch, {}} {
		q := requester.inquire(c, expected)
		must(t, r.answered(q))
		if q.Epoch != epoch || !reflect.DeepEqual(q.Descriptor.Regions, source.described.Regions) || q.Descriptor.Capabilities != source.described.Capabilities {
			t.Errorf("expected %v: %+v", expected, q.Descriptor)
		}
	}
	q := requester.inquire(c, otherEpoch)
	f, ok := r.answered(q).(*lanes.Fault)
	if !ok || f.Cause != lanes.Refused || f.Status != netproto.StatusEpochMismatch || f.Actual != epoch || q.Epoch != otherEpoch {
		t.Errorf("%+v", f)
	}
	if n := requester.lane.Counts.Connects.Load(); n != 1 {
		t.Errorf("%d streams", n)
	}
	r.finish()
}

// Hostile answers to a describe end the inquiry and the stream; nothing is allocated for a length that
// the source only claims.
//
// proves W-15, T-5
func TestHostileDescriptorsEndTheInquiry(t *testing.T) {
	good := netproto.Descriptor{Capabilities: netproto.Capabilities{Bits: netproto.CapabilityTCP, TransferBytesMax: 1}}
	encoded := netproto.AppendDescriptor(nil, &good)
	answer := func(length uint64, body []byte) []byte {
		return append(replyBytes(netproto.StatusSuccess, length), body...)
	}
	size := uint64(len(encoded))
	for _, k := range []struct {
		name   string
		answer []byte
		cause  lanes.Cause
	}{
		{"empty", answer(0, nil), lanes.Violated},
		{"too long", answer(netproto.DescriptorSizeMax+1, nil), lanes.Violated},
		{"too short", answer(size-1, encoded[:size-1]), lanes.Violated},
		{"a tail", answer(size+1, append(bytes.Clone(encoded), 0)), lanes.Violated},
		{"zeros", answer(size, make([]byte, size)), 0}, // no regions, no capabilities: a descriptor all the same
		{"noise", answer(size, bytes.Repeat([]byte{0xff}, int(size))), lanes.Violated},
		{"cut", answer(size, encoded[:size-1]), lanes.Disconnected},
		{"ready", replyBytes(netproto.StatusReady, 0), lanes.Violated},
		{"ready with a length", replyBytes(netproto.StatusReady, size), lanes.Violated},
		{"mismatch again", netproto.AppendReply(nil, netproto.Reply{Status: netproto.StatusEpochMismatch}), lanes.Refused},
		{"another process", netproto.AppendReply(nil, netproto.Reply{Epoch: otherEpoch, Length: size}), lanes.Violated},
		{"garbage", bytes.Repeat([]byte("x"), netproto.ReplySize), lanes.Violated},
		{"good", answer(size, encoded), 0},
	} {
		r := newRig(t, 2)
		requester := r.node(otherHost, 4)
		p := r.listen()
		q := requester.inquire(requester.channel(p.address), epoch)
		w := p.accept()
		if request := w.request(); request != (netproto.Request{Operation: netproto.OperationDescribe, Epoch: epoch}) {
			t.Errorf("%+v", request)
		}
		must(t, w.send(k.answer))
		if k.name == "cut" {
			w.close()
		}
		var cause lanes.Cause
		if f, ok := r.answered(q).(*lanes.Fault); ok {
			cause = f.Cause
		}
		if cause != k.cause {
			t.Errorf("%s: %v, want cause %v", k.name, q.Err, k.cause)
		}
		r.pass(soon)
		if kept := requester.lane.Streams.Used() == 1; kept != (k.cause == 0 || k.cause == lanes.Refused) {
			t.Errorf("%s: stream kept: %v", k.name, kept)
		}
		r.finish()
	}
}

// An inquiry that learns the epoch does not ask for ever.
//
// proves W-12
func TestEpochThatNeverFitsEndsTheInquiry(t *testing.T) {
	r := newRig(t, 3)
	requester := r.node(otherHost, 4)
	p := r.listen()
	q := requester.inquire(requester.channel(p.address), netproto.Epoch{})
	w := p.accept()
	w.request()
	must(t, w.send(netproto.AppendReply(nil, netproto.Reply{Status: netproto.StatusEpochMismatch, Epoch: otherEpoch})))
	if second := w.request(); second.Epoch != otherEpoch {
		t.Errorf("asked with %v", second.Epoch)
	}
	must(t, w.send(netproto.AppendReply(nil, netproto.Reply{Status: netproto.StatusEpochMismatch, Epoch: epoch})))
	if f, ok := r.answered(q).(*lanes.Fault); !ok || f.Status != netproto.StatusEpochMismatch || f.Actual != epoch {
		t.Errorf("%v", q.Err)
	}
	nobody := requester.inquire(requester.channels[0], netproto.Epoch{})
	w.request()
	must(t, w.send(netproto.AppendReply(nil, netproto.Reply{Status: netproto.StatusEpochMismatch})))
	if f, ok := r.answered(nobody).(*lanes.Fault); !ok || f.Cause != lanes.Refused {
		t.Errorf("an epoch of zero was learned: %v", nobody.Err)
	}
	r.finish()
}

// A source that cannot describe itself says so, and the stream goes on.
func TestSourceThatCannotDescribeItself(t *testing.T) {
	r := newRig(t, 4)
	source, requester := r.node(nodeHost, 4), r.node(otherHost, 4)
	source.described.Regions = make([]netproto.Region, 1) // a region without ID
	c := requester.channel(source.address)
	q := requester.inquire(c, epoch)
	if f, ok := r.answered(q).(*lanes.Fault); !ok || f.Status != netproto.StatusInternalError {
		t.Errorf("%v", q.Err)
	}
	source.described.Regions = nil
	must(t, r.answered(requester.inquire(c, epoch)))
	r.finish()
}
