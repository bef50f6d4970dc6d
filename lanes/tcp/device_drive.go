package tcp

import (
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/staging"
	"github.com/orbitte/orbitte/segments"
)

// device is what a transfer or a handler has for a range in device memory: the lease of direct placement, and a flow of
// pinned chunks between it and the socket. One chunk is with the socket while the others are with the device.
type device struct {
	on      bool // true exactly when the range is a device's and not empty
	memory  *staging.Memory
	flow    staging.Flow
	wire    bool // true exactly while the socket has a chunk
	sent    int  // bytes of payload that the socket took
	over    bool // true exactly from the end of a transfer until its flow has ended too
	outcome lanes.Outcome
}

func (d *device) reset(r *segments.Registration, length uint64) {
	d.on, d.wire, d.over, d.sent = length > 0 && staging.OnDevice(r), false, false, 0
	if d.on {
		d.memory = staging.MemoryOf(r)
	}
}

// start begins the flow, once the source has answered: what waits for a chunk keeps no chunk from others.
func (t *Transfer) start(way staging.Way) *lanes.Fault {
	return t.device.flow.Start(staging.Of(t.lane()), t, staging.Plan{
		Role: staging.Requester, Way: way, Memory: t.device.memory,
		Address: t.Local.Address() + t.LocalOffset, Length: t.Length, Deadline: t.Deadline,
	})
}

// running begins the flow if it has not begun; false: it cannot go on, and the stream with it.
func (t *Transfer) running(way staging.Way) bool {
	fault := t.device.flow.Fault()
	if !t.device.flow.Active() {
		fault = t.start(way)
	}
	if fault != nil {
		t.channel.Fail(fault) // Failed follows
	}
	return fault == nil
}

// pull receives into the next room (READ).
func (t *Transfer) pull() {
	if !t.running(staging.In) || t.device.wire {
		return
	}
	if room := t.device.flow.Room(); room != nil {
		t.device.wire = true
		t.channel.Receive(room, nil, len(room))
	}
}

// pulled gives what was received to the device.
func (t *Transfer) pulled() {
	if t.device.on {
		t.device.wire = false
		t.device.flow.Filled()
	}
}

// land ends a READ whose payload is with the device once every copy is confirmed, or one has failed.
func (t *Transfer) land() {
	if f := &t.device.flow; f.Whole() || f.Fault() != nil {
		f.End() // Ended follows
	}
}

// push sends the next piece, once the source is ready (WRITE).
func (t *Transfer) push() {
	if !t.ready || !t.running(staging.Out) || t.device.wire {
		return
	}
	if piece := t.device.flow.Piece(); piece != nil {
		t.device.wire = true
		t.channel.Send(piece, nil)
	}
}

// pushed counts a piece that is out; true when it was the last one.
func (t *Transfer) pushed(n int) bool {
	d := &t.device
	d.wire = false
	d.sent += n
	d.flow.Release()
	if !d.flow.Whole() {
		t.push()
		return false
	}
	t.ready = false
	d.flow.End() // nothing is under way
	return true
}

// Advanced looks again (staging.User).
func (t *Transfer) Advanced(*staging.Flow) {
	switch {
	case t.read.stage == stageCommit:
		t.land()
	case t.Direction == lanes.Read:
		t.pull()
	default:
		t.push()
	}
}

// Ended goes on, or reports (staging.User). Only bytes of which the device took a copy may have changed the range.
func (t *Transfer) Ended(f *staging.Flow, proven bool) {
	if !proven {
		lease := t.lease
		f.KeepUntil(func() { lease.Return() })
		t.lease = segments.Lease{}
	}
	o := t.device.outcome
	switch {
	case t.device.over:
	case t.Direction == lanes.Write:
		return // Sent goes on
	case f.Fault() == nil:
		t.committed()
		return
	default:
		o = lanes.Outcome{Err: f.Fault(), Drained: true}
	}
	o.Drained = o.Drained && proven
	if t.Direction == lanes.Read && f.Touched() {
		o.Local = lanes.EffectPartial
	}
	t.end(o)
}
