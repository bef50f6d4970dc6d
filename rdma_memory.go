package orbitte

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes/rdma"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
)

// nativeMemory is what one registration has on the devices. It holds the memory object until the devices are proven unable
// to reach it: memory that a device may still write is never unmapped (field case F-56).
//
//	live ──registration ended, or the engine closes──▶ retiring ──deregistered──▶ gone
//	                                                      └──refused──▶ kept, for good
type nativeMemory struct {
	letter       reactor.Letter
	part         *rdmaPart
	registration *segments.Registration
	registered   *rdma.Registered
	backing      *segments.Backing
	what         string  // for reports
	ending       *ending // set before the letter is posted

	state   nativeState // this and what follows is guarded by memoryBook.mu
	waiting *ending     // who is told of the end; nil: nobody yet
	err     error       // why it is kept
}

type nativeState uint8

const (
	nativeLive nativeState = iota
	nativeRetiring
	nativeGone
	nativeKept
)

// memoryBook lists what is registered with the devices. Its lock is held for a few lines only.
type memoryBook struct {
	mu     sync.Mutex
	live   map[*nativeMemory]struct{} // states live and retiring
	queue  []*nativeMemory            // to be retired by whoever has rdmaPart.native
	all    func()                     // retire everything, then call it; nil: not asked
	closed bool                       // true exactly when no registration is taken any more
	lost   []*nativeMemory            // kept
}

// prepare registers the ranges with every device, before they are visible (SPEC R-5). A failure leaves what was before; the
// answer then names the range, and what has to be waited for until that is so.
func (p *rdmaPart) prepare(fresh []*segments.Registration) (failed int, undone []*ending, err error) {
	if err := p.preflight(fresh); err != nil {
		return 0, nil, err
	}
	before := [...]int64{p.budgets.CachedRegions.Used(), p.budgets.CachedBytes.Used()}
	p.native.Lock()
	for i, r := range fresh {
		if !p.registers(r.Backing()) { // what is staged is no device's to reach
			continue
		}
		if err = p.register(r); err != nil {
			undone = p.undo(fresh[:i])
			failed = i
			break
		}
	}
	p.native.Unlock()
	p.drain()
	return failed, undone, p.inAll(err, fresh, before)
}

// copiesError is a budget of memory regions that a registration does not fit, with all copies of the whole call; in use is
// what others had.
type copiesError struct {
	*budgets.Exhausted
	ranges, devices int
}

// Unwrap gives the budget to errors.As.
func (e *copiesError) Unwrap() error { return e.Exhausted }

// inAll restates the refusal of one copy as one of the whole call, whose earlier copies it would count as in use.
func (p *rdmaPart) inAll(err error, fresh []*segments.Registration, before [2]int64) error {
	var own *budgets.Exhausted
	if !errors.As(err, &own) {
		return err
	}
	devices := len(p.transport.Devices())
	whole, ranges, size := *own, 0, int64(0)
	whole.Asked = 0
	switch own.Budget {
	case p.budgets.CachedRegions.Name():
		whole.Used = before[0]
	case p.budgets.CachedBytes.Name():
		whole.Used = before[1]
	default:
		return err
	}
	for _, r := range fresh {
		if !p.registers(r.Backing()) {
			continue
		}
		if size = 1; own.Budget == p.budgets.CachedBytes.Name() {
			size = int64(r.Length())
		}
		ranges++
		whole.Asked += size * int64(devices) * p.copies(r)
	}
	return &copiesError{&whole, ranges, devices}
}

// copies is how many memory regions a registration has on each device (SPEC R-5).
func (p *rdmaPart) copies(r *segments.Registration) int64 {
	if r.Permission() != LocalOnly && r.Backing().Kind() != segments.Device {
		return 2
	}
	return 1
}

// preflight asks the library whether so much more may be locked, before the first page is pinned (field case F-62). A
// library that cannot tell decides at each registration.
func (p *rdmaPart) preflight(fresh []*segments.Registration) error {
	bytes := uint64(0)
	for _, r := range fresh {
		if r.Backing().Kind() == segments.Device || !p.registers(r.Backing()) { // no page of the host's is locked
			continue
		}
		bytes += r.Length() * uint64(len(p.transport.Devices())) * uint64(p.copies(r))
	}
	return p.locks(bytes)
}

// locks asks the library whether so many bytes more may be locked.
func (p *rdmaPart) locks(bytes uint64) error {
	if library, able := p.engine.config.Verbs.(interface{ Preflight(bytes uint64) error }); able {
		return library.Preflight(bytes)
	}
	return nil
}

// register attaches the native registration. The caller has p.native.
func (p *rdmaPart) register(r *segments.Registration) error { return p.registerBy(r, p.reach) }

func (p *rdmaPart) registerBy(r *segments.Registration, reach func(*segments.Registration) (*rdma.Registered, error)) error {
	if p.memory.isClosed() {
		return &Error{Index: -1, Class: ErrClosed}
	}
	m := &nativeMemory{part: p, registration: r, backing: r.Backing(), what: r.Range().String()}
	registered, err := reach(r)
	if err != nil {
		var left *rdma.RollbackError
		if errors.As(err, &left) {
			m.backing.Hold() // for good
			p.memory.keep(m, err)
		}
		return err
	}
	m.registered = registered
	m.backing.Hold()
	r.Attach(registered)
	p.memory.add(m)
	p.engine.ended.Store(r, &ending{done: make(chan struct{}), native: m})
	return nil
}

// undo takes back what was registered of a batch that failed; the endings are to be waited for. The caller has p.native.
func (p *rdmaPart) undo(fresh []*segments.Registration) (undone []*ending) {
	for _, r := range fresh {
		entry, attached := p.engine.ended.LoadAndDelete(r)
		if !attached {
			continue
		}
		w := entry.(*ending)
		r.Attach(nil)
		w.native.tell(w)
		w.native.retire()
		undone = append(undone, w)
	}
	return undone
}

// end follows the end of the registration, on whatever thread it came. The devices end on the slow loop; when that has
// ended, they have.
func (m *nativeMemory) end(w *ending) {
	m.ending = w
	if m.part.nudge.Post(&m.letter, m) != nil {
		m.tell(w)
	}
}

// Receive retires it, on the slow loop (reactor.Recipient).
func (m *nativeMemory) Receive(*reactor.Letter, reactor.Instant) {
	m.tell(m.ending)
	m.part.memory.enqueue(m)
	m.part.drain()
}

// retire ends the native registration when its last user has returned. The caller has p.native.
func (m *nativeMemory) retire() {
	if m.part.memory.move(m, nativeLive, nativeRetiring) {
		m.registered.Retire(m.deregistered)
	}
}

// deregistered is called once, on the slow loop, or inside Retire when others share the native registration.
func (m *nativeMemory) deregistered(err error) {
	w := m.part.memory.over(m, err)
	if err == nil {
		m.backing.Drop() // proof: no device can reach it any more
	}
	if w != nil {
		w.over(m.part.engine, err)
	}
}

// tell lets w hear of the end, now if it has come.
func (m *nativeMemory) tell(w *ending) {
	if over, err := m.part.memory.await(m, w); over {
		w.over(m.part.engine, err)
	}
}

// drain retires what waits for it, unless somebody registers just now: who does so drains afterwards.
func (p *rdmaPart) drain() {
	for p.native.TryLock() {
		queue, all := p.memory.take()
		for _, m := range queue {
			m.retire()
		}
		p.native.Unlock()
		if all != nil {
			all()
		}
		if p.memory.idle() {
			return
		}
	}
}

// retireAll retires everything and takes nothing more; then it calls done. What is lent to work that is not proven quiet
// stays registered for good.
func (p *rdmaPart) retireAll(done func()) {
	p.memory.close(done)
	p.drain()
}

func (b *memoryBook) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

func (b *memoryBook) add(m *nativeMemory) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.live == nil {
		b.live = map[*nativeMemory]struct{}{}
	}
	b.live[m] = struct{}{}
}

// keep notes memory that a device may reach for good.
func (b *memoryBook) keep(m *nativeMemory, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.live, m)
	m.state, m.err = nativeKept, err
	b.lost = append(b.lost, m)
}

// over notes the end and says who is told.
func (b *memoryBook) over(m *nativeMemory, err error) *ending {
	if err != nil {
		b.keep(m, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		delete(b.live, m)
		m.state = nativeGone
	}
	w := m.waiting
	m.waiting = nil
	return w
}

// await makes w the one who is told, unless the end has come.
func (b *memoryBook) await(m *nativeMemory, w *ending) (over bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m.state == nativeGone || m.state == nativeKept {
		return true, m.err
	}
	m.waiting = w
	return false, nil
}

func (b *memoryBook) move(m *nativeMemory, from, to nativeState) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m.state != from {
		return false
	}
	m.state = to
	return true
}

func (b *memoryBook) enqueue(m *nativeMemory) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queue = append(b.queue, m)
}

func (b *memoryBook) close(done func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all, b.closed = done, true
}

// take hands out what is to be retired, and what is to be called afterwards. Everything is retired when the book is
// closed, in the order of addresses, so that the steps can be repeated.
func (b *memoryBook) take() (queue []*nativeMemory, all func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	queue, all = b.queue, b.all
	b.queue, b.all = nil, nil
	if all == nil {
		return queue, nil
	}
	for m := range b.live {
		if m.state == nativeLive && m.registration.Loans() > 0 { // of work that has ended without a proof
			m.state, m.err = nativeKept, errStillLent
			b.lost = append(b.lost, m)
			delete(b.live, m)
			continue
		}
		queue = append(queue, m)
	}
	slices.SortFunc(queue, func(a, b *nativeMemory) int {
		return cmp.Or(cmp.Compare(a.registration.Address(), b.registration.Address()), cmp.Compare(a.registration.ID(), b.registration.ID()))
	})
	return queue, all
}

func (b *memoryBook) idle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue) == 0 && b.all == nil
}

// kept lists the memory that devices may reach for good.
func (b *memoryBook) kept() (list []Resource) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.lost {
		list = append(list, Resource{"RDMA registration", m.what, m.err.Error()})
	}
	return list
}

var errStillLent = errors.New("work that is not proven quiet uses it, so it stays registered and mapped")

// awaitAll waits for endings, however long they take: they are a matter of native calls.
func (e *Engine) awaitAll(list []*ending) {
	for _, w := range list {
		_ = e.waitOn(context.Background(), w.done, e.rdma.slow.stopped) // a loop that ended by itself ends nothing more
	}
}
