package verbstest

import (
	"bytes"
	"syscall"

	"github.com/orbitte/orbitte/verbs"
)

var transferCases = []conformance{
	{"WritesAndReadsOfOddSizesTouchNothingElse", oddSizes},
	{"AListIsCarriedOutInOrder", lists},
	{"SendsFillReceivesInOrder", sends},
	{"InlineBytesAreTakenAtOnce", inline},
	{"AFencedWriteSeesWhatWasRead", fences},
	{"MoreReadsThanCreditsWait", manyReads},
	{"AFullSendQueueNamesTheElement", fullSendQueue},
	{"AFullReceiveQueueNamesTheElement", fullReceiveQueue},
	{"TwoPairsShareQueues", sharedQueues},
	{"BothSidesTransferAtOnce", crossing},
}

const guard = 64

// write is a WRITE of n bytes between two regions.
func write(id uint64, from region, at int, n int, to uint64, key verbs.RemoteKey) verbs.SendWork {
	return verbs.SendWork{ID: id, Operation: verbs.Write, Address: from.address + uint64(at), Length: uint32(n), LocalKey: from.local, Remote: to, RemoteKey: key}
}

func read(id uint64, into region, at int, n int, from uint64, key verbs.RemoteKey) verbs.SendWork {
	w := write(id, into, at, n, from, key)
	w.Operation = verbs.Read
	return w
}

func fillCounting(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8) ^ seed
	}
}

// oddSizes: IBTA 9.4.3 and 9.4.4: exactly the named bytes move.
func oddSizes(r *rig) {
	a, b := r.connect(shape{})
	for i, n := range []int{0, 1, 3, 1023, 1024, 1025, 4095, 64<<10 + 1, 300<<10 + 7} {
		here, there := r.a.region(n+2*guard, 0x11, localOnly), r.b.region(n+2*guard, 0x22, everyone)
		fillCounting(here.bytes[guard:guard+n], byte(i))
		a.do(write(uint64(i), here, guard, n, there.address+guard, there.remote))
		r.guarded("written", there, n, 0x22, here.bytes[guard:guard+n])
		back := r.a.region(n+2*guard, 0x33, localOnly)
		c := a.do(read(uint64(i), back, guard, n, there.address+guard, there.remote))
		if c.Operation != verbs.CompletedRead {
			r.Errorf("a READ completed as operation %d", c.Operation)
		}
		r.guarded("read", back, n, 0x33, here.bytes[guard:guard+n])
		r.a.deregister(here)
		r.a.deregister(back)
		r.b.deregister(there)
	}
	_ = b
}

// guarded checks n bytes behind a guard, and the guards on both sides.
func (r *rig) guarded(what string, m region, n int, fill byte, want []byte) {
	r.Helper()
	if !bytes.Equal(m.bytes[guard:guard+n], want) {
		r.Errorf("%d bytes %s: they differ", n, what)
	}
	for i := range guard {
		if m.bytes[i] != fill || m.bytes[guard+n+i] != fill {
			r.Fatalf("%d bytes %s: a guard byte near %d was changed", n, what, i)
		}
	}
}

// lists: ibv_post_send(3): one list is carried out in order, unsignaled work reports success by what follows it.
func lists(r *rig) {
	a, _ := r.connect(shape{})
	const n, size = 16, 3001
	here, there := r.a.region(n*size, 0, localOnly), r.b.region(n*size, 0, everyone)
	fillCounting(here.bytes, 0x5a)
	var list []verbs.SendWork
	for i := range n {
		list = append(list, write(uint64(100+i), here, i*size, size, there.address+uint64(i*size), there.remote))
	}
	list[n-1].Flags = verbs.Signaled
	a.post(list...)
	a.await(1, 0)
	a.last(100+n-1, verbs.WorkSuccess)
	if !bytes.Equal(here.bytes, there.bytes) {
		r.Error("a list of writes was reported as done, and bytes differ")
	}
	// The same place again and again: the last one stands.
	list = list[:0]
	for i := range n {
		list = append(list, write(uint64(i), here, i*size, size, there.address, there.remote))
	}
	list[n-1].Flags = verbs.Signaled
	a.post(list...)
	a.await(2, 0)
	if !bytes.Equal(here.bytes[(n-1)*size:], there.bytes[:size]) {
		r.Error("writes to one place were carried out in another order")
	}
}

// sends: IBTA 9.5: messages fill receives in the order both were posted; ibv_poll_cq(3): byte_len.
func sends(r *rig) {
	a, b := r.connect(shape{})
	const n, room = 12, 5000
	here, there := r.a.region(n*room, 0, localOnly), r.b.region(n*room, 0xee, localOnly)
	fillCounting(here.bytes, 3)
	for i := range n {
		b.receive(verbs.ReceiveWork{ID: uint64(50 + i), Address: there.address + uint64(i*room), Length: room, LocalKey: there.local})
	}
	size := func(i int) int { return i * i * 41 % room }
	for i := range n {
		a.post(verbs.SendWork{ID: uint64(i), Operation: verbs.Send, Flags: verbs.Signaled, Address: here.address + uint64(i*room), Length: uint32(size(i)), LocalKey: here.local})
	}
	a.await(n, 0)
	b.await(0, n)
	for i, c := range b.received {
		b.check(c, uint64(50+i), []verbs.WorkStatus{verbs.WorkSuccess})
		if int(c.Length) != size(i) || c.Operation != verbs.CompletedReceive {
			r.Errorf("receive %d: %d bytes by operation %d, want %d", i, c.Length, c.Operation, size(i))
		}
		got := there.bytes[i*room : (i+1)*room]
		if !bytes.Equal(got[:size(i)], here.bytes[i*room:i*room+size(i)]) || size(i) < room && got[size(i)] != 0xee {
			r.Errorf("message %d differs, or wrote more than it has", i)
		}
		a.check(a.sent[i], uint64(i), []verbs.WorkStatus{verbs.WorkSuccess})
	}
}

// inline: ibv_post_send(3), IBV_SEND_INLINE: the buffer may change as soon as the call returns, and needs no key.
func inline(r *rig) {
	a, b := r.connect(shape{inline: 128})
	m, there := r.memory(4096, 0), r.b.region(4096, 0, everyone)
	b.receive(verbs.ReceiveWork{ID: 7, Address: there.address + 2048, Length: 128, LocalKey: there.local})
	for i, op := range []verbs.SendOperation{verbs.Write, verbs.Send} {
		fillCounting(m.bytes[:128], byte(op))
		a.post(verbs.SendWork{ID: uint64(op), Operation: op, Flags: verbs.Inline | verbs.Signaled, Address: m.address, Length: 128, Remote: there.address, RemoteKey: there.remote})
		want := bytes.Clone(m.bytes[:128])
		clear(m.bytes)
		a.await(i+1, 0)
		if op == verbs.Send {
			b.await(0, 1)
		}
		if !bytes.Equal(there.bytes[i*2048:i*2048+128], want) {
			r.Errorf("operation %d: inline bytes were read after the call", op)
		}
	}
	if n, err := a.PostSend(a.pair, []verbs.SendWork{{Operation: verbs.Send, Flags: verbs.Inline, Address: m.address, Length: 4096}}); err == nil || n != 0 {
		r.Errorf("%d sends with too many inline bytes were accepted: %v", n, err)
	}
}

// fences: IBTA 10.8.3.3: fenced work begins after all READs before it.
func fences(r *rig) {
	a, _ := r.connect(shape{})
	const n = 100<<10 + 1
	buffer, source, target := r.a.region(n, 0, localOnly), r.b.region(n, 0, everyone), r.b.region(n, 0, everyone)
	for round := range 5 {
		fillCounting(source.bytes, byte(round*7+1))
		w := write(2, buffer, 0, n, target.address, target.remote)
		w.Flags = verbs.Fence | verbs.Signaled
		a.post(read(1, buffer, 0, n, source.address, source.remote), w)
		a.await(round+1, 0)
		a.last(2, verbs.WorkSuccess)
		if !bytes.Equal(source.bytes, target.bytes) {
			r.Fatalf("round %d: a fenced WRITE sent bytes from before the READ", round)
		}
	}
}

// manyReads: IBTA 9.4.4: the requester keeps to the responder's resources by itself.
func manyReads(r *rig) {
	a, _ := r.connect(shape{reads: 2})
	const n, size = 24, 2500
	here, there := r.a.region(n*size, 0, localOnly), r.b.region(n*size, 0, everyone)
	fillCounting(there.bytes, 9)
	for i := range n {
		w := read(uint64(i), here, i*size, size, there.address+uint64(i*size), there.remote)
		w.Flags = verbs.Signaled
		a.post(w)
	}
	a.await(n, 0)
	for i, c := range a.sent {
		a.check(c, uint64(i), []verbs.WorkStatus{verbs.WorkSuccess})
	}
	if !bytes.Equal(here.bytes, there.bytes) {
		r.Error("bytes read differ")
	}
}

// deaf connects A to a pair of B that is not ready, so that A's work stays in its queue.
func (r *rig) deaf(o shape) (a, b *endpoint) {
	r.Helper()
	o.complete()
	a, b = r.a.endpoint(o), r.b.endpoint(o)
	r.must(a.ModifyPair(a.pair, a.initial(o)))
	r.must(a.ModifyPair(a.pair, a.receiving(o, b, psnB)))
	r.must(a.ModifyPair(a.pair, a.sending(o, psnA)))
	return a, b
}

// fullSendQueue: ibv_post_send(3): ENOMEM and bad_wr at the first element that did not fit; a device may have more
// places than were asked for.
func fullSendQueue(r *rig) {
	a, _ := r.deaf(shape{depth: 16, timeout: 20, queue: 400})
	here := r.a.region(64, 0, localOnly)
	list := make([]verbs.SendWork, 100)
	for i := range list {
		list[i] = write(uint64(i), here, 0, 64, 4096, 1)
	}
	n, err := a.PostSend(a.pair, list)
	r.refused("100 sends into a queue for 16", err, syscall.ENOMEM)
	if n < 16 || n >= 100 {
		r.Fatalf("%d of 100 sends accepted", n)
	}
	r.must(a.ModifyPair(a.pair, verbs.Transition{To: verbs.PairError}))
	a.await(n, 0)
	for i, c := range a.sent {
		a.check(c, uint64(i), []verbs.WorkStatus{verbs.WorkFlushed})
	}
}

// fullReceiveQueue: ibv_post_recv(3), the same.
func fullReceiveQueue(r *rig) {
	a, _ := r.connect(shape{depth: 16, queue: 400})
	here := r.a.region(64, 0, localOnly)
	list := make([]verbs.ReceiveWork, 100)
	for i := range list {
		list[i] = verbs.ReceiveWork{ID: uint64(i), Address: here.address, Length: 64, LocalKey: here.local}
	}
	n, err := a.PostReceive(a.pair, list)
	r.refused("100 receives into a queue for 16", err, syscall.ENOMEM)
	if n < 16 || n >= 100 {
		r.Fatalf("%d of 100 receives accepted", n)
	}
	r.must(a.ModifyPair(a.pair, verbs.Transition{To: verbs.PairError}))
	a.await(0, n)
	for i, c := range a.received {
		a.check(c, uint64(i), []verbs.WorkStatus{verbs.WorkFlushed})
	}
}

// sharedQueues: ibv_create_qp(3): pairs may share completion queues; qp_num tells them apart.
func sharedQueues(r *rig) {
	o := shape{}
	o.complete()
	a1, b1 := r.connect(o)
	a2 := &endpoint{side: r.a, sends: a1.sends, receives: a1.receives, depth: o.depth, buffer: a1.buffer}
	r.a.pair(a2, o)
	b2 := r.b.endpoint(o)
	r.join(a2, b2, o)
	m, there := r.a.region(100, 0, localOnly), r.b.region(100, 0, everyone)
	w := write(1, m, 0, 100, there.address, there.remote)
	w.Flags = verbs.Signaled
	a1.post(w)
	w.ID = 2
	a2.post(w)
	a1.await(2, 0)
	seen := map[verbs.PairNumber]uint64{a1.sent[0].Pair: a1.sent[0].ID, a1.sent[1].Pair: a1.sent[1].ID}
	if seen[a1.number] != 1 || seen[a2.number] != 2 {
		r.Errorf("completions by pair: %v, wanted work 1 of %d and work 2 of %d", seen, a1.number, a2.number)
	}
	_ = b1
}

// crossing: both directions of one connection are independent.
func crossing(r *rig) {
	a, b := r.connect(shape{})
	const n, size = 10, 20000
	ma, mb := r.a.region(2*n*size, 1, everyone), r.b.region(2*n*size, 2, everyone)
	fillCounting(ma.bytes[:n*size], 1)
	fillCounting(mb.bytes[:n*size], 2)
	for i := range n {
		from, to := i*size, uint64((n+i)*size)
		wa, wb := write(uint64(i), ma, from, size, mb.address+to, mb.remote), read(uint64(i), mb, 0, 1, ma.address, ma.remote)
		if i%2 == 1 {
			wb = write(uint64(i), mb, from, size, ma.address+to, ma.remote)
		}
		wb.Address = mb.address + uint64(from)
		wa.Flags, wb.Flags = verbs.Signaled, verbs.Signaled
		a.post(wa)
		b.post(wb)
	}
	a.await(n, 0)
	b.await(n, 0)
	if !bytes.Equal(ma.bytes[:n*size], mb.bytes[n*size:]) {
		r.Error("bytes of A differ at B")
	}
	for i := 1; i < n; i += 2 {
		if !bytes.Equal(mb.bytes[i*size:(i+1)*size], ma.bytes[(n+i)*size:(n+i+1)*size]) {
			r.Errorf("bytes of B's WRITE %d differ at A", i)
		}
	}
}
