package rdma

import (
	"errors"
	"fmt"
	"time"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	flows "github.com/orbitte/orbitte/lanes/staging"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
	"github.com/orbitte/orbitte/verbs"
)

const (
	// roomGrace is how long a transfer asks again for a range that is leased, here or at the source, or for a place in
	// the source's budgets. Nothing is granted meanwhile.
	roomGrace = 100 * time.Millisecond
	// yieldPause is how long the local range stays free when it was given back to whoever has the stream: longer than
	// anybody waits between two looks (lanes.Backoff).
	yieldPause = 5 * time.Millisecond
	// haltGrace is how long a failed transfer waits for its posted work, and for the receipts of the grants that it gives
	// back, before it takes its pairs to the error state.
	haltGrace = time.Second
	// abandonTimeout bounds the exchange that tells the source; it then finds out by its own deadline.
	abandonTimeout = 5 * time.Second
	// messageMax bounds one work request if the port does not say.
	messageMax = 1 << 30
)

// Transfer is one READ or WRITE at the requester (SPEC ). Its owner fills the exported fields, keeps the local
// registration borrowed until Done (and for good when the outcome is not drained), and may use it again afterwards. It lives on the lane of the peer's channel from Start to Done and allocates nothing
// there unless it fails, builds a connection or stages.
type Transfer struct {
	Direction lanes.Direction
	// Local is the local registration, borrowed by the owner and with its devices attached (see Of); LocalOffset is
	// relative to it.
	Local       *segments.Registration
	LocalOffset uint64
	// Tiers are the ways from each NIC to the local memory (Transport.HostTiers); nil: those of the preferred node.
	Tiers *Tiers
	// Region, Offset, Length name the remote range; Epoch is its segment's.
	Region, Offset, Length uint64
	Epoch                  netproto.Epoch
	// Remote says what is behind the remote range, as the source's descriptor has it.
	Remote   RemoteMemory
	Deadline reactor.Instant
	// Outcome is set before Done is called, on the lane.
	Outcome lanes.Outcome
	Done    func(*Transfer)

	machine    transferMachine
	rails      *Rails
	peer       *Peer
	registered *Registered // lent from Start on; nil: not lent
	legs       []*leg
	used       int // legs of this run
	owed       int // claims without an answer
	closing    int // private connections that have not ended
	request    netproto.GrantRequest
	grants     []netproto.Grant
	hungers    []hunger
	slots      []int32 // of messages, one for each slice; nil: none taken
	bytes      budgets.Charge
	lease      segments.Lease
	staging    *staging
	copied     int
	gpu        gpuSide
	late       *remains                 // of copies alone without proof, until it is retained; nil: none are
	walk       *walk                    // made for the first transfer in parts; nil before
	walked     bool                     // true exactly when the last run was one in parts
	track      *track                   // whose part it is; nil: nobody's
	keeps      bool                     // true exactly while it is at rest with its connections, for the next part
	parts      [flows.PartsMax]wirePart // of its flow, on a GPU
	flushed    bool                     // true exactly when that was done, or tried
	places     int                      // of the lane's turnstile
	wanted     int
	crowded    *lanes.Fault // why it got too few connections; nil: it did not
	gap        *lanes.Fault // why a pair of NICs could not be connected, before or after which others are tried; nil: all could
	detoured   bool         // true exactly when others were tried
	filled     bool         // staged WRITE: true exactly when staging has the payload
	roomy      bool         // true exactly while receives of the peer are reserved
	next       *Transfer
	before     *Transfer // beside behind: among all that run
	behind     *Transfer
	waiting    bool // true exactly while in the list of those that wait for receives
	provision  provision
	away       bool // true exactly while the provision is fetched
	question   question
	asked      bool // true exactly while the question is under way
	check      rangeCheck
	clock      reactor.Timer // deadline, then grace, then cleanup window
	retry      reactor.Timer
	backoff    lanes.Backoff
	roomBy     reactor.Instant // until when refusals for lack of room are answered by asking again; 0: not refused yet
	begun      reactor.Instant // when it last asked for grants, and when it had them
	granted    reactor.Instant
	by         reactor.Instant // end of the cleanup window; 0: nothing failed
	retiring   bool            // true exactly when nobody else is to use the connections: the source may end them
	forced     bool            // true exactly when the grace is over and the pairs were taken to the error state
	stopping   bool            // true exactly inside advance
	again      bool
	pausing    bool // true exactly while the retry timer runs before anything was asked
	yields     uint // how often the local range was given back while the question for grants waited for the stream
	yielding   bool // true exactly while that question is taken back for it

	encodeGrants, encodeParent func([]byte) []byte
	grantAnswered, answered    func(*question)
}

// RemoteMemory is what is behind a remote range.
type RemoteMemory uint8

const (
	RemoteHost   RemoteMemory = iota
	RemoteStaged              // on a GPU; the source copies through staging
	RemoteSlot                // on a GPU; the payload goes to and from pinned memory at the source, which devices reach (SPEC C-8)
	RemoteDirect              // on a GPU; devices reach it, and each slice has a connection of its own (SPEC C-7)
)

// leg is one pair of NICs of a transfer: its connection and who is told about it.
type leg struct {
	transfer *Transfer
	index    int
	path     Path
	claim    Claim
	local    verbs.LocalKey
	address  uint64 // of the transfer's first byte, as the device sees it
	chunk    uint64 // bytes of one work request at most
	charged  uint64 // bytes of the device's load
	wire     uint8  // index among the request's connections
	rail     *Rail
	dead     bool // true exactly when Lost was told
	mute     bool // true exactly when Quiet was told
}

func (l *leg) connection() *Connection { return l.claim.Hold.Connection }

// Start runs the transfer, on the lane of the rails and of the peer's channel. Done follows, never from inside Start or Cancel;
// nothing touches the transfer after it.
func (t *Transfer) Start(r *Rails, p *Peer) {
	if t.machine.stage != transferIdle {
		panic("rdma: Start of a transfer that is at " + t.machine.stage.String() + ", want idle")
	}
	t.reset(r, p)
	now := r.lane.Now()
	switch {
	case r.fenced:
		t.conclude(fault(lanes.Closed, "start", ErrClosed))
		return
	case t.Length > r.lane.Policy.PayloadBytesMax:
		t.conclude(fault(lanes.Exhausted, "start", &budgets.Exhausted{Budget: "one payload", Unit: "bytes", Asked: int64(min(t.Length, 1<<62)), Limit: int64(r.lane.Policy.PayloadBytesMax)}))
		return
	case t.Deadline <= now:
		t.conclude(&lanes.Fault{Cause: lanes.Deadline, Stage: "start"})
		return
	}
	if t.Length == 0 {
		t.machine.stage = transferChecking
		t.check.start(t)
		return
	}
	if t.staged() {
		if f := t.gpu.ready(r.lane, t.Local, flows.Requester); f != nil {
			t.conclude(f)
			return
		}
	}
	if t.chunked() && t.track == nil {
		r.transport.grants.staged.Add(1)
	}
	if t.walks() {
		t.startWalk()
		return
	}
	if g := Of(t.Local); !t.staged() {
		if g == nil || !g.Lend() {
			t.conclude(fault(lanes.Unreachable, "start", errUnregistered))
			return
		}
		t.registered = g
	}
	if t.Deadline != reactor.Forever { // last: what was refused has ended, and must hear of no deadline
		r.lane.Arm(&t.clock, t.Deadline, t)
	}
	t.connect()
}

var errUnregistered = errors.New("the local memory is not registered with the RDMA devices, or is being unregistered")

// staged is true exactly when this side's memory is served through staging (SPEC R-6).
func (t *Transfer) staged() bool {
	if t.gpu.memory != nil {
		return t.rails.transport.config.Device == DeviceStaged
	}
	return t.rails.transport.config.Host == netproto.HostStaged
}

// private is true exactly when the transfer has connections of its own (SPEC R-16).
func (t *Transfer) private() bool { return t.staged() || t.aloneThere() }

// aloneThere is true exactly when the source gives each grant a connection of its own, as far as it has said: it stages, or
// devices reach its GPU.
func (t *Transfer) aloneThere() bool {
	switch t.Remote {
	case RemoteHost:
		return t.peer.Host == netproto.HostStaged
	case RemoteSlot:
		return false
	}
	return true
}

// profile is how the transfer's grants end.
func (t *Transfer) profile() netproto.GrantProfile {
	if t.Remote == RemoteDirect {
		return netproto.ProfileRegion
	}
	return netproto.ProfileWindow
}

func (t *Transfer) reset(r *Rails, p *Peer) {
	t.rails, t.peer = r, p
	r.upper.begun(t)
	r.pending++ // the lane's end waits for it
	t.gpu.reset(t.Local)
	t.machine.begin(t.Direction, t.staged())
	t.machine.rigid = t.Remote == RemoteStaged && t.Direction == lanes.Write
	t.owed, t.copied, t.walked = 0, 0, false
	if !t.keeps {
		t.used = 0
	}
	t.slots, t.grants = t.slots[:0], t.grants[:0]
	t.pausing, t.filled, t.forced, t.retiring, t.asked, t.away, t.roomy = false, false, false, false, false, false, false
	t.flushed, t.crowded, t.gap, t.detoured = false, nil, nil, false
	t.backoff, t.roomBy, t.by, t.yields, t.yielding = lanes.Backoff{}, 0, 0, 0, false
	if t.encodeGrants == nil { // once, so that later runs allocate nothing
		t.encodeGrants = func(dst []byte) []byte { return netproto.AppendGrantRequest(dst, &t.request) }
		t.encodeParent = func(dst []byte) []byte {
			return netproto.AppendParent(dst, netproto.Parent{Requester: t.request.Requester, Generation: t.request.Generation, Slices: uint16(len(t.request.Slices))})
		}
		t.grantAnswered, t.answered = t.takeGrants, t.takeReceipt
	}
}

// claimed takes the answer to one claim.
func (t *Transfer) claimed(l *leg) {
	t.owed--
	if err := l.claim.Err; err != nil {
		f, ok := err.(*lanes.Fault)
		if !ok {
			f = fault(lanes.Unreachable, "RDMA connection", err)
		}
		switch {
		case t.crowds(f):
			t.crowded = f
		case t.detours(f):
			t.gap = f
		default:
			t.fail(f)
		}
	}
	t.advance()
}

// advance goes on with whatever can go on. It may be called at any time, also from inside itself.
func (t *Transfer) advance() {
	if t.stopping {
		t.again = true
		return
	}
	t.stopping = true
	for t.again = true; t.again; {
		t.again = false
		t.step()
	}
	t.stopping = false
}

// step takes one look; whatever changes the stage asks for another one.
func (t *Transfer) step() {
	m := &t.machine
	switch m.stage {
	case transferTurn:
		if t.places > 0 && !t.pausing {
			t.connect()
		}
	case transferConnecting:
		switch {
		case t.owed > 0:
		case t.crowded != nil:
			t.stepAside()
		case t.gap != nil && !t.detoured:
			t.detour()
		default:
			t.enter(transferRoom)
		}
	case transferRoom:
		if m.fault == nil && !t.waiting {
			t.rails.upper.enlist(t)
		}
	case transferStocking:
		t.stock()
	case transferLeasing:
		if !t.pausing {
			t.leaseLocal()
		}
	case transferMoving:
		if m.complete() {
			if t.lease.Held() && t.gpu.memory == nil { // a request that waits for the range may have the stream that the receipt needs
				t.lease.Return() // proof: every work request has completed
			}
			t.enter(transferReceipt)
			t.tell(netproto.OperationRDMADone, t.Deadline.After(haltGrace))
		}
	case transferHalting:
		t.halt()
	}
}

func (t *Transfer) enter(s transferStage) {
	t.machine.stage = s
	t.again = true
	if !t.stopping {
		t.advance()
	}
}

// stock takes what the slices need: a message slot each, and staging.
func (t *Transfer) stock() {
	if t.away {
		return
	}
	p := &t.provision
	p.begin(t.rails, t)
	for i := range t.machine.parcels {
		p.add(t.legOf(i).connection().rail, 1, 0)
	}
	if t.chunked() {
		p.chunks[flows.Requester] = true
	} else if t.staged() && t.staging == nil && !t.lodges() {
		s, err := newStaging(t.rails.transport.config.Budgets.StagingBytes, t.Length, verbs.AccessLocalWrite)
		if err != nil {
			t.fail(fault(lanes.Exhausted, "staging", err))
			return
		}
		t.staging = s
		t.rails.transport.grants.staged.Add(1)
	}
	if t.staging != nil {
		p.staging = t.staging
		for _, l := range t.legs[:t.used] {
			t.staging.on(l.connection().Device)
		}
	}
	if p.missing() {
		t.away = true
		p.fetch()
		return
	}
	for i := range t.machine.parcels {
		t.slots = append(t.slots, t.legOf(i).connection().rail.stock.take())
	}
	if err := t.locate(); err != nil {
		t.fail(fault(lanes.Unreachable, "path", err))
		return
	}
	t.enter(transferLeasing)
}

// provisioned goes on with what the cold loop made.
func (t *Transfer) provisioned(err error) {
	t.away = false
	if t.machine.stage == transferWalking {
		t.walk.reserved(err)
		return
	}
	if err != nil {
		t.fail(fault(lanes.Exhausted, "registering private memory", err))
	}
	t.advance()
}

func (t *Transfer) legOf(slice int) *leg { return t.legs[t.machine.parcels[slice].leg] }

// locate finds keys and addresses of the local bytes on each device.
func (t *Transfer) locate() error {
	private, at := t.buffer()
	for _, l := range t.legs[:t.used] {
		d := l.connection().Device
		if l.chunk = uint64(d.Context.Route().MaxMessage); l.chunk == 0 || l.chunk > messageMax {
			l.chunk = messageMax
		}
		if t.chunked() {
			continue
		}
		if private != nil {
			region := private.region(d)
			if region == nil { // it was fenced when the memory was registered
				return fmt.Errorf("%s: %w", d.Name, errUnregistered)
			}
			l.local, l.address = region.LocalKey(), private.backing.Address()+at
			continue
		}
		region, _ := t.registered.On(d.NIC)
		if region == nil || !region.Covers(t.Local.Address()+t.LocalOffset, t.Length) {
			return fmt.Errorf("%s: %w", d.Name, errUnregistered)
		}
		l.local, l.address = region.LocalKey(), t.Local.Address()+t.LocalOffset
	}
	return nil
}

// leaseLocal takes the local range: for as long as the device may touch it, or to fill the staging of a WRITE. A staged
// READ into host memory leases it when everything is here.
func (t *Transfer) leaseLocal() {
	if t.staged() && !t.chunked() && (t.Direction == lanes.Read || t.filled) {
		t.ask()
		return
	}
	if !t.lease.Held() {
		access := segments.Exclusive
		if t.Direction == lanes.Write {
			access = segments.Shared
		}
		lease, err := t.Local.Lease(t.LocalOffset, t.Length, access)
		if err != nil {
			t.room(fault(lanes.Conflicted, "lease", err))
			return
		}
		t.lease, t.copied = lease, 0
	}
	if t.chunked() {
		t.ask()
		return
	}
	if !t.staged() {
		if !t.bytes.Held() {
			charge, err := t.rails.transport.config.Budgets.DirectBytes.Take(int64(t.Length))
			if err != nil {
				t.fail(fault(lanes.Exhausted, "lease", err))
				return
			}
			t.bytes = charge
		}
		t.ask()
		return
	}
	if t.copied = lanes.CopySlice(t.staging.backing.Bytes(), t.lease.Bytes(), t.copied); uint64(t.copied) < t.Length {
		t.pause(t.rails.lane.Now().After(1))
		return
	}
	t.lease.Return()
	t.filled = true
	t.ask()
}

// room tries again a little later, or gives up with the fault. Nothing was granted.
func (t *Transfer) room(f *lanes.Fault) {
	lane := t.rails.lane
	if t.roomBy == 0 {
		t.roomBy = min(lane.Now().After(roomGrace), t.Deadline)
	}
	if t.patient() {
		t.roomBy = t.Deadline
	}
	if lane.Now() >= t.roomBy {
		t.fail(f)
		return
	}
	lane.Counts.ConflictRetries.Add(1)
	t.pause(t.backoff.Next(lane.Now(), t.roomBy))
}

// pause goes on with the local range at an instant.
func (t *Transfer) pause(until reactor.Instant) {
	t.pausing = true
	t.rails.lane.Arm(&t.retry, until, (*transferRetry)(t))
}

// transferRetry is the handler of the timer for another try.
type transferRetry Transfer

// Expire (reactor.TimerHandler).
func (x *transferRetry) Expire(*reactor.Timer, reactor.Instant) {
	t := (*Transfer)(x)
	switch t.machine.stage {
	case transferCommit:
		t.commit()
		return
	case transferGranting:
		t.yield()
		return
	}
	t.pausing = false
	t.advance()
}

// feed queues every slice that has something to post, and posts what fits.
func (t *Transfer) feed() {
	for i := range t.machine.parcels {
		if c := t.legOf(i).connection(); c != nil && c.Open() && t.upcoming(i) != workNone {
			c.queue(int(t.machine.parcels[i].pair), &t.hungers[i], t, i)
		}
	}
	for i := range t.machine.parcels {
		if c := t.legOf(i).connection(); c != nil && c.Open() {
			c.pump(int(t.machine.parcels[i].pair))
		}
	}
}

// halt ends a failed transfer's work: what is posted ends by itself, grants that are left are ended by their bindings,
// and after the grace the pairs go to the error state.
func (t *Transfer) halt() {
	if t.asked || t.owed > 0 || t.away {
		return
	}
	if !t.machine.resting() {
		if !t.forced {
			t.feed()
		}
		if t.forced || t.machine.rigid && t.machine.idle() {
			t.force()
		}
		if !t.machine.resting() {
			return
		}
	}
	if t.unflow() {
		return
	}
	if t.machine.authority && !t.machine.received {
		t.machine.stage = transferAbandoning
		t.rails.transport.grants.abandoned.Add(1)
		t.tell(netproto.OperationRDMAAbandon, min(t.by, t.rails.lane.Now().After(abandonTimeout)))
		return
	}
	t.settle()
}
