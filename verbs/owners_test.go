package verbs_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// everywhere runs a test on hardware and on both kinds of soft-RoCE.
func everywhere(t *testing.T, test func(t *testing.T, f *simverbs.Fabric)) {
	for _, p := range []simverbs.Personality{simverbs.Hardware, simverbs.SoftRoCE, simverbs.OldSoftRoCE} {
		t.Run(p.String(), func(t *testing.T) {
			f := newFabric(p, 1)
			test(t, f)
			for _, v := range f.Violations() {
				t.Error(v)
			}
		})
	}
}

func window(t *testing.T, e *end) *verbs.MemoryWindow {
	t.Helper()
	w, err := e.domain.AllocateWindow()
	e.check(err)
	return w
}

func send(tag uint64, e *end, offset uint64, length uint32, op verbs.SendOperation) verbs.Work {
	return verbs.Work{SendWork: verbs.SendWork{ID: tag, Operation: op, Address: addressOf(e.memory) + offset, Length: length, LocalKey: e.region.LocalKey()}}
}

func receive(tag uint64, e *end) verbs.ReceiveWork {
	return verbs.ReceiveWork{ID: tag, Address: addressOf(e.memory), Length: 256, LocalKey: e.region.LocalKey()}
}

// proves
func TestGrantIsBoundUsedAndEndedByItsPeer(t *testing.T) {
	everywhere(t, func(t *testing.T, f *simverbs.Fabric) {
		source, requester := newEnd(t, f, "source", 64), newEnd(t, f, "requester", 64)
		qs, qr := connect(source, requester, 8)
		w := window(t, source)
		for round := range 300 { // longer than an index has tags on one window
			if !w.Reusable() {
				source.domain.Park(w)
				w = window(t, source)
			}
			key := source.grant(f, w, qs, 1000, 50, verbs.AccessRemoteWrite)
			source.check(qs.PostReceive([]verbs.ReceiveWork{receive(77, source)}))
			copy(requester.memory[100:], "exact range")
			write := send(5, requester, 100, 11, verbs.Write)
			write.Remote, write.RemoteKey = addressOf(source.memory)+1000, key
			done := send(6, requester, 0, 141, verbs.SendWithInvalidate)
			done.RemoteKey, done.Flags = key, verbs.Fence
			requester.check(qr.PostSend([]verbs.Work{write, done}))
			settle(f)
			sent := requester.poll()
			if len(sent) != 2 || sent[0].ID != 5 || sent[1].ID != 6 || sent[1].Status != verbs.WorkSuccess {
				t.Fatalf("round %d: %+v", round, sent)
			}
			got := source.one(f)
			if got.ID != 77 || got.Length != 141 || got.Invalidated != key || string(source.memory[1000:1011]) != "exact range" {
				t.Fatalf("round %d: %+v", round, got)
			}
			other := got
			other.Invalidated++
			forged := got // SEND_WITH_IMM with the key's number: both share a field of ibv_wc
			forged.Flags = verbs.WithImmediate
			if w.EndByPeer(&forged) {
				t.Fatal("a message with immediate data ended a window")
			}
			if w.EndByPeer(&other) || !w.EndByPeer(&got) || w.EndByPeer(&got) {
				t.Fatal("the receipt counts for another key, not for its own, or twice")
			}
		}
		if n := source.domain.Counts(); n.Parked != 1 || n.KeyIndices != 2 {
			t.Fatalf("%+v", n)
		}
		source.check(source.closeAll(f, []*verbs.MemoryWindow{w}, qs))
		requester.check(requester.closeAll(f, nil, qr))
		source.agree()
		requester.agree()
	})
}

// proves R-12
func TestOldKeyNeverGainsAuthorityAgain(t *testing.T) {
	everywhere(t, func(t *testing.T, f *simverbs.Fabric) {
		source, requester := newEnd(t, f, "source", 64), newEnd(t, f, "requester", 64)
		qs, qr := connect(source, requester, 8)
		seen := map[verbs.RemoteKey]bool{}
		for range 40 { // windows come and go, so that indices come back
			w := window(t, source)
			for range 3 {
				work, err := w.PrepareBind(1, qs, source.region, addressOf(source.memory), 10, verbs.AccessRemoteRead)
				source.check(err)
				source.check(qs.PostSend([]verbs.Work{work}))
				source.one(f)
				if seen[w.Key()] {
					t.Fatalf("key %#x had authority before", w.Key())
				}
				seen[w.Key()] = true
				source.check(qs.PostSend([]verbs.Work{w.PrepareInvalidate(2)}))
				source.one(f)
			}
			source.check(w.Free())
		}
		source.check(source.closeAll(f, nil, qs))
		requester.check(requester.closeAll(f, nil, qr))
	})
}

// proves R-12
func TestUsedUpIndexIsParkedAndReplacedUpToTheBound(t *testing.T) {
	f := newFabric(simverbs.Hardware, 3)
	e := newEnd(t, f, "a", 64)
	peer := newEnd(t, f, "b", 64)
	q, p := connect(e, peer, 4)
	small, err := e.context.AllocateDomain(1)
	e.check(err)
	w, err := small.AllocateWindow()
	e.check(err)
	if _, err = small.AllocateWindow(); !errors.Is(err, verbs.ErrKeys) || small.Counts().Windows != 1 {
		t.Fatalf("a second index in a history of one: %v, %+v", err, small.Counts())
	}
	e.check(w.Free())
	e.check(small.Close())
	none, err := e.context.AllocateDomain(0)
	e.check(err)
	if _, err = none.AllocateWindow(); !errors.Is(err, verbs.ErrKeys) {
		t.Fatal(err)
	}
	e.check(none.Close())
	e.check(e.closeAll(f, nil, q))
	peer.check(peer.closeAll(f, nil, p))
}

// proves R-12
func TestIndexThatIsGivenOutTwiceIsRefusedAndKept(t *testing.T) {
	f := newFabric(simverbs.Hardware, 4)
	e := newEnd(t, f, "a", 64)
	w := window(t, e)
	twin := &twice{tamper: e.tamper}
	context, err := verbs.Open(twin, 0, e.context.Device(), verbs.Pins{})
	e.check(err)
	domain, err := context.AllocateDomain(16)
	e.check(err)
	_, err = domain.AllocateWindow()
	e.check(err)
	twin.key = 0xabc01
	first, err := domain.AllocateWindow()
	e.check(err)
	if _, err = domain.AllocateWindow(); !errors.Is(err, verbs.ErrKeys) || !strings.Contains(err.Error(), "in use") {
		t.Fatal(err)
	}
	if r := context.Retained(); len(r) != 1 || !strings.Contains(r[0].Object, "memory window 0xabc01") {
		t.Fatalf("%+v", r)
	}
	e.check(first.Free())
	e.check(w.Free())
}

// twice gives every window the same key once it has one.
type twice struct {
	*tamper
	key verbs.RemoteKey
}

func (t *twice) AllocateWindow(d verbs.DomainHandle) (verbs.WindowHandle, verbs.RemoteKey, error) {
	h, key, err := t.tamper.AllocateWindow(d)
	if t.key != 0 {
		key = t.key
	}
	return h, key, err
}

// proves R-11
func TestPublishedWindowIsNeverInvalidatedFromHere(t *testing.T) {
	f := newFabric(simverbs.SoftRoCE, 5)
	a, b := newEnd(t, f, "a", 64), newEnd(t, f, "b", 64)
	qa, qb := connect(a, b, 4)
	w := window(t, a)
	a.grant(f, w, qa, 0, 10, verbs.AccessRemoteRead)
	mustPanic(t, "published", "bound", func() { w.PrepareInvalidate(1) })
	mustPanic(t, "published", "idle", func() { _, _ = w.PrepareBind(1, qa, a.region, addressOf(a.memory), 1, verbs.AccessRemoteRead) })
	if err := w.Free(); !errors.Is(err, verbs.ErrBusy) || !strings.Contains(err.Error(), "drain the pair") {
		t.Fatalf("freed while its peer may end it: %v", err)
	}
	a.check(qa.Drain())
	a.check(w.Free())
	mustPanic(t, "gone", "bound", func() { w.Publish() })
	a.check(a.closeAll(f, nil, qa))
	b.check(b.closeAll(f, nil, qb))
	if v := f.Violations(); len(v) > 0 {
		t.Fatal(v)
	}
}

func mustPanic(t *testing.T, have, want string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		text, _ := recover().(string)
		if !strings.Contains(text, have) || !strings.Contains(text, want) {
			t.Errorf("panic %q, want it to name %q and %q", text, have, want)
		}
	}()
	f()
}

// proves R-18
func TestNothingEndsBeforeWhatStandsOnIt(t *testing.T) {
	everywhere(t, func(t *testing.T, f *simverbs.Fabric) {
		a, b := newEnd(t, f, "a", 64), newEnd(t, f, "b", 64)
		qa, qb := connect(a, b, 4)
		w := window(t, a)
		a.grant(f, w, qa, 0, 10, verbs.AccessRemoteRead)
		a.check(qa.PostReceive([]verbs.ReceiveWork{receive(1, a)}))
		refused := func(err error, owes string) {
			t.Helper()
			var e *verbs.BusyError
			if !errors.As(err, &e) || e.Kept || !strings.Contains(err.Error(), owes) {
				t.Errorf("%v, want it to be busy with %s", err, owes)
			}
		}
		refused(qa.Destroy(), "unproven work requests")
		refused(qa.Detach(), "bound memory windows")
		refused(a.region.Destroy(), "users")
		refused(a.domain.Close(), "queue pairs")
		refused(a.sends.Destroy(), "pairs")
		refused(a.channel.Destroy(), "completion queues")
		refused(a.context.Close(), "protection domains")
		a.check(qa.Drain())
		refused(qa.Detach(), "2 unproven work requests") // the receive and the barrier behind it
		settle(f)
		if all := a.poll(); len(all) != 1 || all[0].ID != 1 || all[0].Status != verbs.WorkFlushed {
			t.Fatalf("%+v", all)
		}
		refused(qa.Detach(), "bound memory windows")
		a.check(w.Free())
		refused(qa.Destroy(), "detach it")
		a.check(qa.Detach())
		a.check(qa.Destroy())
		a.check(a.closeAll(f, nil))
		b.check(b.closeAll(f, nil, qb))
		if live := f.Live(); len(live) > 0 {
			t.Fatal(live)
		}
	})
}

// proves
func TestRefusedEndIsKeptListedAndNeverTriedAgain(t *testing.T) {
	for _, call := range []string{
		"ibv_dealloc_mw", "ibv_destroy_qp", "ibv_dereg_mr", "ibv_dealloc_pd", "ibv_destroy_cq", "ibv_destroy_comp_channel", "ibv_close_device", "ibv_modify_qp",
	} {
		t.Run(call, func(t *testing.T) {
			f := newFabric(simverbs.Hardware, 6)
			a, b := newEnd(t, f, "a", 64), newEnd(t, f, "b", 64)
			qa, qb := connect(a, b, 4)
			w := window(t, a)
			a.grant(f, w, qa, 0, 10, verbs.AccessRemoteRead)
			tries := 0
			a.tamper.refuse = func(c string) error {
				if c != call {
					return nil
				}
				tries++
				return errno(c, syscall.EIO)
			}
			for range 3 {
				err := a.closeAll(f, []*verbs.MemoryWindow{w}, qa)
				if err == nil || errors.Is(err, verbs.ErrRetained) != (call == "ibv_close_device") {
					t.Fatal(err)
				}
				a.agree()
			}
			if wants := map[string]int{"ibv_destroy_cq": 2}; tries != max(1, wants[call]) {
				t.Errorf("%s was called %d times", call, tries)
			}
			listed := a.context.Retained()
			if len(listed) == 0 || !errors.Is(listed[0].Reason, verbs.ErrRetained) || !errors.Is(listed[0].Reason, syscall.EIO) {
				t.Fatalf("%+v", listed)
			}
			last := listed[len(listed)-1].Object
			if !strings.HasPrefix(last, "context") {
				t.Errorf("the context stays too, and the list ends with %s", last)
			}
			_ = b.closeAll(f, nil, qb)
		})
	}
}

// field case F-53
// proves R-17
func TestCompletionQueueCannotOverflow(t *testing.T) {
	f := newFabric(simverbs.SoftRoCE, 7)
	a, b := newEnd(t, f, "a", 16), newEnd(t, f, "b", 64)
	qa, qb := connect(a, b, 7)
	var e *verbs.CreditError
	if _, err := a.domain.CreatePair(verbs.PairPlan{Sends: a.sends, Receives: a.recvs, SendDepth: 8, ReceiveDepth: 1}); !errors.As(err, &e) || e.Asked != 9 || e.Used != 8 || e.Limit != 16 {
		t.Fatal(err)
	}
	posted, done := 0, 0
	for done < 1000 {
		free, _ := qa.Free()
		if err := qa.PostSend([]verbs.Work{send(uint64(posted), a, 0, 0, verbs.Write)}); free == 0 {
			if !errors.As(err, &e) || e.Limit != 7 || e.Used != 7 {
				t.Fatalf("beyond what was asked: %v", err)
			}
			settle(f)
			done += len(a.poll())
		} else if err != nil {
			t.Fatal(err)
		} else {
			posted++
		}
	}
	for {
		event, ok, err := a.context.NextEvent()
		if err != nil || !ok {
			break
		}
		t.Errorf("event %s", event.Kind)
	}
	a.check(a.closeAll(f, nil, qa))
	b.check(b.closeAll(f, nil, qb))
}

// proves R-17
func TestFailedPostReleasesOnlyTheProvenSuffix(t *testing.T) {
	for _, c := range []struct {
		name         string
		take, report int
		kept         int
		unknown      bool
	}{
		{"none", 0, 0, 0, false}, {"one", 1, 1, 1, false}, {"two", 2, 2, 2, false},
		{"unknown, all were taken", 3, -1, 3, true}, {"unknown, none was taken", 0, -1, 3, true},
		{"more than asked", 1, 4, 3, true}, {"all and an error", 3, 3, 3, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			everywhere(t, func(t *testing.T, f *simverbs.Fabric) {
				a, b := newEnd(t, f, "a", 64), newEnd(t, f, "b", 64)
				qa, qb := connect(a, b, 4)
				w := window(t, a)
				bind, err := w.PrepareBind(3, qa, a.region, addressOf(a.memory), 10, verbs.AccessRemoteRead)
				a.check(err)
				a.tamper.post = func(n int) (int, int, error) { return c.take, c.report, errno("ibv_post_send", syscall.ENOMEM) }
				err = qa.PostSend([]verbs.Work{send(1, a, 0, 0, verbs.Write), send(2, a, 0, 0, verbs.Write), bind})
				a.tamper.post = nil
				var e *verbs.PostError
				if !errors.As(err, &e) || e.Posted != c.kept || e.Unknown != c.unknown {
					t.Fatalf("%v", err)
				}
				if sends, _ := qa.Outstanding(); sends != c.kept {
					t.Fatalf("%d outstanding, want %d", sends, c.kept)
				}
				if idle := w.Phase() == verbs.WindowIdle; idle != (c.kept < 3) {
					t.Fatalf("window is %s", w.Phase())
				}
				if err := qa.PostSend([]verbs.Work{send(4, a, 0, 0, verbs.Write)}); errors.Is(err, verbs.ErrFenced) != c.unknown {
					t.Fatal(err)
				}
				a.check(qa.Drain())
				settle(f)
				a.poll()
				if !qa.Drained() {
					t.Fatal("not drained after the flush")
				}
				a.check(a.closeAll(f, []*verbs.MemoryWindow{w}, qa))
				if lost := len(lostOf(qa)); (lost > 0) != (c.unknown && c.take < 3) {
					t.Errorf("%d lost", lost)
				}
				b.check(b.closeAll(f, nil, qb))
			})
		})
	}
}

func lostOf(q *verbs.QueuePair) []verbs.Tag {
	var all []verbs.Tag
	var some [2]verbs.Tag
	for {
		n := q.Lost(some[:])
		if n == 0 {
			return all
		}
		all = append(all, some[:n]...)
	}
}

// proves R-14
func TestCompletionsThatNameNoCurrentWorkPayNobody(t *testing.T) {
	everywhere(t, func(t *testing.T, f *simverbs.Fabric) {
		a, b := newEnd(t, f, "a", 64), newEnd(t, f, "b", 64)
		qa, qb := connect(a, b, 4)
		var last verbs.Completion
		inject := func(change func(*verbs.Completion)) (reaped int) {
			a.tamper.completions = func(c []verbs.Completion, n int) int {
				if n == 0 && change != nil {
					c[0] = last
					change(&c[0])
					change, n = nil, 1
				}
				return n
			}
			defer func() { a.tamper.completions = nil }()
			return len(a.poll())
		}
		a.check(qa.PostSend([]verbs.Work{send(9, a, 0, 0, verbs.Write)}))
		settle(f)
		a.tamper.completions = func(c []verbs.Completion, n int) int {
			if n == 1 {
				last = c[0]
			}
			return n
		}
		if got := a.poll(); len(got) != 1 || got[0].ID != 9 || last.ID == 9 {
			t.Fatalf("%+v", got)
		}
		a.check(qa.PostSend([]verbs.Work{send(10, a, 0, 0, verbs.Write)})) // in the same place
		for _, c := range []struct {
			name   string
			change func(*verbs.Completion)
			count  func(verbs.QueueCounts) uint64
		}{
			{"foreign pair", func(c *verbs.Completion) { c.Pair ^= 1 << 20 }, func(c verbs.QueueCounts) uint64 { return c.Foreign }},
			{"double", func(*verbs.Completion) {}, func(c verbs.QueueCounts) uint64 { return c.Stale }},
			{"no such slot", func(c *verbs.Completion) { c.ID |= 1 << 55 }, func(c verbs.QueueCounts) uint64 { return c.Malformed }},
			{"receive among sends", func(c *verbs.Completion) { c.ID ^= 3 << 60 }, func(c verbs.QueueCounts) uint64 { return c.Malformed }},
			{"zero", func(c *verbs.Completion) { c.ID = 0 }, func(c verbs.QueueCounts) uint64 { return c.Malformed }},
			{"barrier that was not posted", func(c *verbs.Completion) { c.ID = 3<<60 | 4<<40 | 1 }, func(c verbs.QueueCounts) uint64 { return c.Stale }},
			{"success of another operation", func(c *verbs.Completion) { c.ID++; c.Operation = verbs.CompletedRead }, func(c verbs.QueueCounts) uint64 { return c.Mismatch }},
		} {
			before := c.count(a.sends.Counts())
			if n := inject(c.change); n != 0 {
				t.Errorf("%s: %d were paid", c.name, n)
			}
			if got := c.count(a.sends.Counts()); got != before+1 {
				t.Errorf("%s: %+v", c.name, a.sends.Counts())
			}
			if sends, _ := qa.Outstanding(); sends != 1 {
				t.Fatalf("%s: %d outstanding", c.name, sends)
			}
			if (qa.Fenced() != "") != (c.name != "foreign pair") {
				t.Errorf("%s: fenced %q", c.name, qa.Fenced())
			}
		}
		if got := a.one(f); got.ID != 10 {
			t.Fatalf("the real one: %+v", got)
		}
		a.check(a.closeAll(f, nil, qa))
		b.check(b.closeAll(f, nil, qb))
	})
}

// proves R-17
func TestFailedCompletionSaysOnlyWhatIsDefined(t *testing.T) {
	everywhere(t, func(t *testing.T, f *simverbs.Fabric) {
		a, b := newEnd(t, f, "a", 64), newEnd(t, f, "b", 64)
		qa, qb := connect(a, b, 4)
		bad := send(1, a, 0, 8, verbs.Write)
		bad.Remote, bad.RemoteKey = addressOf(b.memory), 0x1234500
		a.check(qa.PostSend([]verbs.Work{bad}))
		got := a.one(f)
		if got.Status == verbs.WorkSuccess || got.ID != 1 || got.Operation != 0 || got.Length != 0 || got.Invalidated != 0 || got.Flags != 0 {
			t.Fatalf("%+v", got)
		}
		if qa.Fenced() == "" {
			t.Fatal("not fenced")
		}
		a.check(a.closeAll(f, nil, qa))
		b.check(b.closeAll(f, nil, qb))
	})
}

// proves
func TestLostCompletionsAreProvenByTheBarrierAndPaidByTheDestruction(t *testing.T) {
	everywhere(t, func(t *testing.T, f *simverbs.Fabric) {
		a, b := newEnd(t, f, "a", 64), newEnd(t, f, "b", 64)
		qa, qb := connect(a, b, 4)
		a.check(qa.PostSend([]verbs.Work{send(1, a, 0, 0, verbs.Write), send(2, a, 0, 0, verbs.Write)}))
		a.check(qa.PostReceive([]verbs.ReceiveWork{receive(3, a)}))
		settle(f)
		lose := true
		a.tamper.completions = func(c []verbs.Completion, n int) int {
			if lose {
				return 0
			}
			return n
		}
		a.poll()
		lose = false
		a.check(qa.Drain())
		if qa.Drained() || !errors.Is(qa.Detach(), verbs.ErrBusy) {
			t.Fatal("drained without a proof")
		}
		settle(f)
		if got := a.poll(); len(got) != 1 || got[0].ID != 3 {
			t.Fatalf("%+v", got)
		}
		if !qa.Drained() {
			t.Fatal("the barrier passed, and it is not drained")
		}
		a.check(a.closeAll(f, nil, qa))
		if lost := lostOf(qa); len(lost) != 2 || lost[0] != (verbs.Tag{Value: 1}) || lost[1] != (verbs.Tag{Value: 2}) {
			t.Fatalf("%+v", lost)
		}
		b.check(b.closeAll(f, nil, qb))
	})
}

// proves
func TestPairWhoseFlushNeverComesIsRetainedWithItsWindows(t *testing.T) {
	f := newFabric(simverbs.Hardware, 8)
	a, b := newEnd(t, f, "a", 64), newEnd(t, f, "b", 64)
	qa, qb := connect(a, b, 4)
	w := window(t, a)
	bind, err := w.PrepareBind(3, qa, a.region, addressOf(a.memory), 10, verbs.AccessRemoteRead)
	a.check(err)
	a.check(qa.PostSend([]verbs.Work{bind}))
	settle(f)
	a.tamper.completions = func([]verbs.Completion, int) int { return 0 }
	a.check(qa.Drain())
	settle(f)
	a.poll()
	if err := w.Free(); !errors.Is(err, verbs.ErrBusy) {
		t.Fatalf("a window whose bind is unresolved was freed: %v", err)
	}
	why := errors.New("30 s passed")
	if err := qa.Retain(why); !errors.Is(err, verbs.ErrRetained) || !errors.Is(err, why) || !qa.Retained() || !w.Retained() {
		t.Fatal(err)
	}
	if err := a.closeAll(f, []*verbs.MemoryWindow{w}, qa); !errors.Is(err, verbs.ErrBusy) {
		t.Fatal(err)
	}
	a.agree()
	if n := len(a.context.Retained()); n != 8 { // window, pair, region, domain, both queues, channel, context
		t.Errorf("%d listed: %+v", n, a.context.Retained())
	}
	_ = b.closeAll(f, nil, qb)
}

// proves R-19
func TestQueuesAreArmedBeforeTheyAreFoundEmpty(t *testing.T) {
	everywhere(t, func(t *testing.T, f *simverbs.Fabric) {
		a, b := newEnd(t, f, "a", 64), newEnd(t, f, "b", 64)
		qa, qb := connect(a, b, 4)
		a.check(qa.PostSend([]verbs.Work{send(1, a, 0, 0, verbs.Write)}))
		settle(f)
		a.check(a.poller.Arm())
		if a.poller.MayBlock() {
			t.Fatal("may block without having looked")
		}
		if got := a.poll(); len(got) != 1 || !a.poller.MayBlock() {
			t.Fatalf("%d completions, may block %v", len(got), a.poller.MayBlock())
		}
		drainEvents(a)
		a.check(a.poller.Arm())
		a.poll()
		if !a.poller.MayBlock() || f.Readable(a.channel.Descriptor()) {
			t.Fatal("armed and empty, and may not block")
		}
		a.check(qa.PostSend([]verbs.Work{send(2, a, 0, 0, verbs.Write)}))
		settle(f)
		if !f.Readable(a.channel.Descriptor()) {
			t.Fatal("no event for a completion of an armed queue")
		}
		if q, err := a.channel.NextEvent(); err != nil || q != a.sends || a.poller.MayBlock() || a.sends.Armed() {
			t.Fatalf("%v %v", q, err)
		}
		if q, err := a.channel.NextEvent(); err != nil || q != nil {
			t.Fatalf("%v %v", q, err)
		}
		a.check(a.poller.Arm())
		if a.poller.MayBlock() {
			t.Fatal("armed again, and may block without having looked again")
		}
		before := a.process.Calls(simverbs.CallArm)
		a.check(a.poller.Arm())
		if n := a.process.Calls(simverbs.CallArm); n != before {
			t.Fatalf("%d calls to arm what is armed", n-before)
		}
		a.poll()
		a.check(a.closeAll(f, nil, qa))
		b.check(b.closeAll(f, nil, qb))
	})
}

// drainEvents takes what an event for a backlog left: hardware raises one for completions that were there.
func drainEvents(e *end) {
	for {
		q, err := e.channel.NextEvent()
		e.check(err)
		if q == nil {
			return
		}
	}
}

func TestQueueErrorFencesEveryPairThatCompletesThere(t *testing.T) {
	f := newFabric(simverbs.SoftRoCE, 9)
	a, b := newEnd(t, f, "a", 64), newEnd(t, f, "b", 64)
	q1, p1 := connect(a, b, 4)
	q2, p2 := connect(a, b, 4)
	a.tamper.refuse = refusing("ibv_poll_cq", 0)
	if _, _, err := a.poller.Poll(a.out); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	if q1.Fenced() == "" || q2.Fenced() == "" || a.sends.Fenced() == "" || a.recvs.Fenced() == "" {
		t.Fatal("not fenced")
	}
	if err := q1.PostSend([]verbs.Work{send(1, a, 0, 0, verbs.Write)}); !errors.Is(err, verbs.ErrFenced) {
		t.Fatal(err)
	}
	a.check(a.closeAll(f, nil, q1, q2))
	b.check(b.closeAll(f, nil, p1, p2))
}

// proves R-18
func TestBarrierThatIsStillInTheQueueHoldsItsPlace(t *testing.T) {
	f := newFabric(simverbs.SoftRoCE, 10)
	a, b := newEnd(t, f, "a", 64), newEnd(t, f, "b", 64)
	qa, qb := connect(a, b, 4)
	a.check(qa.PostReceive([]verbs.ReceiveWork{receive(3, a)}))
	a.check(qa.Drain())
	settle(f)
	reaped, taken, err := verbs.NewPoller(a.sends, a.recvs, 1).Poll(a.out)
	if err != nil || reaped != 1 || taken != 1 {
		t.Fatal(reaped, taken, err)
	}
	if qa.Drained() || !errors.Is(qa.Detach(), verbs.ErrBusy) {
		t.Fatal("its place in the queue may be given away while its barrier takes it")
	}
	a.poll()
	if !qa.Drained() {
		t.Fatal("not drained")
	}
	a.check(a.closeAll(f, nil, qa))
	b.check(b.closeAll(f, nil, qb))
}

// proves R-17
func TestPlacesInTheCompletionQueuesComeBackWithThePairOnly(t *testing.T) {
	f := newFabric(simverbs.Hardware, 11)
	a, b := newEnd(t, f, "a", 10), newEnd(t, f, "b", 64)
	small, err := a.context.CreateQueue(2, nil)
	a.check(err)
	reserved := func(sends, receives int) {
		t.Helper()
		s, _ := a.sends.Reserved()
		r, _ := a.recvs.Reserved()
		if s != sends || r != receives {
			t.Errorf("%d and %d places promised, want %d and %d", s, r, sends, receives)
		}
	}
	if _, err := a.domain.CreatePair(verbs.PairPlan{Sends: a.sends, Receives: small, SendDepth: 4, ReceiveDepth: 4}); !errors.Is(err, verbs.ErrCredit) {
		t.Fatal(err)
	}
	reserved(0, 0)
	a.tamper.refuse = refusing("ibv_create_qp", 0)
	if _, err := a.domain.CreatePair(verbs.PairPlan{Sends: a.sends, Receives: a.recvs, SendDepth: 4, ReceiveDepth: 4}); err == nil {
		t.Fatal("no error")
	}
	reserved(0, 0)
	qa, qb := connect(a, b, 4)
	reserved(5, 5)
	a.check(qa.Drain())
	a.check(qa.Detach())
	reserved(5, 5)
	a.check(qa.Destroy())
	reserved(0, 0)
	a.check(small.Destroy())
	a.check(a.closeAll(f, nil, qa))
	b.check(b.closeAll(f, nil, qb))
}

// Pairs that share a completion queue may each be as deep as they like: together they never have more with the device than
// it has places for, the barriers of all of them included, and what is lost gives its place back with its pair.
//
// proves R-17
func TestPairsThatShareACompletionQueueNeverFillIt(t *testing.T) {
	for _, p := range []simverbs.Personality{simverbs.Hardware, simverbs.SoftRoCE} {
		f := newFabric(p, 14)
		a, b := newEnd(t, f, "a", 8), newEnd(t, f, "b", 64)
		a.sends.Share(2)
		a.recvs.Share(2)
		a.shared = true
		mustPanic(t, "Share", "once", func() { a.sends.Share(2) })
		qa, qb := connect(a, b, 5)
		ra, rb := connect(a, b, 5)
		if _, err := a.domain.CreatePair(verbs.PairPlan{Sends: a.sends, Receives: a.recvs, SendDepth: 1, ReceiveDepth: 1, Shared: true}); !errors.Is(err, verbs.ErrCredit) {
			t.Fatalf("a third pair: %v", err)
		}
		room := func(sends, receives int) {
			t.Helper()
			if a.sends.Room() != sends || a.recvs.Room() != receives {
				t.Errorf("room for %d sends and %d receives, want %d and %d", a.sends.Room(), a.recvs.Room(), sends, receives)
			}
		}
		room(6, 6)
		for i := range uint64(3) {
			a.check(qa.PostReceive([]verbs.ReceiveWork{receive(i, a)}))
			a.check(ra.PostReceive([]verbs.ReceiveWork{receive(3+i, a)}))
		}
		room(6, 0)
		var e *verbs.CreditError
		if err := qa.PostReceive([]verbs.ReceiveWork{receive(9, a)}); !errors.As(err, &e) || e.Used != 6 || e.Limit != 6 {
			t.Errorf("a seventh receive: %v", err)
		}
		b.check(qb.PostSend([]verbs.Work{send(1, b, 0, 8, verbs.Send)}))
		settle(f)
		if got := a.poll(); len(got) != 1 {
			t.Fatalf("%d receives, want 1", len(got))
		}
		room(6, 1)
		a.tamper.post = func(int) (int, int, error) { return 0, 0, syscall.ENOMEM } // certainly not taken
		if err := ra.PostReceive([]verbs.ReceiveWork{receive(9, a)}); err == nil {
			t.Error("no error")
		}
		a.tamper.post = nil
		room(6, 1)
		f.Plan(simverbs.Fault{Kind: simverbs.LoseCompletion, Process: "p", Count: 2})
		for _, q := range []*verbs.QueuePair{qa, ra} {
			a.check(q.Drain())
		}
		settle(f)
		a.poll()
		if !qa.Drained() || !ra.Drained() || a.recvs.Fenced() != "" {
			t.Fatal("not drained")
		}
		a.check(a.closeAll(f, nil, qa, ra))
		lost := 0
		for _, q := range []*verbs.QueuePair{qa, ra} {
			lost += q.Lost(make([]verbs.Tag, 8))
		}
		if used, _ := a.recvs.Reserved(); lost == 0 || used != 0 {
			t.Errorf("%d lost, %d places taken, want some and 0", lost, used)
		}
		room(6, 6)
		b.check(b.closeAll(f, nil, qb, rb))
	}
}

func TestTwoLoopsThatEndOneObjectAreOurOwnMistake(t *testing.T) {
	f := newFabric(simverbs.Hardware, 12)
	a := newEnd(t, f, "a", 10)
	r, err := a.domain.Register(addressOf(a.memory), 100, verbs.AccessLocalWrite)
	a.check(err)
	a.tamper.refuse = func(call string) error {
		a.tamper.refuse = nil
		mustPanic(t, "ending", "open", func() { _ = r.Destroy() })
		return nil
	}
	a.check(r.Destroy())
	a.check(a.closeAll(f, nil))
}

// proves R-14
func TestLateCompletionOfAPairBeforeDoesNotTouchTheOneWithItsNumber(t *testing.T) {
	f := newFabric(simverbs.Hardware, 13)
	a, b := newEnd(t, f, "a", 64), newEnd(t, f, "b", 64)
	twin := &echo{Calls: a.process, on: true, number: 77}
	a.tamper.Calls = twin
	first, peer := connect(a, b, 4)
	if first.Number() != 77 {
		t.Fatal(first.Number())
	}
	a.check(first.PostSend([]verbs.Work{send(1, a, 0, 0, verbs.Write)}))
	old := twin.sends[0]
	if got := a.poll(); len(got) != 1 {
		t.Fatalf("%+v", got)
	}
	a.check(first.Drain())
	a.check(first.Detach())
	a.check(first.Destroy())
	second, peer2 := connect(a, b, 4)
	a.check(second.PostSend([]verbs.Work{send(2, a, 0, 0, verbs.Write)}))
	twin.sends[0] = old
	if got := a.poll(); len(got) != 0 || a.sends.Counts().Stale != 1 || second.Fenced() != "" {
		t.Fatalf("%+v, %+v, fenced %q", got, a.sends.Counts(), second.Fenced())
	}
	third := second.Number()
	other := a.pair(4)
	if other.Number() != third {
		t.Fatal("not the same number")
	}
	if err := other.Attach(); !errors.Is(err, verbs.ErrViolated) || other.Fenced() == "" || second.Fenced() == "" {
		t.Fatalf("one number for two: %v", err)
	}
	_ = b.closeAll(f, nil, peer, peer2)
}

// proves R-12
func TestUsedUpWindowOfAReusedIndexIsParkedUntilTheDomainEnds(t *testing.T) {
	for _, refuse := range []bool{false, true} {
		f := newFabric(simverbs.Hardware, 14)
		a, b := newEnd(t, f, "a", 64), newEnd(t, f, "b", 64)
		qa, qb := connect(a, b, 4)
		twin := &echo{Calls: a.process, number: qa.Number(), on: true, windows: []verbs.RemoteKey{0x500, 0x577, 0x600, 0x700}}
		a.tamper.Calls = twin
		spend := func(w *verbs.MemoryWindow) {
			for w.Reusable() {
				work, err := w.PrepareBind(1, qa, a.region, addressOf(a.memory), 8, verbs.AccessRemoteRead)
				a.check(err)
				a.check(qa.PostSend([]verbs.Work{work}))
				a.poll()
				a.check(qa.PostSend([]verbs.Work{w.PrepareInvalidate(2)}))
				a.poll()
			}
		}
		w := window(t, a)
		spend(w)
		if _, err := w.PrepareBind(1, qa, a.region, addressOf(a.memory), 8, verbs.AccessRemoteRead); !errors.Is(err, verbs.ErrKeys) {
			t.Fatal(err)
		}
		a.check(w.Free())
		second := window(t, a) // 0x577 is parked, 0x600 replaces it
		if c := a.domain.Counts(); c.Parked != 1 || c.Windows != 2 || c.KeyIndices != 2 {
			t.Fatalf("%+v", c)
		}
		spend(second)
		a.domain.Park(second)
		third, fourth := window(t, a), window(t, a)
		if c := a.domain.Counts(); c.Parked != 2 || c.Windows != 4 || c.KeyIndices != 4 {
			t.Fatalf("%+v", c)
		}
		var busy *verbs.BusyError
		a.check(qa.Drain())
		a.check(qa.Detach())
		a.check(qa.Destroy())
		a.check(a.region.Destroy())
		if err := a.domain.Close(); !errors.As(err, &busy) || busy.Kept || busy.Owes[0].Count != 2 {
			t.Fatal(err)
		}
		a.check(third.Free())
		a.check(fourth.Free())
		if refuse {
			a.tamper.refuse = refusing("ibv_dealloc_mw", 0)
		}
		err := a.domain.Close()
		if refuse != errors.Is(err, verbs.ErrRetained) || len(a.context.Retained()) != map[bool]int{false: 0, true: 3}[refuse] {
			t.Fatalf("%v, %+v", err, a.context.Retained())
		}
		if again := a.domain.Close(); !errors.Is(again, err) {
			t.Fatal(again)
		}
		_ = b.closeAll(f, nil, qb)
	}
}

// proves R-14
func TestLateCompletionOfAFreedWindowPaysItsWorkOnly(t *testing.T) {
	f := newFabric(simverbs.SoftRoCE, 15)
	a, b := newEnd(t, f, "a", 64), newEnd(t, f, "b", 64)
	qa, qb := connect(a, b, 4)
	w := window(t, a)
	bind, err := w.PrepareBind(8, qa, a.region, addressOf(a.memory), 8, verbs.AccessRemoteRead)
	a.check(err)
	a.check(qa.PostSend([]verbs.Work{bind}))
	a.check(qa.Drain())
	settle(f)
	var late []verbs.Completion
	a.tamper.completions = func(c []verbs.Completion, n int) int {
		if n > 0 && late == nil {
			late = append(late, c[0])
			late[0].Status = verbs.WorkFlushed
			copy(c, c[1:n])
			return n - 1
		}
		return n
	}
	if got := a.poll(); len(got) != 0 || !qa.Drained() {
		t.Fatalf("%+v", got)
	}
	a.check(w.Free())
	a.tamper.completions = func(c []verbs.Completion, n int) int {
		n += copy(c[n:], late)
		late = nil
		return n
	}
	if got := a.poll(); len(got) != 1 || got[0].ID != 8 || w.Phase() != verbs.WindowGone {
		t.Fatalf("%+v, window %s", got, w.Phase())
	}
	a.tamper.completions = nil
	a.check(a.closeAll(f, nil, qa))
	b.check(b.closeAll(f, nil, qb))
}

// The race detector holds what doc.go says about loops: slow calls of the cold loop beside a lane that posts and polls.
//
// proves R-10
func TestColdLoopBuildsAndDestroysWhileTheLaneGoesOn(t *testing.T) {
	f := newFabric(simverbs.Hardware, 16)
	a, b := newEnd(t, f, "a", 40), newEnd(t, f, "b", 64)
	qa, qb := connect(a, b, 8)
	done := make(chan error)
	go func() {
		for range 100 {
			q, err := a.domain.CreatePair(verbs.PairPlan{Sends: a.sends, Receives: a.recvs, SendDepth: 8, ReceiveDepth: 8})
			if err == nil {
				err = errors.Join(q.Move(verbs.Transition{To: verbs.PairInit, Port: 1}), q.Drain(), q.Detach(), q.Destroy())
			}
			r, registering := a.domain.Register(addressOf(a.memory), 4096, verbs.AccessLocalWrite)
			if registering == nil {
				registering = r.Destroy()
			}
			if err = errors.Join(err, registering); err != nil {
				done <- err
				return
			}
			_ = a.domain.Counts()
		}
		done <- nil
	}()
	reaped := 0
	for running := true; running || reaped < 100; {
		if free, _ := qa.Free(); free > 0 {
			a.check(qa.PostSend([]verbs.Work{send(1, a, 0, 0, verbs.Write)}))
		}
		f.Step()
		n, _, err := a.poller.Poll(a.out)
		a.check(err)
		reaped += n
		if !a.region.Lend() {
			t.Fatal("not lent")
		}
		a.region.Return()
		select {
		case err := <-done:
			running = false
			a.check(err)
		default:
		}
	}
	a.check(a.closeAll(f, nil, qa))
	b.check(b.closeAll(f, nil, qb))
}
