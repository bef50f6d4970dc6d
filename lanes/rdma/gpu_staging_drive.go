package rdma

import (
	"time"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/lanes"
	flows "github.com/orbitte/orbitte/lanes/staging"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/segments"
	"github.com/orbitte/orbitte/verbs"
)

// DevicePolicy says how memory on GPUs is served. Each side of a transfer chooses for itself (SPEC R-6).
type DevicePolicy uint8

const (
	// DeviceStaged copies between the GPU and the lane's pinned chunks, which are registered, while the network works.
	DeviceStaged DevicePolicy = iota
	// DeviceDirect lets the network device reach the GPU's memory itself (GPUDirect; SPEC C-6, C-7).
	DeviceDirect
)

// gpuSide is what a transfer, or a parent, has when its range is on a GPU: the memory, and where it is staged the flow
// between it and the lane's pinned chunks (SPEC C-4).
type gpuSide struct {
	memory *cuda.Memory // nil: host memory
	flow   flows.Flow
	ending bool // true exactly when the flow was told to end
	broken bool // true exactly when the flow has ended with a fault, or without proof
}

func (g *gpuSide) reset(r *segments.Registration) {
	g.memory, g.ending, g.broken = nil, false, false
	if r != nil {
		g.memory = flows.MemoryOf(r)
	}
}

// start begins the flow.
func (g *gpuSide) start(lane *lanes.Lane, user flows.User, p flows.Plan) *lanes.Fault {
	g.ending, g.broken = false, false
	p.Memory = g.memory
	return g.flow.Start(flows.Of(lane), user, p)
}

// look ends a flow that is whole; Ended of its user follows. One that cannot go on is ended once the devices are done.
func (g *gpuSide) look() {
	if g.flow.Active() && g.flow.Fault() == nil && g.flow.Whole() {
		g.stop()
	}
}

// stop ends a flow; the devices are done with its chunks, and copies under way are waited for. True: Ended of its user is
// still to come.
func (g *gpuSide) stop() bool {
	if g.flow.Active() && !g.ending {
		g.ending = true
		g.flow.End()
	}
	return g.flow.Active()
}

// failed is true exactly when a copy has failed.
func (g *gpuSide) failed() bool { return g.broken || g.flow.Active() && g.flow.Fault() != nil }

// ready says why a lane cannot copy from or to the memory behind a registration; nil: it can, or it is host memory.
func (g *gpuSide) ready(lane *lanes.Lane, r *segments.Registration, role flows.Role) *lanes.Fault {
	if !flows.OnDevice(r) {
		return nil
	}
	return flows.Of(lane).Ready(g.memory, role)
}

// wirePart is a part of a transfer's flow that is with the devices, or about to be.
type wirePart struct {
	part   flows.Part
	on     bool
	posted uint64 // bytes of which work was posted
	flying int    // work requests
}

// chunked is true exactly when the transfer's range is on a GPU, and staged.
func (t *Transfer) chunked() bool { return t.gpu.memory != nil && t.staged() }

// flow begins the copies, once the source has granted everything: whoever waits for a chunk keeps none from others, and
// whoever has one needs nothing but the devices.
func (t *Transfer) flow() {
	p := flows.Plan{Role: flows.Requester, Way: flows.Out, Address: t.Local.Address() + t.LocalOffset, Length: t.Length, Deadline: t.Deadline}
	if t.Direction == lanes.Read {
		p.Way = flows.In
	}
	t.parts = [flows.PartsMax]wirePart{}
	if f := t.gpu.start(t.rails.lane, (*transferCopy)(t), p); f != nil {
		t.fail(f)
		return
	}
	t.draw()
}

// draw takes the parts that are ready.
func (t *Transfer) draw() {
	for i := range t.parts {
		x := &t.parts[i]
		if x.on || t.machine.stage != transferMoving {
			continue
		}
		part, ok := t.gpu.flow.Take()
		if !ok {
			return
		}
		*x = wirePart{part: part, on: true}
	}
}

// holding is the part that has a byte of the transfer; -1: none has it now.
func (t *Transfer) holding(offset uint64) int {
	for i := range t.parts {
		if x := &t.parts[i]; x.on && offset >= x.part.Offset() && offset-x.part.Offset() < x.part.Length() {
			return i
		}
	}
	return -1
}

// place is where the next payload of a slice is, and how much of it one work request can have: of a chunk, if the range is
// on a GPU.
func (t *Transfer) place(l *leg, p *parcel) (address uint64, key verbs.LocalKey, n uint64, part int) {
	n = min(p.length-p.posted, l.chunk)
	offset := p.offset + p.posted
	if !t.chunked() {
		return l.address + offset, l.local, n, 0
	}
	part = t.holding(offset)
	x := &t.parts[part].part
	within := offset - x.Offset()
	key = t.rails.chunkRegion(l.rail, flows.Requester, x.Chunk()).LocalKey()
	return x.Address() + within, key, min(n, x.Length()-within), part
}

// upcoming says what a slice may post now: payload only with the part that has it.
func (t *Transfer) upcoming(slice int) parcelWork {
	what := t.machine.next(slice)
	if p := &t.machine.parcels[slice]; what == workPayload && t.chunked() && t.holding(p.offset+p.posted) < 0 {
		return workNone
	}
	return what
}

// carried takes the end of one piece of payload work on a part. The last one gives the chunk to what comes next (WRITE), or
// to the GPU (READ).
func (t *Transfer) carried(part int, ok bool) {
	x := &t.parts[part]
	x.flying--
	if !ok || x.flying > 0 || x.posted < x.part.Length() || t.machine.stage != transferMoving {
		return
	}
	p := x.part
	*x = wirePart{}
	t.gpu.flow.Through(p)
	if fault := t.gpu.flow.Fault(); fault != nil {
		t.fail(fault)
		return
	}
	t.gpu.look()
	t.draw()
	t.feed()
}

// landed ends a READ whose source has its part, once every copy has ended, or one has failed; else Ended does.
func (t *Transfer) landed() {
	t.machine.stage = transferCommit
	if t.gpu.look(); t.gpu.failed() {
		t.gpu.stop()
	}
	if t.machine.stage == transferCommit && !t.gpu.flow.Active() {
		t.settle()
	}
}

// unflow ends the flow of a transfer whose devices are done with all slices, or never will be proven to be; true: it goes
// on a little.
func (t *Transfer) unflow() bool {
	if t.gpu.flow.Active() && !t.gpu.ending && t.machine.kept() {
		t.rails.upper.chunks.keep(flows.Requester, t.gpu.flow.Lose(errNoProof))
	}
	return t.gpu.stop()
}

// transferCopy is a transfer as the user of its flow.
type transferCopy Transfer

// Advanced posts what can be posted now (flows.User).
func (x *transferCopy) Advanced(f *flows.Flow) {
	t := (*Transfer)(x)
	switch fault := f.Fault(); {
	case t.machine.stage == transferCommit && fault != nil: // the devices are done
		t.gpu.stop()
		return
	case t.machine.stage >= transferHalting:
	case fault != nil:
		t.fail(fault)
		return
	default:
		if t.machine.stage == transferMoving {
			t.draw()
			t.feed()
		}
		t.gpu.look()
	}
	t.advance()
}

// Ended goes on with what the copies were for (flows.User). Only a copy towards the GPU may have changed the local range.
func (x *transferCopy) Ended(f *flows.Flow, proven bool) {
	t := (*Transfer)(x)
	m := &t.machine
	m.changed = m.changed || f.Touched()
	t.gpu.broken = !proven || f.Fault() != nil
	if !proven {
		if m.kept() { // by a device too, of which nobody brings a proof
			f.Keep(t.Local)
		} else {
			t.late = &remains{}
			f.KeepUntil(t.late.giveBack)
		}
		m.unproven = true
	} else if t.lease.Held() {
		t.lease.Return() // proof: the events behind all copies
	}
	if fault := f.Fault(); fault != nil {
		m.fail(fault)
	}
	if m.stage != transferCommit {
		t.advance()
		return
	}
	m.committed = !t.gpu.broken
	t.settle()
}

// parentCopy is a parent as the user of its flow.
type parentCopy parent

// Advanced (flows.User).
func (x *parentCopy) Advanced(f *flows.Flow) {
	p := (*parent)(x)
	if fault := f.Fault(); fault != nil {
		p.fail(copyStatus(fault))
	} else {
		p.gpu.look()
	}
	p.advance()
}

// Ended (flows.User).
func (x *parentCopy) Ended(f *flows.Flow, proven bool) {
	p := (*parent)(x)
	p.gpu.broken = !proven || f.Fault() != nil
	if !proven {
		if _, known := p.machine.quiet(); !known { // of a device too, of which nobody brings a proof
			f.Keep(p.registration)
		} else {
			p.late = &grantRemains{}
			f.KeepUntil(p.late.giveBack)
		}
		p.machine.unproven = true
	} else if p.lease.Held() {
		p.lease.Return() // proof: the events behind all copies
	}
	if fault := f.Fault(); fault != nil {
		p.fail(copyStatus(fault))
	}
	p.advance()
}

// copyStatus is what the requester is told of a copy that failed.
func copyStatus(f *lanes.Fault) netproto.Status {
	switch f.Cause {
	case lanes.Exhausted, lanes.Deadline: // of the waiting for a place; nothing was copied
		return netproto.StatusExhausted
	case lanes.Closed:
		return netproto.StatusSourceClosed
	}
	return netproto.StatusNativeError // the internal one says that a deadline passed (statusDeadline)
}

// chunked is true exactly when the parent's range is on a GPU, and staged.
func (p *parent) chunked() bool { return p.gpu.memory != nil && p.staged() }

// chunkPatience is how long grants wait for a chunk at most before they are refused, and asked for again. Meanwhile they keep a
// handler and, since answers go out in order, a place on their stream: they may keep the word back of a requester that has
// given up and whose grants have the chunk.
const chunkPatience = 250 * time.Millisecond

// lineUp takes the parent's place in the line for chunks, before anything else is waited for. A stream's answers go out in the
// order of its questions: a parent that got its chunk before one that was asked for earlier could keep it with an answer that
// waits for the other one's, which needs a chunk.
func (p *parent) lineUp() {
	lane := p.source.rails.lane
	by := min(p.deadline, lane.Now().After(chunkPatience))
	plan := flows.Plan{Role: flows.Source, Way: flows.Out, Address: p.registration.Address() + p.offset, Length: p.length, Deadline: by}
	if p.write {
		plan.Way = flows.In
	}
	if f := p.gpu.start(lane, (*parentCopy)(p), plan); f != nil {
		p.fail(copyStatus(f))
	}
}

// fillChunk takes the parent's chunk, when it is its turn: with the range's bytes for a READ, and clear of what others left for
// a WRITE. True: windows may be bound in it.
func (p *parent) fillChunk() bool {
	part, ok := p.gpu.flow.Take()
	if !ok {
		return false
	}
	p.part = part
	if p.write {
		part.Clear(flows.Tenant(p.request.Requester))
	} else {
		p.lease.Return() // proof: the event behind the copy
	}
	return true
}

// through goes on with the chunk of a parent whose keys have all ended: its bytes go to the GPU, before the requester says
// that it is done, since whoever waits for the range, or for a chunk, may keep that word from coming. A requester ends no
// key of such a WRITE before its payload is here (transferMachine.next).
func (p *parent) through() {
	p.gpu.flow.Through(p.part)
	p.part = flows.Part{}
	if fault := p.gpu.flow.Fault(); fault != nil {
		p.fail(copyStatus(fault))
		return
	}
	p.gpu.look()
}

// unflow ends the flow of a parent that gives no authority any more, or is not proven to; true: it goes on a little.
func (p *parent) unflow(known bool) bool {
	if p.gpu.flow.Active() && !p.gpu.ending && !known {
		p.source.rails.upper.chunks.keep(flows.Source, p.gpu.flow.Lose(errNoProof))
	}
	return p.gpu.stop()
}

// staged is true exactly when the range of a parent is served through staging (SPEC R-6).
func (p *parent) staged() bool {
	c := &p.source.rails.transport.config
	if flows.OnDevice(p.registration) {
		return c.Device == DeviceStaged
	}
	return c.Host == netproto.HostStaged
}
