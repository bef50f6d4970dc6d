package verbstest

import (
	"syscall"

	"github.com/orbitte/orbitte/verbs"
)

var eventCases = []conformance{
	{"AnArmedQueueRaisesOneEvent", arming},
	{"ABacklogFollowsItsDevice", backlog},
	{"OneChannelServesTwoQueues", twoQueues},
	{"AQueueThatOverflowsLosesAndSaysSo", overflow},
	{"ARefusedKeyIsReportedWhereTheDeviceDoes", accessEvent},
	{"APortThatGoesDownIsReported", portEvents},
	{"WorkOverADeadPortEnds", deadPort},
	{"AnAddressMayVanishAndComeBack", lostAddress},
}

// waiting says whether the channel's descriptor has something.
func (e *endpoint) waiting(c verbs.ChannelHandle) bool { return e.Readable(e.ChannelDescriptor(c)) }

// event takes one event, which must be of this queue.
func (e *endpoint) event(c verbs.ChannelHandle, queue verbs.QueueHandle) {
	e.Helper()
	if !e.eventually(func() bool { return e.waiting(c) }) {
		e.Fatal("the channel of an armed queue stays quiet")
	}
	got, ok, err := e.NextEvent(c)
	e.must(err)
	if !ok || got != queue {
		e.Fatalf("event of queue %d (%v), want %d", got, ok, queue)
	}
}

// none checks that the channel has nothing.
func (e *endpoint) none(what string, c verbs.ChannelHandle) {
	e.Helper()
	if q, ok, err := e.NextEvent(c); err != nil || ok || e.waiting(c) {
		e.Errorf("%s: an event of queue %d is there (%v), or the descriptor is readable: %v", what, q, ok, err)
	}
}

func (e *endpoint) channelOf() verbs.ChannelHandle { return e.channels[len(e.channels)-1] }

// arming: ibv_req_notify_cq(3), ibv_get_cq_event(3): one event for each arming, at the next completion.
func arming(r *rig) {
	a, _ := r.connect(shape{withChannel: true})
	c := a.channelOf()
	a.do(verbs.SendWork{ID: 1, Operation: verbs.Write})
	a.none("a queue that is not armed", c)
	r.must(a.Arm(a.sends))
	a.none("an armed queue without completions", c)
	for i := range 3 {
		a.post(verbs.SendWork{ID: uint64(2 + i), Operation: verbs.Write, Flags: verbs.Signaled})
	}
	a.event(c, a.sends)
	a.await(4, 0)
	a.none("three completions on one arming", c)
	a.do(verbs.SendWork{ID: 9, Operation: verbs.Write})
	a.none("a queue that is not armed again", c)
}

// backlog: ibv_req_notify_cq(3) leaves it open whether completions that are there count: arm, then poll again.
func backlog(r *rig) {
	a, _ := r.connect(shape{withChannel: true})
	c := a.channelOf()
	a.post(verbs.SendWork{ID: 1, Operation: verbs.Write, Flags: verbs.Signaled})
	r.rest(20e6)
	r.must(a.Arm(a.sends))
	r.rest(5e6)
	if got := a.waiting(c); got != r.Facts.EventForBacklog.Holds {
		r.Errorf("an event for a completion before the arming: %v, want %v (%s)", got, r.Facts.EventForBacklog.Holds, r.Facts.EventForBacklog.Why)
	}
	if a.waiting(c) {
		a.event(c, a.sends)
	}
	a.await(1, 0)
}

// twoQueues: ibv_create_cq(3): queues may share a channel.
func twoQueues(r *rig) {
	a, b := r.connect(shape{withChannel: true})
	c := b.channelOf()
	m := r.b.region(64, 0, localOnly)
	r.must(b.Arm(b.receives))
	r.must(b.Arm(b.sends))
	b.receive(verbs.ReceiveWork{ID: 3, Address: m.address, Length: 64, LocalKey: m.local})
	a.do(verbs.SendWork{ID: 1, Operation: verbs.Send})
	b.event(c, b.receives)
	b.await(0, 1)
	b.post(verbs.SendWork{ID: 1, Operation: verbs.Write, Flags: verbs.Signaled})
	b.event(c, b.sends)
	b.await(1, 1)
	b.none("all taken", c)
}

// asyncOf takes asynchronous events until one of this kind is there.
func (s *side) asyncOf(kind verbs.AsyncKind) (verbs.AsyncEvent, bool) {
	s.Helper()
	var found verbs.AsyncEvent
	ok := s.eventually(func() bool {
		e, some, err := s.NextAsync(s.device)
		s.must(err)
		found = e
		return some && e.Kind == kind
	})
	return found, ok
}

// overflow: ibv_create_cq(3), IBTA 11.6.3.1: a full queue loses completions, and CQ_ERR says so.
func overflow(r *rig) {
	a, _ := r.connect(shape{depth: 64, queue: 8})
	const n = 60
	for i := range n {
		a.post(verbs.SendWork{ID: uint64(i), Operation: verbs.Write, Flags: verbs.Signaled})
	}
	if !r.eventually(func() bool { return r.Readable(r.a.AsyncDescriptor(r.a.device)) }) {
		r.Fatal("a queue that overflowed raises nothing")
	}
	if e, ok := r.a.asyncOf(verbs.AsyncQueueError); !ok || e.Queue != a.sends {
		r.Fatalf("CQ_ERR of the queue did not come: %+v", e)
	}
	r.rest(20e6)
	a.take()
	if got := len(a.sent); got >= n || got < 8 {
		r.Errorf("%d of %d completions came through a queue of 8", got, n)
	}
	if r.Facts.QueueRecovers.Holds {
		before := len(a.sent)
		a.post(verbs.SendWork{ID: 999, Operation: verbs.Write, Flags: verbs.Signaled})
		a.await(before+1, 0)
		a.last(999, verbs.WorkSuccess)
	}
}

// accessEvent: IBTA 11.6.3.2: the side that refuses may be told.
func accessEvent(r *rig) {
	a, b := r.connect(shape{})
	here, there := r.a.region(64, 1, localOnly), r.b.region(64, 2, everyone)
	a.refusedAccess("a wrong key", write(1, here, 0, 64, there.address, there.remote^1))
	if !r.Facts.AccessEvents.Holds {
		r.rest(20e6)
		if e, some, err := r.b.NextAsync(r.b.device); some || err != nil {
			r.Errorf("an event where this device raises none: %+v %v", e, err)
		}
		return
	}
	if e, ok := r.b.asyncOf(verbs.AsyncPairAccessError); !ok || e.Pair != b.pair {
		r.Errorf("QP_ACCESS_ERR of the refusing pair did not come: %+v", e)
	}
}

// portEvents: ibv_get_async_event(3), ibv_query_port(3): PORT_ERR and PORT_ACTIVE, and the state follows. An idle pair
// survives.
func portEvents(r *rig) {
	if r.Link == nil {
		r.Skip("link: this harness cannot take a port down")
	}
	a, _ := r.connect(shape{})
	here, there := r.a.region(64, 1, localOnly), r.b.region(64, 2, everyone)
	a.do(write(1, here, 0, 64, there.address, there.remote))
	state := func(want verbs.PortState) bool {
		return r.eventually(func() bool {
			p, err := r.a.Port(r.a.device, r.a.where.Port)
			return err == nil && p.State == want
		})
	}
	r.Link(false)
	if e, ok := r.a.asyncOf(verbs.AsyncPortError); !ok || e.Port != r.a.where.Port {
		r.Errorf("PORT_ERR did not come: %+v", e)
	}
	if !state(verbs.PortDown) {
		r.Error("the port is not reported as down")
	}
	r.Link(true)
	if e, ok := r.a.asyncOf(verbs.AsyncPortActive); !ok || e.Port != r.a.where.Port {
		r.Errorf("PORT_ACTIVE did not come: %+v", e)
	}
	if !state(verbs.PortActive) {
		r.Error("the port is not reported as active")
	}
	a.do(write(2, here, 0, 64, there.address, there.remote))
}

// deadPort: IBTA 9.7.6.1.3 where packets are lost; some devices fail the work at once. Nothing is left in flight.
func deadPort(r *rig) {
	if r.Link == nil {
		r.Skip("link: this harness cannot take a port down")
	}
	a, b := r.connect(shape{timeout: 12, retries: 1})
	here, there := r.a.region(64, 1, localOnly), r.b.region(64, 2, everyone)
	r.Link(false)
	defer r.Link(true)
	_, ok := r.a.asyncOf(verbs.AsyncPortError)
	if !ok {
		r.Error("PORT_ERR did not come")
	}
	want := []verbs.WorkStatus{verbs.WorkRetryExceeded}
	if r.Facts.FlushesDeadPort.Holds {
		want = r.local(verbs.WorkFlushed)
	}
	a.do(write(1, here, 0, 64, there.address, there.remote), want...)
	if there.bytes[0] != 2 {
		r.Error("bytes went over a dead port")
	}
	_ = b
}

// lostAddress: MEASURED.md: GID events come, the entry is empty, work over it ends, and the address is back later, maybe
// under another index.
func lostAddress(r *rig) {
	if r.Address == nil {
		r.Skip("address: this harness cannot take an address away")
	}
	o := shape{timeout: 12, retries: 1}
	o.complete()
	a, _ := r.connect(o)
	late := r.a.endpoint(o)
	here, there := r.a.region(64, 1, localOnly), r.b.region(64, 2, everyone)
	a.do(write(1, here, 0, 64, there.address, there.remote))
	r.Address(false)
	back := false
	defer func() {
		if !back {
			r.Address(true)
		}
	}()
	if _, ok := r.a.asyncOf(verbs.AsyncGIDChange); !ok {
		r.Error("GID_CHANGE did not come")
	}
	if !r.eventually(func() bool { return r.a.indexOf(r.a.gid.GID) < 0 }) {
		r.Error("the entry is still there")
	}
	r.must(late.ModifyPair(late.pair, late.initial(o)))
	r.refused("an entry that became empty", late.ModifyPair(late.pair, late.receiving(o, a, 1)), syscall.ENODATA)
	want := []verbs.WorkStatus{verbs.WorkRetryExceeded}
	if r.Facts.FlushesDeadPort.Holds {
		want = r.local(verbs.WorkFlushed)
	}
	a.do(write(2, here, 0, 64, there.address, there.remote), want...)
	r.Address(true)
	back = true
	if !r.eventually(func() bool { return r.a.indexOf(r.a.gid.GID) >= 0 }) {
		r.Fatal("the address is not back")
	}
	r.a.gid.Index = r.a.indexOf(r.a.gid.GID)
	again, _ := r.connect(o)
	again.do(write(3, here, 0, 64, there.address, there.remote))
}

// indexOf looks an address up by its value; -1: it is not there.
func (s *side) indexOf(g verbs.GID) int {
	s.Helper()
	for _, e := range s.gids() {
		if e.GID == g && e.Type == s.gid.Type {
			return e.Index
		}
	}
	return -1
}
