package rdma

import (
	"io/fs"
	"time"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/verbs"
)

// Progress says how a lane learns of completions (SPEC R-19).
type Progress uint8

const (
	// Polling looks at the completion queues in each turn while something is outstanding or expected.
	Polling Progress = iota
	// EventDriven arms the queues and watches their completion channel.
	EventDriven
)

func (p Progress) String() string { return [...]string{"polling", "event-driven"}[p] }

// Defaults of SPEC U, and of what SPEC leaves open.
const (
	SendDepthDefault       = 16   // max_send_wr: unresolved sends of one queue pair
	QueueEntriesDefault    = 1024 // max_cqes: entries of each completion queue
	KeyIndicesDefault      = 65536
	EndpointsDefault       = 64 // max_endpoints: queue pairs, retained ones included
	GrantsDefault          = 64
	DirectBytesDefault     = 64 << 20
	StagingBytesDefault    = 64 << 20
	CachedRegionsDefault   = 64
	CachedBytesDefault     = 64 << 20
	ConnectTimeoutDefault  = 10 * time.Second
	MonitorIntervalDefault = time.Second // SPEC R-19
	// CleanupWindow is how long the parts of one failure have for their proof, together (SPEC R-18).
	CleanupWindow = 30 * time.Second
)

// Budgets are the engine's, shared by all lanes; the root makes them and shows them (SPEC U). The upper half charges
// Grants, DirectBytes and StagingBytes.
type Budgets struct {
	Endpoints     *budgets.Budget // queue pairs
	Grants        *budgets.Budget // whole parents
	DirectBytes   *budgets.Budget
	StagingBytes  *budgets.Budget
	CachedRegions *budgets.Budget // memory regions, each copy
	CachedBytes   *budgets.Budget // bytes of them, each copy
}

// Config is what one engine's RDMA transport is made with. It does not change afterwards. Zero values choose the
// defaults named with each field.
type Config struct {
	Pins   verbs.Pins   // strict choices (SPEC R-1)
	Filter verbs.Filter // which devices are opened at all
	Mask   uint64       // NICs that work may be dispatched to, a bit for each stable ID; 0: all
	// PreferredNUMANode is a hint for memory whose node is not known; nil: none.
	PreferredNUMANode *int

	Host   netproto.HostMemoryPolicy // how host memory is served (SPEC)
	Device DevicePolicy              // how memory on GPUs is served
	// Unsynced also registers GPU memory on which SYNC_MEMOPS cannot be set: its owner waits for his own copies (SPEC C-6).
	Unsynced bool
	Progress Progress
	// StagedPart is how many bytes of memory on a GPU one parent may have here when that is staged: the size of a pinned
	// chunk; 0: none is staged.
	StagedPart uint64
	Block      uint64 // base block of slices, bytes; 0: lanes.SliceBlock
	Width      int    // queue pairs of one connection that this side wants, up to netproto.PairsMax; 0: 1

	SendDepth    int // max_send_wr; 0: SendDepthDefault
	ReceiveDepth int // receives of one queue pair at a source, and so the slices of one parent; 0, and at most: netproto.SlicesMax
	QueueEntries int // max_cqes, at least 4: what is not kept for barriers is shared by all work that completes there; 0: QueueEntriesDefault
	KeyIndices   int // max_window_key_indices of each domain; 0: KeyIndicesDefault

	ConnectTimeout  time.Duration // of the exchange that builds a connection; 0: ConnectTimeoutDefault
	MonitorInterval time.Duration // 0: MonitorIntervalDefault

	Budgets Budgets
	// Gauge is told of each budget that the transport makes itself: the queue pairs that share one device's completion
	// queues on one lane. May be nil.
	Gauge func(*budgets.Budget)
	Epoch netproto.Epoch // of this engine
	// Random fills b with unpredictable bytes; any goroutine may call it. The root gives crypto/rand's.
	Random func(b []byte)
	// Cold is the loop for slow native calls. It lives until Transport.Close is done.
	Cold Cold
	// Thread runs a native call that may never return on a thread of its own, from any lane; nil: the cold loop runs it, and
	// waits with all that comes behind.
	Thread func(func())
	// Sysfs is /sys, for the places of devices; nil: what the library says about NUMA nodes is used.
	Sysfs fs.FS
	// Changed is called after the state or address of a path changed, on lane 0: a descriptor made before is old. May
	// be nil.
	Changed func()
}

func (c *Config) complete() {
	fill := func(n *int, standard int) {
		if *n <= 0 {
			*n = standard
		}
	}
	fill(&c.Width, 1)
	c.Width = min(c.Width, netproto.PairsMax)
	fill(&c.SendDepth, SendDepthDefault)
	fill(&c.QueueEntries, QueueEntriesDefault)
	c.QueueEntries = max(c.QueueEntries, 4)
	fill(&c.ReceiveDepth, netproto.SlicesMax)
	c.ReceiveDepth = min(c.ReceiveDepth, netproto.SlicesMax, c.QueueEntries-c.sharers())
	fill(&c.KeyIndices, KeyIndicesDefault)
	if c.Block == 0 {
		c.Block = lanes.SliceBlock
	}
	if c.ConnectTimeout <= 0 {
		c.ConnectTimeout = ConnectTimeoutDefault
	}
	if c.MonitorInterval <= 0 {
		c.MonitorInterval = MonitorIntervalDefault
	}
}

// sharers is how many queue pairs share one pair of completion queues at most. A place is kept for the flush barrier of
// each; all others are for work, and at least half of them are.
func (c *Config) sharers() int {
	return max(1, int(min(c.Budgets.Endpoints.Limit(), int64(c.QueueEntries/2))))
}

// slicesMax is how many slices of one parent this source admits: each needs a receive of its own, and each pair can take
// all of them, so that SPEC R-8's geometry does not depend on the width of a connection. Each needs a window as well, and all
// may be on one device.
func (c *Config) slicesMax() int { return min(c.ReceiveDepth, c.KeyIndices) }

// Cold takes letters for the engine's cold loop, from any goroutine: slow native calls run there. A *reactor.Loop is one.
type Cold interface {
	Post(*reactor.Letter, reactor.Recipient) error
}

// errand is one piece of work for the cold loop and what follows at home. It is part of its owner and can be sent again
// once back was called. What run writes, back may read: the letter orders them.
type errand struct {
	letter reactor.Letter
	home   *reactor.Loop
	run    func()
	back   func(reactor.Instant)
	away   bool // true exactly from send until back
	done   bool // true exactly from the end of run until back
}

// send posts the work. A cold loop that takes no letters any more is our own mistake: it outlives the transport.
func (e *errand) send(cold Cold, home *reactor.Loop, run func(), back func(reactor.Instant)) {
	if e.away {
		panic("rdma: errand sent while away, want at home")
	}
	e.home, e.run, e.back, e.away, e.done = home, run, back, true, false
	if err := cold.Post(&e.letter, e); err != nil {
		panic("rdma: the cold loop is closed, want open until the transport is closed: " + err.Error())
	}
}

// Receive runs on the cold loop, then at home (reactor.Recipient).
func (e *errand) Receive(_ *reactor.Letter, now reactor.Instant) {
	if !e.done {
		e.run()
		e.done = true
		// A home that is closed hears nothing any more; what the errand was about stays charged.
		_ = e.home.Post(&e.letter, e)
		return
	}
	e.away = false
	e.back(now)
}
