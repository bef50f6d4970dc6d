package simverbs_test

import (
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// node is one process with one device open.
type node struct {
	*simverbs.Process
	t      testing.TB
	fabric *simverbs.Fabric
	device verbs.DeviceHandle
	domain verbs.DomainHandle
	gid    verbs.GIDEntry
}

// end is one pair of a node with its queues and what came out of them.
type end struct {
	*node
	pair            verbs.PairHandle
	number          verbs.PairNumber
	sends, receives verbs.QueueHandle
	sent, received  []verbs.Completion
	buffer          [64]verbs.Completion
}

// piece is registered memory.
type piece struct {
	bytes   []byte
	address uint64
	handle  verbs.RegionHandle
	local   verbs.LocalKey
	remote  verbs.RemoteKey
}

const everyone = verbs.AccessLocalWrite | verbs.AccessRemoteRead | verbs.AccessRemoteWrite

func newFabric(t *testing.T, o simverbs.Options) *simverbs.Fabric {
	t.Helper()
	if o.Violation == nil {
		o.Violation = func(err error) { t.Error(err) }
	}
	return simverbs.NewFabric(seedOf(t), o)
}

func open(t testing.TB, f *simverbs.Fabric, host string) *node {
	t.Helper()
	n := &node{Process: f.Host(host).Process(host), t: t, fabric: f}
	devices, err := n.Devices()
	n.must(err)
	n.device, err = n.OpenDevice(devices[0].Name)
	n.must(err)
	n.domain, err = n.AllocateDomain(n.device)
	n.must(err)
	gids, err := n.GIDs(n.device, 1)
	n.must(err)
	n.gid = gids[1]
	return n
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) queue(entries int, c verbs.ChannelHandle) verbs.QueueHandle {
	n.t.Helper()
	q, err := n.CreateQueue(n.device, entries, c)
	n.must(err)
	return q
}

func (n *node) end(depth int, c verbs.ChannelHandle) *end {
	n.t.Helper()
	e := &end{node: n, sends: n.queue(4*depth, c), receives: n.queue(4*depth, c)}
	var err error
	e.pair, e.number, err = n.CreatePair(n.domain, verbs.PairOptions{Sends: e.sends, Receives: e.receives, SendDepth: depth, ReceiveDepth: depth})
	n.must(err)
	return e
}

// join connects two pairs.
func join(a, b *end) {
	for _, p := range [][2]*end{{a, b}, {b, a}} {
		e, peer := p[0], p[1]
		e.must(e.ModifyPair(e.pair, verbs.Transition{To: verbs.PairInit, Port: 1, Access: verbs.AccessRemoteRead | verbs.AccessRemoteWrite}))
		e.must(e.ModifyPair(e.pair, verbs.Transition{
			To: verbs.PairReadyToReceive, Port: 1, Remote: peer.number, ReceiveStart: 7, MTU: 1024, SourceGID: e.gid.Index,
			RemoteGID: peer.gid.GID, ReadsAnswered: 4, ReceiverNotReady: 12,
		}))
		e.must(e.ModifyPair(e.pair, verbs.Transition{To: verbs.PairReadyToSend, SendStart: 7, Timeout: 10, Retries: 3, NotReadyRetries: 3, ReadsAsked: 4}))
	}
}

// couple opens two hosts and connects a pair of each.
func couple(t testing.TB, f *simverbs.Fabric) (a, b *end) {
	t.Helper()
	a, b = open(t, f, "a").end(16, 0), open(t, f, "b").end(16, 0)
	join(a, b)
	return a, b
}

func (n *node) piece(size int, fill byte, access verbs.Access) piece {
	n.t.Helper()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	n.must(err)
	for i := range b {
		b[i] = fill
	}
	m := piece{bytes: b, address: uint64(uintptr(unsafe.Pointer(&b[0])))}
	m.handle, m.local, m.remote, err = n.Register(n.domain, m.address, uint64(size), access)
	n.must(err)
	return m
}

func writing(id uint64, from, to piece, n int) verbs.SendWork {
	return verbs.SendWork{
		ID: id, Operation: verbs.Write, Flags: verbs.Signaled, Address: from.address, Length: uint32(n), LocalKey: from.local,
		Remote: to.address, RemoteKey: to.remote,
	}
}

func (e *end) post(list ...verbs.SendWork) {
	e.t.Helper()
	if n, err := e.PostSend(e.pair, list); err != nil || n != len(list) {
		e.t.Fatalf("%d of %d sends accepted: %v", n, len(list), err)
	}
}

func (e *end) listen(list ...verbs.ReceiveWork) {
	e.t.Helper()
	if n, err := e.PostReceive(e.pair, list); err != nil || n != len(list) {
		e.t.Fatalf("%d of %d receives accepted: %v", n, len(list), err)
	}
}

func (e *end) take() {
	e.t.Helper()
	for {
		sent, received, err := e.Poll(e.sends, e.receives, e.buffer[:])
		e.must(err)
		e.sent = append(e.sent, e.buffer[:sent]...)
		e.received = append(e.received, e.buffer[sent:sent+received]...)
		if sent+received == 0 {
			return
		}
	}
}

// settle lets everything happen that lies ahead, and takes what came of it.
func settle(f *simverbs.Fabric, ends ...*end) {
	for n := 0; f.Step() && n < 1<<20; n++ {
	}
	for _, e := range ends {
		e.take()
	}
}

// statuses of completions, in order.
func statuses(list []verbs.Completion) []verbs.WorkStatus {
	var all []verbs.WorkStatus
	for _, c := range list {
		all = append(all, c.Status)
	}
	return all
}

// ended checks what the work of an end came to, in order.
func ended(t *testing.T, list []verbs.Completion, want ...verbs.WorkStatus) {
	t.Helper()
	if got := statuses(list); !slices.Equal(got, want) {
		t.Errorf("completions end as %v, want %v", got, want)
	}
}

// windUp ends all objects of a pair's process, in order, and reports what is refused.
func (e *end) windUp(pieces ...piece) {
	e.t.Helper()
	e.must(e.ModifyPair(e.pair, verbs.Transition{To: verbs.PairError}))
	e.must(e.DestroyPair(e.pair))
	for _, m := range pieces {
		e.must(e.Deregister(m.handle))
	}
	e.must(e.DestroyQueue(e.sends))
	e.must(e.DestroyQueue(e.receives))
	e.must(e.FreeDomain(e.domain))
	e.must(e.CloseDevice(e.device))
}

func noneLive(t *testing.T, f *simverbs.Fabric) {
	t.Helper()
	if left := f.Live(); len(left) != 0 {
		t.Errorf("objects are left: %+v", left)
	}
}

const success, flushed = verbs.WorkSuccess, verbs.WorkFlushed

// second is long enough for everything in a test.
const second = time.Second
