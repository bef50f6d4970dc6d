package verbstest

import (
	"syscall"

	"github.com/orbitte/orbitte/verbs"
)

var failureCases = []conformance{
	{"ErrorFlushesEverythingInOrder", flushOrder},
	{"WorkPostedInErrorIsFlushed", postInError},
	{"WrongLocalKeysFail", localKeys},
	{"WrongRemoteKeysAndRangesFail", remoteKeys},
	{"APairPermitsWhatItWasMadeFor", pairAccess},
	{"AMessageThatIsTooLongFailsBothSides", tooLong},
	{"AMissingReceiveIsReported", notReady},
	{"AMissingReceiveIsWaitedFor", notReadyWaits},
	{"APeerThatIsGoneIsNoticed", peerGone},
	{"PacketNumbersMustMeet", packetNumbers},
	{"ADestroyedPairsCompletionsFollowItsDevice", destroyedPair},
	{"AFailureFlushesWhatIsBehindIt", flushBehind},
}

// flushOrder: IBTA 10.3.1: in Error all work completes, unsignaled work included, in order.
func flushOrder(r *rig) {
	a, _ := r.deaf(shape{timeout: 20})
	m := r.a.region(64, 0, localOnly)
	const n = 20
	for i := range n {
		w := write(uint64(i), m, 0, 64, 4096, 1)
		if i%3 == 0 {
			w.Flags = verbs.Signaled
		}
		a.post(w)
		a.receive(verbs.ReceiveWork{ID: uint64(100 + i), Address: m.address, Length: 64, LocalKey: m.local})
	}
	r.must(a.ModifyPair(a.pair, verbs.Transition{To: verbs.PairError}))
	a.await(n, n)
	for i := range n {
		a.check(a.sent[i], uint64(i), []verbs.WorkStatus{verbs.WorkFlushed})
		a.check(a.received[i], uint64(100+i), []verbs.WorkStatus{verbs.WorkFlushed})
	}
}

// postInError: IBTA 10.3.1: posting to a pair in Error succeeds and flushes, within the depth.
func postInError(r *rig) {
	a, _ := r.connect(shape{depth: 16, queue: 400})
	m := r.a.region(64, 0, localOnly)
	r.must(a.ModifyPair(a.pair, verbs.Transition{To: verbs.PairError}))
	for i := range 8 {
		a.post(verbs.SendWork{ID: uint64(i), Operation: verbs.Send, Address: m.address, Length: 64, LocalKey: m.local})
	}
	a.await(8, 0)
	for i := range 8 {
		a.receive(verbs.ReceiveWork{ID: uint64(i), Address: m.address, Length: 64, LocalKey: m.local})
	}
	if !r.Facts.FlushesLateReceives.Holds { // another move to Error makes the device look
		r.must(a.ModifyPair(a.pair, verbs.Transition{To: verbs.PairError}))
	}
	a.await(8, 8)
	list := make([]verbs.SendWork, 200)
	for i := range list {
		list[i] = verbs.SendWork{ID: uint64(1000 + i), Operation: verbs.Send}
	}
	n, err := a.PostSend(a.pair, list)
	r.refused("200 sends into a queue for 16 in Error", err, syscall.ENOMEM)
	if n < 16 || n >= 200 {
		r.Fatalf("%d of 200 sends accepted in Error", n)
	}
	if !r.eventually(func() bool { a.take(); return len(a.sent) == 8+n }) {
		r.Fatalf("%d of %d sends completed", len(a.sent), 8+n)
	}
	for i, c := range a.received {
		a.check(c, uint64(i), []verbs.WorkStatus{verbs.WorkFlushed})
	}
	for i, c := range a.sent[8:] {
		a.check(c, uint64(1000+i), []verbs.WorkStatus{verbs.WorkFlushed})
	}
}

// localKeys: IBTA 10.7.3: local bytes need a key of the same domain, with the right to be written for a READ.
func localKeys(r *rig) {
	here, there := r.a.region(4096, 0, verbs.AccessRemoteRead), r.b.region(4096, 2, everyone)
	try := func(what string, w verbs.SendWork) {
		r.Helper()
		a, _ := r.connect(shape{})
		a.do(w, r.local(verbs.WorkLocalProtection)...)
		if state, err := a.QueryPair(a.pair); err != nil || state != verbs.PairError {
			r.Errorf("%s: the pair is in state %d: %v", what, state, err)
		}
	}
	w := write(1, here, 0, 64, there.address, there.remote)
	w.LocalKey ^= 0x40
	try("a local key with another tag", w)
	try("bytes behind the region", write(1, here, 4096-63, 64, there.address, there.remote))
	try("a READ into a region without LOCAL_WRITE", read(1, here, 0, 64, there.address, there.remote))
	if here.bytes[0] != 0 {
		r.Error("a refused READ wrote")
	}
}

// remoteKeys: IBTA 9.7.5.2.4 and 10.7.3: the peer's region gives its range and directions.
func remoteKeys(r *rig) {
	here, there := r.a.region(4096, 1, localOnly), r.b.region(4096, 2, everyone)
	readable := r.b.region(4096, 2, verbs.AccessRemoteRead)
	private := r.b.region(4096, 2, localOnly)
	try := func(what string, w verbs.SendWork) {
		r.Helper()
		a, b := r.connect(shape{})
		a.refusedAccess(what, w)
		if !r.eventually(func() bool { state, err := b.QueryPair(b.pair); return err == nil && state == verbs.PairError }) {
			r.Errorf("%s: the refusing pair stays out of Error", what)
		}
	}
	try("another tag", write(1, here, 0, 64, there.address, there.remote^1))
	try("bytes behind the region", write(1, here, 0, 64, there.address+4096-63, there.remote))
	try("bytes before the region", read(1, here, 0, 64, there.address-1, there.remote))
	try("a WRITE to a region for READs", write(1, here, 0, 64, readable.address, readable.remote))
	try("a WRITE to a private region", write(1, here, 0, 64, private.address, private.remote))
	try("a READ of a private region", read(1, here, 0, 64, private.address, private.remote))
	for _, m := range []region{there, readable, private} {
		for i, b := range m.bytes {
			if b != 2 {
				r.Fatalf("byte %d of a region was changed by refused work", i)
			}
		}
	}
}

// pairAccess: ibv_modify_qp(3), qp_access_flags: without the flag, no key helps.
func pairAccess(r *rig) {
	here, there := r.a.region(64, 1, localOnly), r.b.region(64, 2, everyone)
	for _, access := range []verbs.Access{canRead, canWrite} {
		a, _ := r.connect(shape{access: access})
		good, bad := read(1, here, 0, 64, there.address, there.remote), write(2, here, 0, 64, there.address, there.remote)
		if access == canWrite {
			good, bad = bad, good
		}
		a.do(good)
		a.do(bad, verbs.WorkRemoteRequest, verbs.WorkRemoteAccess)
	}
}

// tooLong: IBTA 9.9.6.1: the receiver's error is its length; the sender's is an invalid request.
func tooLong(r *rig) {
	receiver, sender := []verbs.WorkStatus{verbs.WorkLocalLength}, []verbs.WorkStatus{verbs.WorkRemoteRequest}
	if !r.Facts.LengthErrors.Holds {
		receiver, sender = append(receiver, verbs.WorkLocalPair), append(sender, verbs.WorkRemoteOperation)
	}
	a, b := r.connect(shape{})
	here, there := r.a.region(5000, 1, localOnly), r.b.region(5000, 2, localOnly)
	b.receive(verbs.ReceiveWork{ID: 3, Address: there.address, Length: 2000, LocalKey: there.local})
	a.do(verbs.SendWork{ID: 1, Operation: verbs.Send, Address: here.address, Length: 5000, LocalKey: here.local}, sender...)
	b.await(0, 1)
	b.lastReceived(3, receiver...)
	for i, c := range there.bytes[2000:] {
		if c != 2 {
			r.Fatalf("byte %d behind the receive was written", i)
		}
	}
}

// notReady: IBTA 9.7.5.2.8.
func notReady(r *rig) {
	a, _ := r.connect(shape{notReady: 0})
	a.do(verbs.SendWork{ID: 1, Operation: verbs.Send}, verbs.WorkNotReadyExceeded)
}

// notReadyWaits: IBTA 9.7.5.2.8: with retries the message arrives once a receive is there.
func notReadyWaits(r *rig) {
	a, b := r.connect(shape{notReady: 7})
	here, there := r.a.region(3000, 1, localOnly), r.b.region(3000, 2, localOnly)
	a.post(verbs.SendWork{ID: 1, Operation: verbs.Send, Flags: verbs.Signaled, Address: here.address, Length: 3000, LocalKey: here.local})
	r.rest(5e6)
	if a.take() != 0 {
		r.Fatalf("a message without a receive ended: %+v", a.sent)
	}
	b.receive(verbs.ReceiveWork{ID: 3, Address: there.address, Length: 3000, LocalKey: there.local})
	a.await(1, 0)
	a.last(1, verbs.WorkSuccess)
	b.await(0, 1)
	if there.bytes[2999] != 1 {
		r.Error("the message is not there")
	}
}

// peerGone: IBTA 9.7.6.1.3: without an answer, work ends after its retries; an empty WRITE is a probe.
func peerGone(r *rig) {
	a, b := r.connect(shape{timeout: 12, retries: 2})
	a.do(verbs.SendWork{ID: 1, Operation: verbs.Write}) // no bytes: no key is looked at
	b.destroy()
	a.do(verbs.SendWork{ID: 2, Operation: verbs.Write}, verbs.WorkRetryExceeded)
}

// packetNumbers: IBTA 9.7: a pair that begins elsewhere than its peer expects is not heard.
func packetNumbers(r *rig) {
	_, b := r.connect(shape{psnGap: 1000, timeout: 10, retries: 1})
	here, there := r.b.region(64, 1, localOnly), r.a.region(64, 2, everyone)
	w := write(1, here, 0, 64, there.address, there.remote)
	w.Flags = verbs.Signaled
	b.post(w)
	b.await(1, 0)
	b.last(1, verbs.WorkRetryExceeded)
	if there.bytes[0] != 2 {
		r.Error("bytes arrived with numbers that do not meet")
	}
}

// destroyedPair: ibv_destroy_qp(3) says nothing of completions that were not polled; devices differ.
func destroyedPair(r *rig) {
	a, _ := r.connect(shape{})
	m := r.a.region(64, 0, localOnly)
	for i := range 10 {
		a.receive(verbs.ReceiveWork{ID: uint64(i), Address: m.address, Length: 64, LocalKey: m.local})
	}
	r.must(a.ModifyPair(a.pair, verbs.Transition{To: verbs.PairError}))
	r.rest(20e6)
	a.destroy()
	a.take()
	if got, kept := len(a.received), r.Facts.KeepsCompletions; kept.Holds && got != 10 || !kept.Holds && got != 0 {
		r.Errorf("%d of 10 completions of a destroyed pair were polled; kept is %v (%s)", got, kept.Holds, kept.Why)
	}
}

// flushBehind: IBTA 10.3.1: the failed work has its status, all behind it is flushed, all before it succeeded.
func flushBehind(r *rig) {
	a, _ := r.connect(shape{})
	here, there := r.a.region(4096, 1, localOnly), r.b.region(4096, 2, everyone)
	var list []verbs.SendWork
	for i := range 12 {
		w := write(uint64(i), here, 0, 100, there.address, there.remote)
		if i == 5 {
			w.RemoteKey ^= 0x10
		}
		w.Flags = verbs.Signaled
		list = append(list, w)
	}
	a.post(list...)
	a.await(12, 0)
	for i, c := range a.sent {
		want := verbs.WorkSuccess
		switch {
		case i == 5:
			want = verbs.WorkRemoteAccess
		case i > 5:
			want = verbs.WorkFlushed
		}
		a.check(c, uint64(i), []verbs.WorkStatus{want})
	}
}
