package orbitte

import (
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/lanes/delegate"
	"github.com/orbitte/orbitte/lanes/hptcp"
	"github.com/orbitte/orbitte/lanes/rdma"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
)

var errNoBytes = errors.New("a memory object has at least one byte")

// Epoch names one life of one engine (SPEC G-1).
type Epoch = netproto.Epoch

// ParseEpoch reads an epoch's text form, 32 hexadecimal digits.
func ParseEpoch(text string) (Epoch, error) {
	epoch, err := netproto.ParseEpoch(text)
	if err != nil { // the room below speaks of frames
		cause := fmt.Errorf("%.40q is no epoch; it must be 32 hexadecimal digits", text)
		return Epoch{}, &Error{Op: "ParseEpoch", Index: -1, Class: ErrInvalid, Cause: cause}
	}
	return epoch, nil
}

// Engine is one transfer engine: a source that serves its registrations, and a requester that moves
// bytes between them and its peers'. Any goroutine may use it.
type Engine struct {
	config   Config
	policy   lanes.Policy
	endpoint string
	kernel   string // why the kernel is what it is

	runners  []*runner
	cold     *runner    // nil in manual mode, where look-ups are their caller's
	rdma     *rdmaPart  // nil without RDMA
	hptcp    *hptcpPart // nil without HP-TCP
	cuda     *cudaPart  // nil without CUDA
	listener *control.Listener

	admission control.Admission
	requester *lanes.Gate
	inbox     *control.Inbox
	budgets   engineBudgets
	idle      sync.Pool // of *group

	// registering guards the registrations' writer side. It comes before mu, may be held for as long as devices take to
	// register memory, and no lane takes it.
	registering sync.Mutex
	tracker     *segments.Tracker
	// mu guards the peers, and closing. No lane takes it.
	mu      sync.Mutex
	peers   map[peerKey]*peer
	ways    map[Epoch][]*peer // those of each life of a source, one for each name that it is open under; nil: a free place
	closing closing

	ended    sync.Map      // *segments.Registration → *ending: who waits for its end
	retained sync.Map      // *group → nothing: submissions whose memory is not proven quiet
	driver   driverSeat    // manual mode: of whoever turns the lanes
	small    smallRequests // of any peer
	crowd    atomic.Int32  // how many submissions must be alone before one may be a guest
	notes    chan struct{} // tells the log's goroutine that a journal has notes
	notesEnd chan struct{} // closed when no more notes come
	logEnd   chan struct{} // closed when the log's goroutine has ended
	counts   engineCounts
}

type engineCounts struct {
	unquiesced  atomic.Int64 // calls that returned ErrUnquiesced and whose work has not ended yet
	lookupsLeft atomic.Int64 // look-ups whose caller has gone and whose resolver has not returned
}

// runner is one loop with what rides on it.
type runner struct {
	lane       *lanes.Lane
	pool       *control.Pool
	server     *control.Server
	pins       *delegate.Service // nil unless peers may direct the staging here
	rails      *rdma.Rails       // nil without RDMA
	fast       *hptcp.Pool       // nil without HP-TCP, as fastServer is
	fastServer *hptcp.Service
	stopped    chan struct{} // closed when the loop has ended
	err        error         // of Run or Close; read after stopped
	peers      int           // guarded by Engine.mu
}

type engineBudgets struct {
	registrations, registeredBytes   *budgets.Budget
	batches, batchSlots              *budgets.Budget
	submissions, submittedBytes      *budgets.Budget
	handlers, queue                  *budgets.Budget
	notifications, notificationBytes *budgets.Budget
	lookups                          *budgets.Budget
	streams, sessions                []*budgets.Budget // per lane
	rdma                             rdma.Budgets      // nil budgets without RDMA
	hptcp                            hptcpBudgets
	pinned                           *budgets.Budget // nil without CUDA
	slots                            *budgets.Budget // nil unless peers may direct the staging here
	ledger                           budgets.Ledger  // all of them, in the order of Stats
}

func newBudgets(c *Config, lanes int) engineBudgets {
	var b engineBudgets
	l := &c.Limits
	add := func(name, unit string, limit int64) *budgets.Budget {
		return b.ledger.Add(budgets.New(name, unit, limit))
	}
	b.registrations = add("retained registrations", "registrations", int64(l.Registrations))
	b.registeredBytes = add("registered bytes", "bytes", int64(l.RegisteredBytes))
	b.batches = add("async batches", "batches", int64(l.Batches))
	b.batchSlots = add("async batch slots", "requests", int64(l.BatchSlots))
	b.submissions = add("requester submissions in flight", "submissions", int64(l.Submissions))
	b.submittedBytes = add("requester bytes in flight", "bytes", int64(l.SubmittedBytes))
	b.handlers = add("source handlers", "frames", int64(l.SourceHandlers))
	b.queue = add("source queue", "frames", int64(l.SourceQueue))
	b.notifications = add("pending notifications", "notifications", int64(l.Notifications))
	b.notificationBytes = add("pending notification bytes", "bytes", int64(l.NotificationQueue))
	b.lookups = add("name look-ups in flight", "look-ups", int64(l.Lookups))
	for i := range lanes { // the lanes' shares add up to the limit exactly
		share := shareOf(l.PeerSegments, lanes, i)
		b.streams = append(b.streams, add(fmt.Sprintf("peer streams, lane %d", i), "streams", share))
		b.sessions = append(b.sessions, add(fmt.Sprintf("accepted streams, lane %d", i), "streams", share))
	}
	if c.RDMA != nil {
		b.rdma = newRDMABudgets(add, &c.RDMA.Limits)
	}
	if c.CUDA != nil {
		b.pinned = add("pinned staging", "bytes", int64(l.PinnedStagingBytes+c.slotBytes()))
	}
	if c.offersSlots() {
		b.slots = add(slotsBudget, "slots", int64(c.RemoteStaging.Slots))
	}
	if c.HPTCP != nil {
		b.hptcp = newHPTCPBudgets(add, c.HPTCP.Limits.Streams, lanes)
	}
	return b
}

// loops lists every loop that was built.
func (e *Engine) loops() []*runner {
	list := append(make([]*runner, 0, len(e.runners)+3), e.runners...)
	if e.cold != nil {
		list = append(list, e.cold)
	}
	if e.rdma != nil {
		list = append(list, e.rdma.slow)
	}
	if e.cuda != nil {
		list = append(list, e.cuda.slow)
	}
	return list
}

// place is one submission's: its entry at the requester's gate, and its charge. Whoever holds it leaves once.
type place struct {
	engine  *Engine
	charge  budgets.Charge
	outside bool // true exactly when nobody waits for it: its holder's work is retained
}

// enter takes a place for a submission, open or notification (SPEC U, G-6). The error leaves p empty.
func (e *Engine) enter(p *place) error {
	if !e.requester.Enter() {
		return &Error{Index: -1, Class: ErrClosed}
	}
	charge, err := e.budgets.submissions.Take(1)
	if err != nil {
		e.requester.Leave()
		return err
	}
	p.engine, p.charge = e, charge.Move()
	return nil
}

// leave gives the place back.
func (p *place) leave() {
	p.charge.Repay() // proof: the holder's work has ended
	if !p.outside {
		p.engine.requester.Leave()
	}
}

// retain lets the engine be closed without the holder, who keeps the charge.
func (p *place) retain() {
	p.outside = true
	p.engine.requester.Leave()
}

func (p *place) held() bool { return p.charge.Held() }

// move hands the place over.
func (p *place) move() place { return place{p.engine, p.charge.Move(), p.outside} }

// Endpoint is what peers are told: "host:port". A loopback endpoint serves this host only.
func (e *Engine) Endpoint() string { return e.endpoint }

// Epoch names this life of the engine; peers need it to open the engine's segment.
func (e *Engine) Epoch() Epoch { return e.policy.Epoch }

func newEpoch() Epoch {
	var epoch Epoch
	for epoch.IsZero() {
		rand.Read(epoch[:]) // never fails (crypto/rand, Go 1.24)
	}
	return epoch
}

// clock is the engine's; the lanes' kernels share it.
func (e *Engine) clock() reactor.Clock { return e.runners[0].lane.Kernel() }

// threads runs a native call that may never return on a thread of its own; nil: a simulation has no threads.
func (e *Engine) threads() func(func()) {
	if e.config.Progress == Manual && e.config.OpenKernel != nil {
		return nil
	}
	return func(do func()) { go do() }
}
