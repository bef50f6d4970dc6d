package rdma

import (
	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/lanes"
	flows "github.com/orbitte/orbitte/lanes/staging"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
)

// DevicePolicy says how memory on GPUs is served. Each side of a transfer chooses for itself (SPEC R-6).
type DevicePolicy uint8

const (
	// DeviceStaged copies between the GPU and private registered memory, which is pinned in the CUDA driver.
	DeviceStaged DevicePolicy = iota
	// DeviceDirect lets the network device reach the GPU's memory itself (GPUDirect; SPEC C-6, C-7).
	DeviceDirect
)

// gpuSide is what a transfer, or a parent, has when its range is on a GPU: the memory, and the copy between it and the
// staging. One copy at a time, of the whole range; the lane hears of its end by lanes/staging.
type gpuSide struct {
	memory *cuda.Memory // nil: host memory
	flow   flows.Flow
	ending bool // true exactly when the copy was told to end
	copied bool // true exactly from the proven end of a whole copy until the next begins
}

func (g *gpuSide) reset(r *segments.Registration) {
	g.memory, g.copied = nil, false
	if r != nil {
		g.memory = flows.MemoryOf(r)
	}
}

// start begins the copy between the staging and the range that begins at device; in: towards the GPU.
func (g *gpuSide) start(lane *lanes.Lane, user flows.User, s *staging, device uint64, in bool, deadline reactor.Instant) *lanes.Fault {
	g.copied, g.ending = false, false
	p := flows.Plan{Way: flows.Across, Memory: g.memory, Partner: s.pinned, Length: s.length, Deadline: deadline}
	p.Address, p.From = s.backing.Address(), device
	if in {
		p.Address, p.From = p.From, p.Address
	}
	return g.flow.Start(flows.Of(lane), user, p)
}

// look ends a copy that is whole, or that cannot go on; Ended of its user follows.
func (g *gpuSide) look() {
	if g.flow.Fault() != nil || g.flow.Whole() {
		g.stop()
	}
}

// stop ends a copy early; what is under way is waited for. True: Ended of its user is still to come.
func (g *gpuSide) stop() bool {
	if g.flow.Active() && !g.ending {
		g.ending = true
		g.flow.End()
	}
	return g.flow.Active()
}

// ready says why a lane cannot copy from or to the memory behind a registration; nil: it can, or it is host memory.
func (g *gpuSide) ready(lane *lanes.Lane, r *segments.Registration) *lanes.Fault {
	if !flows.OnDevice(r) {
		return nil
	}
	return flows.Of(lane).Ready(g.memory, flows.Devices)
}

// transferCopy is a transfer as the user of its copy.
type transferCopy Transfer

// Advanced (flows.User).
func (x *transferCopy) Advanced(*flows.Flow) { x.gpu.look() }

// Ended goes on with what the copy was for (flows.User). Only a copy towards the GPU may have changed the local range.
func (x *transferCopy) Ended(f *flows.Flow, proven bool) {
	t := (*Transfer)(x)
	m, fault := &t.machine, f.Fault()
	if !proven {
		m.unproven = true
		f.Keep(t.staging, t.Local)
	}
	if m.stage != transferCommit {
		switch {
		case fault != nil:
			t.fail(fault)
		case f.Whole() && m.stage == transferLeasing:
			t.lease.Return() // proof: the event behind the copy
			t.filled = true
			t.ask()
		}
		t.advance()
		return
	}
	if m.changed = f.Touched(); fault != nil {
		m.fail(fault)
	} else {
		m.committed = true
	}
	t.settle()
}

// fill copies the local range from the GPU into the staging of a WRITE.
func (t *Transfer) fill() {
	t.copyLocal(false, t.fail)
}

// land copies a complete READ from the staging to the GPU.
func (t *Transfer) land() {
	t.copyLocal(true, func(f *lanes.Fault) {
		t.machine.fail(f)
		t.settle()
	})
}

func (t *Transfer) copyLocal(in bool, refused func(*lanes.Fault)) {
	if t.gpu.flow.Active() {
		return
	}
	if f := t.gpu.start(t.rails.lane, (*transferCopy)(t), t.staging, t.Local.Address()+t.LocalOffset, in, t.Deadline); f != nil {
		refused(f)
	}
}

// parentCopy is a parent as the user of its copy.
type parentCopy parent

// Advanced (flows.User).
func (x *parentCopy) Advanced(*flows.Flow) { x.gpu.look() }

// Ended (flows.User).
func (x *parentCopy) Ended(f *flows.Flow, proven bool) {
	p := (*parent)(x)
	if !proven {
		p.machine.unproven = true
		f.Keep(p.staging, p.registration)
	}
	p.gpu.copied = f.Fault() == nil && f.Whole()
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

// touchDevice is touch for a range on a GPU; the lease is held.
func (p *parent) touchDevice() bool {
	switch {
	case p.gpu.copied:
		p.gpu.copied = false
		p.lease.Return() // proof: the event behind the copy
		return true
	case p.gpu.flow.Active():
		return false
	}
	lane := p.source.rails.lane
	deadline := p.deadline
	if p.write { // a commit outlives the source's deadline; it waits for a place as long as others copy
		deadline = lane.Now().After(CleanupWindow)
	}
	if f := p.gpu.start(lane, (*parentCopy)(p), p.staging, p.registration.Address()+p.offset, p.write, deadline); f != nil {
		p.fail(copyStatus(f))
	}
	return false
}

// staged is true exactly when the range of a parent is served through staging (SPEC R-6).
func (p *parent) staged() bool {
	c := &p.source.rails.transport.config
	if flows.OnDevice(p.registration) {
		return c.Device == DeviceStaged
	}
	return c.Host == netproto.HostStaged
}
