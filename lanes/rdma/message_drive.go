package rdma

import (
	"sync/atomic"

	"github.com/orbitte/orbitte/lanes"
	flows "github.com/orbitte/orbitte/lanes/staging"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
	"github.com/orbitte/orbitte/verbs"
)

// Message slots are registered memory for bindings: one holds a binding that is being sent, or is a receive's. They are
// cut from slabs, which a rail makes when it needs more and keeps until it ends. Their number is bounded by the receives
// that connections may have, and so by max_endpoints.
const (
	messageSlotBytes = 256
	messageSlabBytes = 64 << 10
	slotsPerSlab     = messageSlabBytes / messageSlotBytes
)

// slab is one registered run of slots.
type slab struct {
	backing *segments.Backing
	region  *verbs.MemoryRegion
	local   verbs.LocalKey
}

// stock is what one rail has ready for transfers and grants: free message slots, and idle windows with a fresh key.
type stock struct {
	slabs   []*slab
	free    []int32
	windows []*verbs.MemoryWindow
	spent   []*verbs.MemoryWindow // idle without a fresh key: the next errand parks them (SPEC R-12)
}

func (k *stock) take() int32 {
	last := len(k.free) - 1
	slot := k.free[last]
	k.free = k.free[:last]
	return slot
}

// put takes a slot back. Proof: the completion of its work, or the end of its connection.
func (k *stock) put(slot int32) { k.free = append(k.free, slot) }

// bytes is a slot's memory, as much as one binding has.
func (k *stock) bytes(slot int32) []byte {
	at := int(slot) % slotsPerSlab * messageSlotBytes
	return k.slabs[slot/slotsPerSlab].backing.Bytes()[at : at+netproto.BindingSize : at+netproto.BindingSize]
}

// place is what a work request says of a slot.
func (k *stock) place(slot int32) (address uint64, key verbs.LocalKey) {
	s := k.slabs[slot/slotsPerSlab]
	return s.backing.Address() + uint64(slot)%slotsPerSlab*messageSlotBytes, s.local
}

func (k *stock) takeWindow() *verbs.MemoryWindow {
	last := len(k.windows) - 1
	w := k.windows[last]
	k.windows = k.windows[:last]
	return w
}

// putWindow takes an idle window back.
func (k *stock) putWindow(w *verbs.MemoryWindow) {
	if w.Reusable() {
		k.windows = append(k.windows, w)
	} else {
		k.spent = append(k.spent, w)
	}
}

// add puts a slab to use.
func (k *stock) add(s *slab) {
	first := int32(len(k.slabs) * slotsPerSlab)
	k.slabs = append(k.slabs, s)
	for i := range int32(slotsPerSlab) {
		k.free = append(k.free, first+i)
	}
}

// makeSlab is slow: it belongs on the cold loop.
func makeSlab(d *Device) (*slab, error) {
	backing, err := segments.Map(messageSlabBytes)
	if err != nil {
		return nil, err
	}
	region, err := d.Domain.Register(backing.Address(), messageSlabBytes, verbs.AccessLocalWrite)
	if err != nil {
		backing.Drop()
		return nil, err
	}
	return &slab{backing, region, region.LocalKey()}, nil
}

// end takes idle windows and slabs back, on the cold loop. Slots that are out belong to retained pairs: their slab stays
// registered and mapped.
func (k *stock) end(d *Device) {
	for _, w := range k.spent {
		d.Domain.Park(w)
	}
	for _, w := range k.windows {
		_ = w.Free() // a refusal is in the context's book
	}
	out := make([]int, len(k.slabs))
	for i := range out {
		out[i] = slotsPerSlab
	}
	for _, slot := range k.free {
		out[slot/slotsPerSlab]--
	}
	for i, s := range k.slabs {
		if out[i] > 0 {
			s.region.Lend()
			s.region.RetainUse() // never returned: the slots are with the device for good
		}
		if s.region.Destroy() == nil {
			s.backing.Drop() // proof: deregistered
		}
	}
	*k = stock{}
}

// need is what one rail has too little of. Its slices are empty while the errand is at home; they keep their memory, since
// a window's keys are used up every 255 grants and the next window's errand is part of the steady state.
type need struct {
	slots, windows             int // in all
	lackedSlots, lackedWindows int // when the errand left
	slabs                      []*slab
	made                       []*verbs.MemoryWindow
	spent                      []*verbs.MemoryWindow // to be parked
}

// provision brings a lane's rails what a transfer or a grant needs and cannot be had at once; the cold loop makes it. It
// is part of its owner and can be used again.
//
//	idle ──fetch──▶ away (cold loop) ──▶ idle: provisioned
//	                  └──no fresh index──▶ away (borrow) ──▶ idle: provisioned
type provision struct {
	errand  errand
	rails   *Rails
	needs   []need   // by position of the rail
	staging *staging // to be made; nil: none
	chunks  [2]bool  // roles whose pinned chunks are to be registered
	err     error
	owner   provisioned

	work func()                // make, once it was needed
	back func(reactor.Instant) // arrive, as work
}

// provisioned is told that an errand is back; what it brought is in the rails' stocks.
type provisioned interface{ provisioned(error) }

// begin forgets what was needed before.
func (p *provision) begin(r *Rails, owner provisioned) {
	p.rails, p.owner, p.staging, p.chunks, p.err = r, owner, nil, [2]bool{}, nil
	for len(p.needs) < len(r.rails) {
		p.needs = append(p.needs, need{})
	}
	for i := range p.needs {
		p.needs[i].slots, p.needs[i].windows = 0, 0
	}
}

// add says that a rail has to have so much more.
func (p *provision) add(rail *Rail, slots, windows int) {
	for i, r := range p.rails.rails {
		if r == rail {
			p.needs[i].slots += slots
			p.needs[i].windows += windows
		}
	}
}

// missing is true exactly when the stocks do not have all of it.
func (p *provision) missing() bool {
	for i, rail := range p.rails.rails {
		if n := &p.needs[i]; len(rail.stock.free) < n.slots || len(rail.stock.windows) < n.windows {
			return true
		}
	}
	for role, wanted := range p.chunks {
		if wanted && p.rails.upper.chunks.missing(flows.Role(role)) {
			return true
		}
	}
	return p.staging != nil && p.staging.backing == nil
}

// fetch sends the errand; provisioned follows.
func (p *provision) fetch() {
	r := p.rails
	r.pending++
	for i, rail := range r.rails {
		n, k := &p.needs[i], &rail.stock
		n.lackedSlots, n.lackedWindows = max(0, n.slots-len(k.free)), max(0, n.windows-len(k.windows))
		n.spent, k.spent = k.spent, n.spent
	}
	if p.work == nil {
		p.work, p.back = p.make, p.arrive
	}
	p.errand.send(r.transport.config.Cold, r.lane.Loop, p.work, p.back)
}

// make runs on the cold loop. What it has made when it fails comes home all the same.
func (p *provision) make() {
	for i, rail := range p.rails.rails {
		d, n := rail.Device, &p.needs[i]
		for _, w := range n.spent {
			d.Domain.Park(w)
		}
		for have := 0; have < n.lackedSlots && p.err == nil; have += slotsPerSlab {
			var s *slab
			if s, p.err = makeSlab(d); p.err == nil {
				n.slabs = append(n.slabs, s)
			}
		}
		for len(n.made) < n.lackedWindows && p.err == nil {
			var w *verbs.MemoryWindow
			if w, p.err = d.Domain.AllocateWindow(); p.err == nil {
				n.made = append(n.made, w)
			}
		}
	}
	if p.staging != nil && p.staging.backing == nil && p.err == nil {
		p.err = p.staging.make()
	}
	for role, wanted := range p.chunks {
		if wanted && p.err == nil {
			p.err = p.rails.upper.chunks.register(p.rails, flows.Role(role))
		}
	}
}

func (p *provision) arrive(reactor.Instant) {
	for i, rail := range p.rails.rails {
		n := &p.needs[i]
		for _, s := range n.slabs {
			rail.stock.add(s)
		}
		for _, w := range n.made {
			rail.stock.putWindow(w)
		}
		n.slabs, n.made, n.spent = emptied(n.slabs), emptied(n.made), emptied(n.spent)
	}
	for role := range p.chunks {
		x := &p.rails.upper.chunks.roles[role]
		x.ready = x.ready || p.chunks[role] && p.err == nil
	}
	if !p.borrows() {
		p.end()
	}
}

// emptied keeps the memory of a slice and nothing that it named.
func emptied[T any](s []T) []T {
	clear(s)
	return s[:0]
}

// end tells the owner.
func (p *provision) end() {
	p.rails.pending--
	p.owner.provisioned(p.err)
	p.rails.settle()
}

// windUp ends the stocks of a lane whose connections are gone, then closed is called.
func (r *Rails) windUp(closed func()) {
	u := &r.upper
	u.told = append(u.told, closed)
	if u.ending.away {
		return
	}
	tell := func() {
		told := u.told
		u.told = nil
		for _, f := range told {
			f()
		}
	}
	some := false
	for _, rail := range r.rails {
		some = some || len(rail.stock.slabs)+len(rail.stock.windows)+len(rail.stock.spent) > 0
	}
	some = some || len(u.chunks.roles[0].regions)+len(u.chunks.roles[1].regions) > 0
	if !some {
		tell()
		return
	}
	u.ending.send(r.transport.config.Cold, r.lane.Loop, func() {
		for _, rail := range r.rails {
			rail.stock.end(rail.Device)
		}
		u.chunks.end()
	}, func(reactor.Instant) {
		u.chunks.strand()
		tell()
	})
}

// upper is what transfers and grants share on one lane.
type upper struct {
	source      *GrantService
	first, last *Transfer // those that wait for receives of their peers, in order
	running     *Transfer // all that have begun and not ended
	turns       turnstile
	chunks      chunkBook
	extra       int // tracks of walks beyond the first of each
	sweeps      uint64
	borrowing   int  // provisions that look for windows on other lanes
	serving     bool // true exactly inside serve
	again       bool
	tiers       Tiers // towards memory whose node is not known
	tiered      bool
	ending      errand
	told        []func()     // who waits for it
	works       []verbs.Work // scratch of pump; nil while in use
	eaters      []*hunger
	receive     [1]verbs.ReceiveWork // scratch
}

// grantCounts are the transport's lifetime counts of transfers and grants.
type grantCounts struct {
	parents, generations                    atomic.Uint64 // last ones given out
	asked, granted, received, revoked       atomic.Uint64
	misses, retries, surrendered, abandoned atomic.Uint64
	violations, staged                      atomic.Uint64
	kept                                    atomic.Pointer[Residue]
	keptCount                               atomic.Int64
}

// GrantStats are lifetime counts of transfers and grants, read from any goroutine.
type GrantStats struct {
	Asked, Misses, Retries, Surrendered, Abandoned uint64 // requester: grants asked for, rebuilds after a cache miss, repeated questions after a refusal for lack of room, grants ended unused, parents given up
	Granted, Received, Revoked, Violations         uint64 // source: slices granted, ended by their receipt, revoked; messages that fit no grant
	Staged                                         uint64 // transfers and parents that went through staging
	Retained                                       int64  // what Residues lists
}

// GrantStats reads the counts.
func (t *Transport) GrantStats() GrantStats {
	c := &t.grants
	return GrantStats{
		Asked: c.asked.Load(), Misses: c.misses.Load(), Retries: c.retries.Load(), Surrendered: c.surrendered.Load(), Abandoned: c.abandoned.Load(),
		Granted: c.granted.Load(), Received: c.received.Load(), Revoked: c.revoked.Load(), Violations: c.violations.Load(),
		Staged: c.staged.Load(), Retained: c.keptCount.Load(),
	}
}

// Residue is what one transfer or grant keeps for good, because nobody can prove that the device is done with it: its
// leases, its memory and what was charged for it (SPEC G-9).
type Residue struct {
	Object string
	Bytes  uint64
	Reason error

	owner any // keeps it reachable
	older *Residue
}

// Residues lists them, the newest first; any goroutine.
func (t *Transport) Residues() (all []Residue) {
	for r := t.grants.kept.Load(); r != nil; r = r.older {
		all = append(all, Residue{Object: r.Object, Bytes: r.Bytes, Reason: r.Reason})
	}
	return all
}

func (t *Transport) keep(r *Residue) {
	for {
		r.older = t.grants.kept.Load()
		if t.grants.kept.CompareAndSwap(r.older, r) {
			t.grants.keptCount.Add(1)
			return
		}
	}
}

// generation is the next of a series that begins at a random place, so that nobody guesses the names of others.
func (t *Transport) generation(series *atomic.Uint64) uint64 {
	for {
		if now := series.Load(); now != 0 {
			return series.Add(1)
		}
		series.CompareAndSwap(0, t.identity()>>2|1)
	}
}

// tiersOf are the ways to memory; nil: its place is not known.
func (r *Rails) tiersOf(own *Tiers) *Tiers {
	if own != nil {
		return own
	}
	if !r.upper.tiered {
		r.upper.tiers, r.upper.tiered = r.transport.HostTiers(-1), true
	}
	return &r.upper.tiers
}

// faultOf words the failure of a connection for a transfer.
func faultOf(stage string, err error) *lanes.Fault {
	return fault(lanes.Disconnected, stage, err)
}
