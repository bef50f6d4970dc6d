package verbstest

import (
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/verbs"
)

// rig is one test with its two sides.
type rig struct {
	*testing.T
	Harness
	a, b *side
}

// side is an opened device with a domain, and all that a test made on it.
type side struct {
	*rig
	verbs.Calls
	where  Side
	device verbs.DeviceHandle
	domain verbs.DomainHandle
	port   verbs.PortInfo
	gid    verbs.GIDEntry

	pairs    []*endpoint
	windows  []verbs.WindowHandle
	regions  []verbs.RegionHandle
	queues   []verbs.QueueHandle
	channels []verbs.ChannelHandle
}

// newRig opens both devices, and ends everything when the test ends.
func newRig(t *testing.T, h Harness) *rig {
	r := &rig{T: t, Harness: h}
	t.Cleanup(func() {
		if h.Done != nil {
			if err := h.Done(); err != nil {
				t.Error(err)
			}
		}
	})
	r.a, r.b = r.open(h.A), r.open(h.B)
	there := r.b.gids()
	for _, e := range r.a.gids() {
		for _, other := range there {
			if r.a.gid.GID == (verbs.GID{}) && e.Type == verbs.GIDRoCEv2 && other.Type == e.Type && ipv4(e.GID) && ipv4(other.GID) {
				r.a.gid, r.b.gid = e, other
			}
		}
	}
	if r.a.gid.GID == (verbs.GID{}) {
		t.Fatal("the two ports have no IPv4 address for RoCEv2 each")
	}
	return r
}

func ipv4(g verbs.GID) bool { return g[10] == 0xff && g[11] == 0xff }

func (r *rig) open(where Side) *side {
	r.Helper()
	s := &side{rig: r, Calls: where.Calls, where: where}
	var err error
	s.device, err = s.OpenDevice(where.Device)
	r.must(err)
	r.Cleanup(s.end)
	s.domain, err = s.AllocateDomain(s.device)
	r.must(err)
	s.port, err = s.Port(s.device, where.Port)
	r.must(err)
	return s
}

func (s *side) gids() []verbs.GIDEntry {
	s.Helper()
	all, err := s.GIDs(s.device, s.where.Port)
	s.must(err)
	return all
}

// end ends what is left, in the order of SPEC R-18.
func (s *side) end() {
	check := func(what string, err error) {
		if err != nil {
			s.Errorf("end of %s on %s: %v", what, s.where.Device, err)
		}
	}
	for _, e := range s.pairs {
		if state, err := s.QueryPair(e.pair); err == nil && state != verbs.PairReset {
			check("a pair (to Error)", s.ModifyPair(e.pair, verbs.Transition{To: verbs.PairError}))
		}
	}
	for _, w := range s.windows {
		check("a window", s.FreeWindow(w))
	}
	for _, e := range s.pairs {
		check("a pair", s.DestroyPair(e.pair))
	}
	for _, m := range s.regions {
		check("a region", s.Deregister(m))
	}
	for _, q := range s.queues {
		check("a queue", s.DestroyQueue(q))
	}
	for _, c := range s.channels {
		check("a channel", s.DestroyChannel(c))
	}
	if s.domain != 0 {
		check("a domain", s.FreeDomain(s.domain))
	}
	check("a device", s.CloseDevice(s.device))
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// refused checks that a call failed with one of these errors.
func (r *rig) refused(what string, err error, errnos ...syscall.Errno) {
	r.Helper()
	for _, e := range errnos {
		if errors.Is(err, e) {
			return
		}
	}
	r.Errorf("%s: got %v, want one of %v", what, err, errnos)
}

// memory is mapped bytes with guards around what a test uses.
type memory struct {
	bytes   []byte
	address uint64
}

// memory maps at least n bytes outside the Go heap, filled with a pattern. It ends with the test.
func (r *rig) memory(n int, fill byte) memory {
	r.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	r.must(err)
	// Registered last, a mapping would end first; the sides were registered before, so they end after it. The pages
	// must outlive the regions: they stay for the life of the test process.
	for i := range b {
		b[i] = fill
	}
	return memory{b, addressOf(b)}
}

// region registers memory and is ended with the side.
type region struct {
	memory
	handle verbs.RegionHandle
	local  verbs.LocalKey
	remote verbs.RemoteKey
}

const (
	localOnly = verbs.AccessLocalWrite
	parent    = verbs.AccessLocalWrite | verbs.AccessWindowBind
	everyone  = verbs.AccessLocalWrite | verbs.AccessRemoteRead | verbs.AccessRemoteWrite
)

func (s *side) region(n int, fill byte, a verbs.Access) region {
	s.Helper()
	m := region{memory: s.memory(n, fill)}
	var err error
	m.handle, m.local, m.remote, err = s.Register(s.domain, m.address, uint64(n), a)
	s.must(err)
	s.regions = append(s.regions, m.handle)
	return m
}

func (s *side) deregister(m region) {
	s.Helper()
	s.must(s.Deregister(m.handle))
	s.regions = slices.DeleteFunc(s.regions, func(h verbs.RegionHandle) bool { return h == m.handle })
}

func (s *side) channel() verbs.ChannelHandle {
	s.Helper()
	c, err := s.CreateChannel(s.device)
	s.must(err)
	s.channels = append(s.channels, c)
	return c
}

func (s *side) queue(entries int, c verbs.ChannelHandle) verbs.QueueHandle {
	s.Helper()
	q, err := s.CreateQueue(s.device, entries, c)
	s.must(err)
	s.queues = append(s.queues, q)
	return q
}

// endpoint is one pair with its queues and the completions that were taken from them.
type endpoint struct {
	*side
	pair            verbs.PairHandle
	number          verbs.PairNumber
	sends, receives verbs.QueueHandle
	depth           int
	sent, received  []verbs.Completion
	buffer          []verbs.Completion
}

// shape is how a connection of a test is made.
type shape struct {
	depth       int // 0: 32
	inline      int
	access      verbs.Access // 0: remote reads and writes
	mtu         int          // 0: 1024
	timeout     uint8        // 0: 14
	retries     uint8        // 0: 3
	notReady    uint8        // retries; 0: none
	reads       uint8        // 0: 4
	psnGap      uint32       // how far B starts behind what A expects
	queue       int          // entries of each completion queue; 0: four times the depth
	withChannel bool
}

func (o *shape) complete() {
	set := func(v *uint8, n uint8) {
		if *v == 0 {
			*v = n
		}
	}
	if o.depth == 0 {
		o.depth = 32
	}
	if o.access == 0 {
		o.access = verbs.AccessRemoteRead | verbs.AccessRemoteWrite
	}
	if o.mtu == 0 {
		o.mtu = 1024
	}
	if o.queue == 0 {
		o.queue = 4 * o.depth
	}
	set(&o.timeout, 14)
	set(&o.retries, 3)
	set(&o.reads, 4)
}

// endpoint makes a pair in Reset, with two queues of its own.
func (s *side) endpoint(o shape) *endpoint {
	s.Helper()
	o.complete()
	var c verbs.ChannelHandle
	if o.withChannel {
		c = s.channel()
	}
	e := &endpoint{side: s, sends: s.queue(o.queue, c), receives: s.queue(o.queue, c), depth: o.depth, buffer: make([]verbs.Completion, 64)}
	s.pair(e, o)
	return e
}

func (s *side) pair(e *endpoint, o shape) {
	s.Helper()
	var err error
	e.pair, e.number, err = s.CreatePair(s.domain, verbs.PairOptions{
		Sends: e.sends, Receives: e.receives, SendDepth: o.depth, ReceiveDepth: o.depth, Inline: o.inline,
	})
	s.must(err)
	s.pairs = append(s.pairs, e)
}

func (e *endpoint) destroy() {
	e.Helper()
	e.must(e.DestroyPair(e.pair))
	e.side.pairs = slices.DeleteFunc(e.side.pairs, func(o *endpoint) bool { return o == e })
}

// connect makes a reliable connection between the two sides.
func (r *rig) connect(o shape) (a, b *endpoint) {
	r.Helper()
	o.complete()
	a, b = r.a.endpoint(o), r.b.endpoint(o)
	r.join(a, b, o)
	return a, b
}

const psnA, psnB = 0xfffff0, 0x1234 // A's numbers wrap early

// join takes two pairs from Reset to ReadyToSend.
func (r *rig) join(a, b *endpoint, o shape) {
	r.Helper()
	o.complete()
	for _, e := range []*endpoint{a, b} {
		peer, own, expected := b, uint32(psnA), uint32(psnB)
		if e == b {
			peer, own, expected = a, psnB+o.psnGap, psnA
		}
		r.must(e.ModifyPair(e.pair, e.initial(o)))
		r.must(e.ModifyPair(e.pair, e.receiving(o, peer, expected)))
		r.must(e.ModifyPair(e.pair, e.sending(o, own)))
	}
}

func (e *endpoint) initial(o shape) verbs.Transition {
	return verbs.Transition{To: verbs.PairInit, Port: e.where.Port, Access: o.access}
}

func (e *endpoint) receiving(o shape, peer *endpoint, psn uint32) verbs.Transition {
	return verbs.Transition{
		To: verbs.PairReadyToReceive, Port: e.where.Port, Remote: peer.number, ReceiveStart: psn, MTU: o.mtu, SourceGID: e.gid.Index, RemoteGID: peer.gid.GID,
		HopLimit: 64, ReadsAnswered: o.reads, ReceiverNotReady: 12,
	}
}

func (e *endpoint) sending(o shape, psn uint32) verbs.Transition {
	return verbs.Transition{To: verbs.PairReadyToSend, SendStart: psn, Timeout: o.timeout, Retries: o.retries, NotReadyRetries: o.notReady, ReadsAsked: o.reads}
}

// take polls once.
func (e *endpoint) take() int {
	e.Helper()
	sent, received, err := e.Poll(e.sends, e.receives, e.buffer)
	e.must(err)
	e.sent = append(e.sent, e.buffer[:sent]...)
	e.received = append(e.received, e.buffer[sent:sent+received]...)
	return sent + received
}

// await waits until so many sends and receives have completed, in all.
func (e *endpoint) await(sends, receives int) {
	e.Helper()
	if !e.eventually(func() bool { e.take(); return len(e.sent) >= sends && len(e.received) >= receives }) {
		e.Fatalf("%s: %d of %d sends and %d of %d receives completed within %v: %+v %+v", e.where.Device, len(e.sent), sends, len(e.received), receives, patience, e.sent, e.received)
	}
	if len(e.sent) > sends || len(e.received) > receives {
		e.Fatalf("%s: %d sends and %d receives completed, wanted %d and %d: %+v %+v", e.where.Device, len(e.sent), len(e.received), sends, receives, e.sent, e.received)
	}
}

// eventually waits until something is true.
func (r *rig) eventually(done func() bool) bool {
	for end := r.Now() + patience; ; {
		if done() {
			return true
		}
		if r.Now() > end {
			return false
		}
		r.Pass()
	}
}

// rest lets d pass, for what must not happen.
func (r *rig) rest(d time.Duration) {
	for end := r.Now() + d; r.Now() < end; {
		before := r.Now()
		r.Pass()
		if r.Now() == before && r.Idle != nil && r.Idle() {
			return
		}
	}
}

// post posts a list that must be accepted.
func (e *endpoint) post(list ...verbs.SendWork) {
	e.Helper()
	n, err := e.PostSend(e.pair, list)
	if err != nil || n != len(list) {
		e.Fatalf("%s: %d of %d work requests accepted: %v", e.where.Device, n, len(list), err)
	}
}

func (e *endpoint) receive(list ...verbs.ReceiveWork) {
	e.Helper()
	n, err := e.PostReceive(e.pair, list)
	if err != nil || n != len(list) {
		e.Fatalf("%s: %d of %d receives accepted: %v", e.where.Device, n, len(list), err)
	}
}

// last is the newest send completion, which must be of this work with one of these statuses.
func (e *endpoint) last(id uint64, statuses ...verbs.WorkStatus) verbs.Completion {
	e.Helper()
	return e.check(e.sent[len(e.sent)-1], id, statuses)
}

func (e *endpoint) lastReceived(id uint64, statuses ...verbs.WorkStatus) verbs.Completion {
	e.Helper()
	return e.check(e.received[len(e.received)-1], id, statuses)
}

func (e *endpoint) check(c verbs.Completion, id uint64, statuses []verbs.WorkStatus) verbs.Completion {
	e.Helper()
	if c.ID != id || !slices.Contains(statuses, c.Status) || c.Pair != e.number {
		e.Errorf("%s: completion of work %d on pair %d with status %d (vendor %#x), wanted work %d on pair %d with status %v",
			e.where.Device, c.ID, c.Pair, c.Status, c.Vendor, id, e.number, statuses)
	}
	return c
}

// do posts one piece of work, signaled, and waits for its end.
func (e *endpoint) do(w verbs.SendWork, statuses ...verbs.WorkStatus) verbs.Completion {
	e.Helper()
	if len(statuses) == 0 {
		statuses = []verbs.WorkStatus{verbs.WorkSuccess}
	}
	w.Flags |= verbs.Signaled
	e.post(w)
	e.await(len(e.sent)+1, len(e.received))
	return e.last(w.ID, statuses...)
}

// local is the status of work that fails on its own side.
func (r *rig) local(s verbs.WorkStatus) []verbs.WorkStatus {
	if r.Facts.TrueLocalErrors.Holds {
		return []verbs.WorkStatus{s}
	}
	return []verbs.WorkStatus{s, verbs.WorkFlushed, verbs.WorkLocalPair}
}
