package segments

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/netproto"
)

// crowd is 64 goroutines around one tracker: writers take turns as the engine's lock makes them, readers
// take no lock at all.
type crowd struct {
	turn     sync.Mutex
	tracker  *Tracker
	count    *budgets.Budget
	bytes    *budgets.Budget
	backings []*Backing
	ended    atomic.Int64
	made     atomic.Int64
	moved    atomic.Int64
	busy     atomic.Int64 // refused by another's lease
}

const crowdPages, crowdPage = 16, 256

// proves M-6, M-7, M-9
// field case F-48
func TestManyGoroutinesRegisterAndTransferAtOnce(t *testing.T) {
	leavesNothing(t)
	seed := seeded(t)
	c := &crowd{count: budgets.New("registrations", "ranges", 1<<20), bytes: budgets.New("registered bytes", "bytes", 1<<40)}
	c.tracker = NewTracker(c.count, c.bytes, func(*Registration) { c.ended.Add(1) })
	for range 3 {
		c.backings = append(c.backings, adopted(t, crowdPages*crowdPage)) // on the Go heap: the race detector watches
	}
	registered(t, c.tracker, Spec{Backing: c.backings[0], Length: crowdPages * crowdPage}) // always something to transfer
	c.made.Add(1)
	var all sync.WaitGroup
	for g := range 64 {
		random := rand.New(rand.NewPCG(seed, uint64(g)))
		if g < 16 {
			all.Go(func() { c.write(t, random) })
		} else {
			all.Go(func() { c.read(t, random) })
		}
	}
	all.Wait()
	c.tracker.RetireAll()
	if c.count.Used() != 0 || c.bytes.Used() != 0 || c.ended.Load() != c.made.Load() || c.moved.Load() == 0 || c.busy.Load() == 0 {
		t.Fatalf("owed %d ranges, %d bytes; %d made, %d ended, %d moved, %d busy", c.count.Used(), c.bytes.Used(), c.made.Load(), c.ended.Load(), c.moved.Load(), c.busy.Load())
	}
	t.Logf("%d registrations, %d transfers, %d refused by leases", c.made.Load(), c.moved.Load(), c.busy.Load())
	for _, b := range c.backings {
		if !b.Quiet() || b.Holders() != 1 {
			t.Fatalf("%v: quiet %v, %d holders", b, b.Quiet(), b.Holders())
		}
		b.Drop()
	}
}

// write registers runs of pages and unregisters them again.
func (c *crowd) write(t *testing.T, random *rand.Rand) {
	for range 100 {
		b := c.backings[random.IntN(len(c.backings))]
		batch := make([]Spec, 1+random.IntN(3))
		for i := range batch {
			first := random.Uint64N(crowdPages)
			batch[i] = Spec{Backing: b, Offset: first * crowdPage, Length: (1 + random.Uint64N(crowdPages-first)) * crowdPage, Permission: netproto.ReadWrite}
		}
		c.turn.Lock()
		before := c.tracker.lastID
		made, err := c.tracker.Register(batch)
		c.made.Add(int64(c.tracker.lastID - before))
		c.turn.Unlock()
		if err != nil {
			t.Errorf("register: %v", err)
			return
		}
		runtime.Gosched() // visible for a while
		seen := map[uint64]bool{}
		for _, r := range made {
			if seen[r.ID()] { // coalesced: one reference
				continue
			}
			seen[r.ID()] = true
			c.turn.Lock()
			_, err := c.tracker.Unregister(r.ID())
			c.turn.Unlock()
			if err != nil {
				t.Errorf("unregister: %v", err)
			}
		}
	}
}

// read resolves pages and fills or checks them: each page is always uniform under a lease.
func (c *crowd) read(t *testing.T, random *rand.Rand) {
	for range 400 {
		b := c.backings[random.IntN(len(c.backings))]
		address := b.Address() + random.Uint64N(crowdPages)*crowdPage
		r, err := c.tracker.Borrow(address, crowdPage)
		if random.IntN(4) == 0 {
			c.look(t, random)
		}
		if errors.Is(err, ErrUncovered) {
			runtime.Gosched()
			continue
		}
		if err != nil {
			t.Errorf("borrow: %v", err)
			return
		}
		access := Access(random.IntN(2))
		lease, err := r.Lease(address-r.Address(), crowdPage, access)
		if err != nil {
			c.busy.Add(1)
			r.Return()
			continue
		}
		c.use(t, &lease, access, byte(random.IntN(256)))
		lease.Return()
		r.Return()
	}
}

func (c *crowd) use(t *testing.T, lease *Lease, access Access, stamp byte) {
	page := lease.Bytes()
	runtime.Gosched() // others meet the lease
	if bytes.Count(page, page[:1]) != crowdPage {
		t.Error("a page with mixed bytes under a lease")
	}
	if access == Exclusive {
		for i := range page {
			page[i] = stamp
		}
	}
	c.moved.Add(1)
}

// look reads a snapshot from end to end: it must be whole.
func (c *crowd) look(t *testing.T, random *rand.Rand) {
	m := c.tracker.Mirror()
	last := uint64(0)
	for _, region := range m.Regions() {
		if region.ID <= last || m.Find(region.ID) == nil || m.Find(region.ID).Address() != region.Base {
			t.Errorf("torn snapshot at region %d", region.ID)
		}
		last = region.ID
	}
	if r, err := c.tracker.Admit(last-min(last, random.Uint64N(3)), 0, 1, netproto.RemoteRead); err == nil {
		r.Return()
	}
}

func TestRegistrationEndsOnceHoweverLoansAndRetirementRace(t *testing.T) {
	leavesNothing(t)
	b := adopted(t, 64)
	for range 300 {
		l := newLedger(9, 1<<20)
		var ended atomic.Int64
		tracker := NewTracker(l.count, l.bytes, func(*Registration) { ended.Add(1) })
		r := registered(t, tracker, Spec{Backing: b, Length: 64})[0]
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for r.Lend() {
					r.Return()
				}
			})
		}
		unregistered(t, tracker, r.ID(), true)
		all.Wait()
		if ended.Load() != 1 || b.Holders() != 1 {
			t.Fatalf("ended %d times, %d holders", ended.Load(), b.Holders())
		}
		l.owes(t, 0, 0)
	}
	b.Drop()
}
