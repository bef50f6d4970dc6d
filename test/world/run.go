package world

import (
	"fmt"
	"net/netip"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/segments"
	"github.com/orbitte/orbitte/test/faults"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// Options of Run.
type Options struct {
	// Quiet keeps no history; counts and oracles stay.
	Quiet bool
}

// Violation is the first thing that should not have happened.
type Violation struct {
	Oracle string // which of the Oracle names
	Turn   int
	What   string
}

func (v *Violation) Error() string { return fmt.Sprintf("%s in turn %d: %s", v.Oracle, v.Turn, v.What) }

// Result of a run.
type Result struct {
	Script    faults.Script
	History   string // one line per event
	Violation *Violation
	Counts    map[string]int // "action transfer", "fault kill", "transfer: ok", …: how often
	Turns     int            // rounds of the world, the drain included
	Requests  int            // READs and WRITEs that engines accepted
	Elapsed   time.Duration  // on the virtual clock
}

// run is one world in progress.
type run struct {
	script        faults.Script
	options       Options
	net           *simkernel.World
	begin         reactor.Instant
	slots         []*slot
	lives         []*life
	memories      map[int]*memory
	registrations map[int]*registration
	segments      map[int]*segment
	batches       map[int]*submission
	notes         map[int]*note
	sent          []*note // the same, in their order
	stalled       []stalled
	turn          int
	beating       bool             // an event lies ahead that keeps the clock from running away while the script has lines
	order         int              // of starts and ends of notifications
	operations    uint64           // requests, registrations and opened segments so far
	frames        uint64           // READ and WRITE frames so far
	asked         map[frameKey]int // requests without a frame
	history       strings.Builder
	counts        map[string]int
	violation     *Violation
	requests      int
	calm          bool                          // see calm
	residents     int64                         // memory objects of the process before the run
	fabric        *simverbs.Fabric              // nil: no RDMA
	natives       map[string]*simkernel.Process // by the name of their process
	owners        map[string]*life              // the same
	moved         map[string]bool               // whose address has moved, by host and device
	wounded       bool                          // true exactly when the script has faults of devices: their failures are told to peers
	worked        int                           // steps of engines that did something
	fruitless     int                           // turns without one, in a row
	gpus          bool                          // true exactly when some life has GPUs
	leaks         bool                          // true exactly when some life keeps memory for good
}

// slot is one address, on which one life follows the other.
type slot struct {
	number  int
	host    netip.Addr
	address netip.AddrPort
	config  faults.Action
	lives   []*life
	process *simkernel.Process // of the last life
}

// life is one engine from its start to its end.
//
//	open ──Close──▶ closed          stopped: open, but its steps are not run
//	  └──────Kill──▶ killed
type life struct {
	run          *run
	slot         *slot
	number       int
	process      *simkernel.Process
	engine       *orbitte.Engine
	doors        []*door
	task         *simkernel.Task
	caller       *caller
	queue        []queued // calls that wait behind it
	epoch        orbitte.Epoch
	direct       bool
	copies       int            // requests to itself that were in flight before the step at hand
	spoiled      map[*life]bool // peers to which a request over HP-TCP ran out of time, or was cancelled
	leaders      map[*life]*op  // by peer: the first request of the newest submission whose frame went out
	memories     []*memory
	ranges       []*registration
	segments     []*segment
	open         []*submission // not ended, or not freed
	inbound      []*note
	fenced       bool // CloseSource was called
	stopped      bool
	closed       bool
	killed       bool
	died         reactor.Instant // when it was killed
	skew         time.Duration   // how far a ghost's clock is ahead, on all its lanes; behind, from its burial on
	steps        int
	rested       bool // true exactly when its last step did nothing
	serving      serving
	looks        int                            // of its kernels in a row that found nothing and did not block
	native       *simverbs.Process              // nil: the engine has no RDMA
	tomb         *tomb                          // what the engine is given of it
	vault        *vault                         // nil: the engine has no CUDA
	impatient    bool                           // some call or batch of its was cancelled or ran out of time: its stream is retired
	wanted       []*op                          // ever asked of it over RDMA, in memory on its GPUs
	hurt         bool                           // true exactly when its GPUs or their driver were told to fail
	hung         bool                           // true exactly when a GPU may never end a copy
	deaf         bool                           // true exactly when a host callback may never come
	slowed       time.Duration                  // what its copies were told to take longer, all together
	doubtful     bool                           // true exactly when its library was told to refuse a call, or to take a proof away
	keeps        bool                           // true exactly when it may keep something for good
	lost         bool                           // true exactly when nobody gives its memory back
	lent         bool                           // true exactly when a peer has asked for grants on slots of its
	lingers      reactor.Instant                // since when slots of its outlive all streams, since devices have them; 0: none do
	lingerRests  int                            // rounds in which it has rested over them for too long
	streams      map[reactor.Descriptor]*stream // looked up by key only
	dataListener reactor.Descriptor             // if listens
	listens      bool
}

// queued is a call that has not begun.
type queued struct {
	what string
	d    time.Duration
	do   func(ctx *lease)
}

type registration struct {
	name    int
	life    *life
	handle  *orbitte.Registration
	memory  *memory
	born    uint64 // its place among all operations
	leaving bool   // its end has begun
	shown   int    // turn of its Register
	hidden  int    // turn in which its Unregister began; 0: not yet
	gone    bool
}

type segment struct {
	name   int
	life   *life
	handle *orbitte.Segment
	peer   *life  // whose epoch it has
	born   uint64 // when it was asked for
	gone   bool
}

type stalled struct {
	connection *simkernel.Connection
	direction  simkernel.Direction
}

// heartbeat is how far the clock goes at most in a turn in which nobody has anything to do, while the script lasts:
// actions a few turns apart are to meet the same work, and not what an hour has left of it.
const heartbeat = 300 * time.Microsecond

// port is where every engine listens.
const port = 7000

// Run plays a script and holds every step against the oracles. The same script gives the same history to the
// byte. It must not run beside another Run, or beside anything that starts goroutines, in the same process.
func Run(s faults.Script, o Options) *Result {
	r := newRun(s, o)
	r.guard(r.play)
	if r.violation == nil {
		r.guard(r.finish)
	}
	r.abandon()
	return &Result{
		Script: s, History: r.history.String(), Violation: r.violation, Counts: r.counts, Turns: r.turn,
		Requests: r.requests, Elapsed: time.Duration(r.net.Now() - r.begin),
	}
}

func newRun(s faults.Script, o Options) *run {
	w := s.World
	r := &run{
		script: s, options: o, counts: map[string]int{}, memories: map[int]*memory{}, registrations: map[int]*registration{},
		asked: map[frameKey]int{}, moved: map[string]bool{}, segments: map[int]*segment{}, batches: map[int]*submission{}, notes: map[int]*note{},
		net: simkernel.NewWorld(uint64(w.Get(faults.Seed)), simkernel.WorldOptions{
			DelayMin: w.Duration(faults.DelayMin), DelayMax: w.Duration(faults.DelayMax), ChopReceive: w.Int(faults.ChopReceive),
			ChopSend: w.Int(faults.ChopSend), Buffer: w.Int(faults.Buffer), Descriptors: w.Int(faults.Descriptors),
			EphemeralPorts: w.Int(faults.Ports), CallCost: w.Duration(faults.CallCost), Reorder: w.Int(faults.Reorder),
		}),
	}
	r.begin, r.calm = r.net.Now(), calm(s)
	r.residents, _ = segments.Mappings()
	for i := range w.Int(faults.Engines) {
		host := netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
		r.slots = append(r.slots, &slot{number: i, host: host, address: netip.AddrPortFrom(host, port), config: faults.New(faults.Engine)})
	}
	for _, e := range s.Engines {
		r.slots[e.Int(faults.Number)].config = e
	}
	r.fabric, r.wounded = r.newFabric(), wounded(s)
	return r
}

// guard turns a panic of engines or twins into a violation.
func (r *run) guard(do func()) {
	defer func() {
		if p := recover(); p != nil {
			r.violate(OraclePanic, "%v\n%s", p, debug.Stack())
		}
	}()
	do()
}

func (r *run) play() {
	for _, s := range r.slots {
		r.start(s)
	}
	lines := r.script.Lines
	for turns := r.script.Turns(); r.violation == nil && (len(lines) > 0 || r.turn < turns); {
		for len(lines) > 0 && lines[0].Turn <= r.turn && r.violation == nil {
			r.act(lines[0].Action)
			lines = lines[1:]
		}
		r.round()
	}
}

// round is one turn of the world. It says whether anybody did something, or the clock went on.
func (r *run) round() bool {
	r.turn++
	if r.turn <= r.script.Turns() && !r.beating {
		r.beating = true
		r.net.Later(heartbeat, func() { r.beating = false })
	}
	before := r.worked
	went := r.net.Step()
	went = r.stride(before) || went
	r.watch()
	if r.turn%sampleEvery == 0 {
		for _, l := range r.lives {
			r.sample(l)
		}
	}
	return went
}

// start opens the next life of a slot.
func (r *run) start(s *slot) error {
	l := &life{run: r, slot: s, number: len(s.lives), direct: s.config.Get(faults.Placement) == 1}
	name := fmt.Sprintf("e%d.%d", s.number, l.number)
	l.process = r.net.Process(name, s.host)
	l.epoch = orbitte.Epoch{0: 0xe0, 13: byte(s.number), 14: byte(l.number >> 8), 15: byte(l.number)}
	engine, err := orbitte.Open(l.config())
	if err != nil {
		r.unopened(l)
		l.process.Kill() // nothing may be left, and what is left is found
		return err
	}
	l.engine = engine
	s.lives, s.process, r.lives = append(s.lives, l), l.process, append(r.lives, l)
	kernels := make([]*simkernel.Kernel, len(l.doors))
	for i, d := range l.doors {
		kernels[i] = d.Kernel
	}
	l.task = r.net.AddFor(func() bool { return r.step(l) }, kernels...)
	return nil
}

// config is the engine's; what would follow the real clock, or the machine, is fixed.
func (l *life) config() orbitte.Config {
	c := l.slot.config
	limits := orbitte.Limits{
		Registrations: c.Int(faults.Registrations), RegisteredBytes: uint64(c.Get(faults.RegisteredBytes)), BatchRequests: c.Int(faults.BatchRequests),
		Batches: c.Int(faults.Batches), BatchSlots: c.Int(faults.BatchSlots), Submissions: c.Int(faults.Submissions),
		SubmittedBytes: uint64(c.Get(faults.SubmittedBytes)), PayloadBytes: uint64(c.Get(faults.PayloadBytes)), SourceHandlers: c.Int(faults.Handlers),
		SourceQueue: c.Int(faults.Queue), PeerSegments: c.Int(faults.PeerSegments), Notifications: c.Int(faults.Notifications),
		NotificationQueue: uint64(c.Get(faults.NotificationQueue)), NotificationBytes: uint64(c.Get(faults.NotificationBytes)),
	}
	if limits.NotificationQueue > 0 { // the two are drawn apart, and Open refuses a queue that could never take the largest one
		limits.NotificationQueue = max(limits.NotificationQueue, limits.NotificationBytes)
	}
	config := orbitte.Config{
		Bind: l.slot.address.String(), Lanes: max(1, c.Int(faults.Lanes)), Progress: orbitte.Manual, Limits: limits,
		TCPHostMemory:    orbitte.Placement(c.Get(faults.Placement)),
		TCPNotifications: orbitte.Switch(c.Get(faults.TCPNotes)), NotificationRPCFallback: orbitte.Switch(c.Get(faults.RPCNotes)),
		RequestTimeout: c.Duration(faults.RequestTimeout), SourceTimeout: c.Duration(faults.SourceTimeout),
		IdleTimeout: c.Duration(faults.IdleTimeout), KeepaliveIdle: c.Duration(faults.KeepaliveIdle), UserTimeout: c.Duration(faults.UserTimeout),
		QuiesceTimeout: time.Hour, // the engine measures it by the real clock: never, here
		Epoch:          l.epoch,
		OpenKernel: func(int) (reactor.Kernel, error) {
			d := &door{Kernel: l.process.Kernel(), life: l}
			d.echo.every = l.run.script.World.Int(faults.Doubles)
			d.tap.life = l
			l.doors = append(l.doors, d)
			return d, nil
		},
	}
	l.wireUp(&config)
	l.hurry(&config)
	l.powerUp(&config)
	l.offer(&config)
	return config
}

// step is one step of one life: of the call that waits in it, or of its Progress.
func (r *run) step(l *life) bool {
	if l.stopped || l.closed || l.killed || r.violation != nil {
		return false
	}
	l.steps++
	if l.native != nil {
		r.explain(l) // what its devices did, before what it does itself
	}
	l.copies = len(l.ownCopies())
	worked := false
	if l.caller != nil {
		c := l.caller
		var over bool
		if worked, over = c.resume(); over {
			l.nextCall()
		}
	} else {
		worked = l.engine.Progress(time.Hour)
	}
	if worked {
		r.worked++
	}
	l.rested = !worked
	r.after(l)
	return worked
}

// nextCall begins the call that stands behind the one that is over.
func (l *life) nextCall() {
	l.caller = nil
	if len(l.queue) > 0 && l.alive() {
		first := l.queue[0]
		l.queue = l.queue[1:]
		l.call(first.what, first.d, first.do)
	}
}

// queueMax is how many calls may stand behind the one that waits.
const queueMax = 8

// call starts a call that waits: the program of a life has one thread, so it begins when those before it are over,
// in one of the life's next steps. Its context is made then.
func (l *life) call(what string, d time.Duration, do func(ctx *lease)) {
	if l.caller != nil {
		l.queue = append(l.queue, queued{what, d, do})
		return
	}
	ctx := l.run.newLease(d)
	l.caller = newCaller(what, l.run.net.Now(), ctx, func() {
		if !l.killed {
			do(ctx)
		}
	})
	l.task.Ready()
}

// current is the slot's life that is open, or nil.
func (s *slot) current() *life {
	if n := len(s.lives); n > 0 && s.lives[n-1].alive() {
		return s.lives[n-1]
	}
	return nil
}

func (l *life) alive() bool { return !l.closed && !l.killed }

func (l *life) String() string { return fmt.Sprintf("e%d.%d", l.slot.number, l.number) }

// tell writes a line of the history.
func (r *run) tell(format string, args ...any) {
	if r.options.Quiet {
		return
	}
	fmt.Fprintf(&r.history, "%d %v ", r.turn, time.Duration(r.net.Now()-r.begin))
	fmt.Fprintf(&r.history, format, args...)
	r.history.WriteByte('\n')
}

func (r *run) count(format string, args ...any) { r.counts[fmt.Sprintf(format, args...)]++ }

// realAddress is where memory stands in this process. It differs from run to run, and a history must not.
var realAddress = regexp.MustCompile(`0x[0-9a-f]{9,12}\b`)

func (r *run) violate(oracle, format string, args ...any) {
	if r.violation == nil {
		r.violation = &Violation{oracle, r.turn, realAddress.ReplaceAllString(fmt.Sprintf(format, args...), "(address)")}
		first, _, _ := strings.Cut(r.violation.What, "\n")
		r.tell("VIOLATION %s: %s", oracle, first)
	}
}

// abandon ends what a broken run left: coroutines, and memory that nobody uses any more.
func (r *run) abandon() {
	for _, l := range r.lives {
		if l.caller != nil {
			r.guard(l.caller.stop)
			l.caller = nil
		}
	}
	r.abandonDrivers()
}
