package rdma

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/verbs"
)

// view is what one registration is about: which bytes, whether peers may reach them through windows, and whether nobody
// else does: a slot is no local side of transfers, and its bytes are charged as pinned staging.
type view struct {
	address, length uint64
	remote, slot    bool
}

// cache holds the registrations that are not retired, by view (SPEC R-7). Register and Retire belong to one goroutine at
// a time, the root's lock sees to that.
type cache struct {
	transport *Transport
	byView    map[view]*Registered
	all       atomic.Int64 // registrations whose regions are not all proven gone
}

func (c *cache) open(t *Transport) { c.transport, c.byView = t, map[view]*Registered{} }

// piece is one memory region with what is charged for it.
type piece struct {
	region       *verbs.MemoryRegion // nil: not made, or proven gone
	count, bytes budgets.Charge
}

// copies are the regions of one view on one device.
type copies struct {
	device        *Device
	local, parent piece // nothing in parent for a view that is local only
}

// retiredBit marks a registration that takes no new users; the other bits count them.
const retiredBit = 1 << 62

// Registered is one view of memory, registered on every usable device (SPEC R-5). Its memory stays mapped until done of
// Retire was called with nil.
//
//	active ──Retire──▶ retired ──last user returned──▶ being deregistered (cold loop) ──▶ gone, or retained
type Registered struct {
	view   view
	copies []copies
	byNIC  [netproto.PathsMax]*copies
	cache  *cache
	gpu    *cuda.Memory // that the view is of; nil: host memory
	way    DeviceWay    // how devices reach it; it does not change once the view is registered
	refs   int          // Register calls that share it
	uses   atomic.Int64 // users, and retiredBit
	done   func(error)
	letter reactor.Letter
}

// RollbackError says that a registration failed, and that some of what it had made could not be taken back: the memory
// must stay mapped for good, and what is charged for the rest stays charged (SPEC R-5).
type RollbackError struct {
	Err  error // why the registration failed
	Kept int   // memory regions that are left
	Why  error // why the first of them is
}

func (e *RollbackError) Error() string {
	return fmt.Sprintf("registering failed (%v) and %d memory regions could not be taken back (%v): the memory stays registered and has to stay mapped until the process ends", e.Err, e.Kept, e.Why)
}

// Unwrap gives both reasons.
func (e *RollbackError) Unwrap() []error { return []error{e.Err, e.Why} }

// Register registers memory on every usable device, paused ones included: all or nothing. A remote view gets a second
// region on each, the parent of windows; no key of a parent is ever exported. A view that is registered already is
// shared: each Register is paired with one Retire. The errors: *budgets.Exhausted, the
// library's, *RollbackError. One goroutine at a time; slow.
func (t *Transport) Register(address, length uint64, remote bool) (*Registered, error) {
	return t.register(view{address: address, length: length, remote: remote}, nil)
}

// RegisterSlot registers pinned staging memory that peers direct (SPEC C-8), with the parents of its windows only. Its
// bytes and their number are charged where they were allocated. Otherwise as Register.
func (t *Transport) RegisterSlot(address, length uint64) (*Registered, error) {
	return t.register(view{address: address, length: length, remote: true, slot: true}, nil)
}

func (t *Transport) register(v view, gpu *cuda.Memory) (*Registered, error) {
	if t.state.Load() != uint32(transportOpen) {
		return nil, ErrClosed
	}
	if g := t.cache.byView[v]; g != nil {
		g.refs++
		return g, nil
	}
	g := &Registered{view: v, cache: &t.cache, refs: 1, gpu: gpu}
	var usable []*Device
	for _, d := range t.devices {
		if state, _ := d.State(); state != verbs.Fenced {
			usable = append(usable, d)
		}
	}
	if err := g.charge(usable); err != nil {
		return nil, err
	}
	t.cache.all.Add(1)
	for i := range g.copies {
		if err := g.register(&g.copies[i]); err != nil {
			return nil, g.rollback(err)
		}
	}
	for i := range g.copies {
		g.byNIC[g.copies[i].device.NIC] = &g.copies[i]
	}
	t.cache.byView[v] = g
	return g, nil
}

// charge takes what all regions will cost, before the first is made.
func (g *Registered) charge(devices []*Device) error {
	g.copies = make([]copies, len(devices))
	for i, d := range devices {
		c := &g.copies[i]
		if c.device = d; g.view.slot {
			continue
		}
		err := g.chargePiece(&c.local)
		if err == nil && g.parented(d) {
			err = g.chargePiece(&c.parent)
		}
		if err != nil {
			g.repay() // nothing was made
			return err
		}
	}
	return nil
}

// parented is true exactly when the view has a parent of windows on the device.
func (g *Registered) parented(d *Device) bool { return g.view.remote && d.NoSource == nil }

func (g *Registered) chargePiece(p *piece) (err error) {
	b := &g.cache.transport.config.Budgets
	if p.count, err = b.CachedRegions.Take(1); err != nil {
		return err
	}
	p.bytes, err = b.CachedBytes.Take(int64(min(g.view.length, 1<<62)))
	return err
}

func (g *Registered) register(c *copies) (err error) {
	domain := c.device.Domain
	if g.gpu != nil {
		c.local.region, err = g.reach(domain, g.view.address, g.view.length, verbs.AccessLocalWrite)
		return err
	}
	if !g.view.slot {
		c.local.region, err = domain.Register(g.view.address, g.view.length, verbs.AccessLocalWrite)
	}
	if err == nil && g.parented(c.device) {
		c.parent.region, err = domain.Register(g.view.address, g.view.length, verbs.AccessLocalWrite|verbs.AccessWindowBind)
	}
	return err
}

// rollback takes back what a failed registration made.
func (g *Registered) rollback(err error) error {
	kept, why := g.deregister()
	if kept == 0 {
		return err
	}
	if g.gpu != nil {
		g.gpu.Retain(why)
	}
	return &RollbackError{Err: err, Kept: kept, Why: why}
}

// deregister ends all regions and repays what is proven gone.
func (g *Registered) deregister() (kept int, first error) {
	for i := range g.copies {
		c := &g.copies[i]
		for _, p := range [...]*piece{&c.parent, &c.local} {
			if p.region == nil {
				continue
			}
			if err := p.region.Destroy(); err != nil {
				kept++
				if first == nil {
					first = err
				}
				continue
			}
			p.region = nil // proof: deregistered
		}
	}
	g.repay()
	if kept == 0 {
		g.cache.all.Add(-1)
	}
	return kept, first
}

// repay gives back the charges of all pieces that have no region. Proof: it was deregistered, or never made.
func (g *Registered) repay() {
	for i := range g.copies {
		c := &g.copies[i]
		for _, p := range [...]*piece{&c.parent, &c.local} {
			if p.region != nil {
				continue
			}
			if p.count.Held() {
				p.count.Repay()
			}
			if p.bytes.Held() {
				p.bytes.Repay()
			}
		}
	}
}

// On returns the regions on one device; nil: the view has none there, since the device was not usable. Parent is nil for
// a view that is local only, and on a device that makes no grants; local is nil for a slot.
func (g *Registered) On(nic uint8) (local, parent *verbs.MemoryRegion) {
	if int(nic) >= len(g.byNIC) || g.byNIC[nic] == nil {
		return nil, nil
	}
	return g.byNIC[nic].local.region, g.byNIC[nic].parent.region
}

// Range is what is registered.
func (g *Registered) Range() (address, length uint64) { return g.view.address, g.view.length }

// Lend adds a user: a transfer or a grant. False: it is retired. Any lane; it allocates nothing.
func (g *Registered) Lend() bool {
	for {
		uses := g.uses.Load()
		if uses&retiredBit != 0 {
			return false
		}
		if g.uses.CompareAndSwap(uses, uses+1) {
			return true
		}
	}
}

// Return ends one use. The caller has the proof that no device touches the memory on its behalf any more; one that has
// not keeps its use for good. Any lane.
func (g *Registered) Return() {
	switch left := g.uses.Add(-1); {
	case left == retiredBit:
		g.leave()
	case left < 0 || left == retiredBit-1:
		panic("rdma: Return of a registration with 0 users, want 1 or more")
	}
}

// Uses is how many users it has.
func (g *Registered) Uses() int64 { return g.uses.Load() &^ retiredBit }

// Retire ends one Register. The last one hides the view at once; when its last user has returned, its regions are
// deregistered on the cold loop, and done is called there: with nil when the device can no longer reach the memory,
// otherwise with the reason why it has to stay mapped for good. Earlier ones call done with nil at once: others keep the
// view. One goroutine at a time, as with Register.
func (g *Registered) Retire(done func(error)) {
	if g.refs--; g.refs < 0 {
		panic(fmt.Sprintf("rdma: Retire of a registration with %d references, want 1 or more", g.refs+1))
	}
	if g.refs > 0 {
		done(nil)
		return
	}
	delete(g.cache.byView, g.view)
	g.done = done
	if g.uses.Or(retiredBit) == 0 {
		g.leave()
	}
}

// leave sends the registration to its end.
func (g *Registered) leave() {
	if err := g.cache.transport.config.Cold.Post(&g.letter, g); err != nil {
		panic("rdma: the cold loop is closed, want open until the transport is closed: " + err.Error())
	}
}

// Receive deregisters, on the cold loop (reactor.Recipient).
func (g *Registered) Receive(*reactor.Letter, reactor.Instant) {
	_, err := g.deregister()
	g.done(err)
}

// errLent says that the transport was closed with registrations that are not retired, or still lent.
var errLent = errors.New("rdma: memory registrations are left: they are not retired, or still in use; their domains stay open")

// end says whether registrations are left when the transport closes.
func (c *cache) end() error {
	if c.all.Load() > 0 {
		return errLent
	}
	return nil
}
