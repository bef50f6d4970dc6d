package simverbs_test

import (
	"bytes"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// planned is a fabric with a plan, and two pairs on it; A's pair is number 1, its queues are 1 and 2.
func planned(t *testing.T, plan string) (f *simverbs.Fabric, a, b *end, from, to piece) {
	t.Helper()
	f = newFabric(t, simverbs.Options{})
	faults, err := simverbs.ParsePlan(plan)
	if err != nil {
		t.Fatal(err)
	}
	f.Plan(faults...)
	a, b = couple(t, f)
	return f, a, b, a.piece(8192, 1, everyone), b.piece(8192, 2, everyone)
}

// five posts five small writes, lets everything happen and takes what came.
func (e *end) five(f *simverbs.Fabric, from, to piece) {
	e.t.Helper()
	for i := range 5 {
		e.post(writing(uint64(i), from, to, 100))
	}
	settle(f, e)
}

func ids(list []verbs.Completion) []uint64 {
	var all []uint64
	for _, c := range list {
		all = append(all, c.ID)
	}
	return all
}

func TestCompletionsAreLostDoubledAndForeignAsPlanned(t *testing.T) {
	for plan, check := range map[string]func(t *testing.T, f *simverbs.Fabric, a *end){
		"(lose-completion (pair 1) (index 3))": func(t *testing.T, _ *simverbs.Fabric, a *end) {
			if len(a.sent) != 4 || a.sent[3].ID != 4 {
				t.Errorf("completions of %v", ids(a.sent))
			}
		},
		"(double-completion (queue 1) (index 1))": func(t *testing.T, _ *simverbs.Fabric, a *end) {
			if len(a.sent) != 6 || a.sent[1] != a.sent[2] {
				t.Errorf("completions of %v", ids(a.sent))
			}
		},
		"(foreign-id (pair 1) (index 2) (count 2))": func(t *testing.T, _ *simverbs.Fabric, a *end) {
			if len(a.sent) != 5 || a.sent[1].ID != 1 || a.sent[2].ID < 5 || a.sent[3].ID < 5 || a.sent[4].ID != 4 {
				t.Errorf("completions of %v", ids(a.sent))
			}
		},
		"(foreign-pair (host a))": func(t *testing.T, _ *simverbs.Fabric, a *end) {
			if len(a.sent) != 5 || a.sent[0].Pair == a.number || a.sent[1].Pair != a.number {
				t.Errorf("completions %+v", a.sent)
			}
		},
		"(late-completion (pair 1) (index 1) (by 3s))": func(t *testing.T, f *simverbs.Fabric, a *end) {
			if len(a.sent) != 5 || a.sent[4].ID != 1 || f.Now() < 3*second {
				t.Errorf("completions of %v at %v", ids(a.sent), f.Now())
			}
		},
		"(full-queue (queue 1) (index 4))": func(t *testing.T, _ *simverbs.Fabric, a *end) {
			e, _, _ := a.NextAsync(a.device)
			if len(a.sent) != 4 || e.Kind != verbs.AsyncQueueError || e.Queue != a.sends {
				t.Errorf("completions of %v, event %+v", ids(a.sent), e)
			}
		},
	} {
		t.Run(plan, func(t *testing.T) {
			f, a, _, from, to := planned(t, plan)
			a.five(f, from, to)
			check(t, f, a)
			if struck, all := f.Struck(); struck != all {
				t.Errorf("%d of %d faults struck", struck, all)
			}
		})
	}
}

func TestPostsStopWhereThePlanSays(t *testing.T) {
	f, a, _, from, to := planned(t, "(bad-work (pair 1) (element 2) (errno ENOMEM))\n(unknown-bad-work (pair 1) (element 3) (index 0) (errno EIO))")
	list := make([]verbs.SendWork, 5)
	for i := range list {
		list[i] = writing(uint64(i), from, to, 10)
	}
	if n, err := a.PostSend(a.pair, list); n != 2 || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("the first post: %d %v", n, err)
	}
	settle(f, a)
	if got := ids(a.sent); len(got) != 2 {
		t.Errorf("what was accepted: %v", got)
	}
	if n, err := a.PostSend(a.pair, list); n >= 0 || !errors.Is(err, syscall.EIO) {
		t.Errorf("the second post: %d %v", n, err)
	}
	settle(f, a)
	if got := ids(a.sent); len(got) != 5 {
		t.Errorf("what was accepted without being told: %v", got)
	}
	f.Plan(simverbs.Fault{Kind: simverbs.BadWork, Call: simverbs.CallPostReceive, Element: 1})
	if n, err := a.PostReceive(a.pair, make([]verbs.ReceiveWork, 3)); n != 1 || !errors.Is(err, syscall.EIO) {
		t.Errorf("receives: %d %v", n, err)
	}
}

func TestWorkFailsAsPlannedAndFlushesTheRest(t *testing.T) {
	f, a, _, from, to := planned(t, "(fail-work (pair 1) (index 2) (status 12))")
	a.five(f, from, to)
	ended(t, a.sent, success, success, verbs.WorkRetryExceeded, flushed, flushed)
}

func TestEveryCallFailsAndRecoversAsPlanned(t *testing.T) {
	f := newFabric(t, simverbs.Options{})
	a, b := couple(t, f)
	m := a.piece(4096, 0, everyone)
	w, _, err := a.AllocateWindow(a.domain)
	a.must(err)
	c, err := a.CreateChannel(a.device)
	a.must(err)
	calls := map[simverbs.Call]func() error{
		simverbs.CallListDevices:        func() error { _, err := a.Devices(); return err },
		simverbs.CallOpenDevice:         func() error { _, err := a.OpenDevice("mlx5_0"); return err },
		simverbs.CallCloseDevice:        func() error { return a.CloseDevice(a.device) },
		simverbs.CallQueryDevice:        func() error { _, err := a.DeviceLimits(a.device); return err },
		simverbs.CallQueryPort:          func() error { _, err := a.Port(a.device, 1); return err },
		simverbs.CallQueryGID:           func() error { _, err := a.GIDs(a.device, 1); return err },
		simverbs.CallAsyncEvent:         func() error { _, _, err := a.NextAsync(a.device); return err },
		simverbs.CallAllocateDomain:     func() error { _, err := a.AllocateDomain(a.device); return err },
		simverbs.CallFreeDomain:         func() error { return a.FreeDomain(a.domain) },
		simverbs.CallCreateChannel:      func() error { _, err := a.CreateChannel(a.device); return err },
		simverbs.CallDestroyChannel:     func() error { return a.DestroyChannel(c) },
		simverbs.CallQueueEvent:         func() error { _, _, err := a.NextEvent(c); return err },
		simverbs.CallCreateQueue:        func() error { _, err := a.CreateQueue(a.device, 4, 0); return err },
		simverbs.CallDestroyQueue:       func() error { return a.DestroyQueue(a.sends) },
		simverbs.CallArm:                func() error { return a.Arm(a.sends) },
		simverbs.CallPoll:               func() error { _, _, err := a.Poll(a.sends, a.receives, a.buffer[:]); return err },
		simverbs.CallModifyPair:         func() error { return a.ModifyPair(a.pair, verbs.Transition{To: verbs.PairError}) },
		simverbs.CallQueryPair:          func() error { _, err := a.QueryPair(a.pair); return err },
		simverbs.CallDestroyPair:        func() error { return a.DestroyPair(a.pair) },
		simverbs.CallRegister:           func() error { _, _, _, err := a.Register(a.domain, m.address, 1, everyone); return err },
		simverbs.CallDeregister:         func() error { return a.Deregister(m.handle) },
		simverbs.CallAllocateWindow:     func() error { _, _, err := a.AllocateWindow(a.domain); return err },
		simverbs.CallFreeWindow:         func() error { return a.FreeWindow(w) },
		simverbs.CallRegisterDescriptor: func() error { _, _, _, err := a.RegisterDescriptor(a.domain, 0, 1, 0, 5, everyone); return err },
		simverbs.CallCreatePair: func() error {
			_, _, err := a.CreatePair(a.domain, verbs.PairOptions{Sends: a.sends, Receives: a.receives, SendDepth: 1, ReceiveDepth: 1})
			return err
		},
	}
	before := a.Live()
	for call, make := range calls {
		f.Plan(simverbs.Fault{Kind: simverbs.FailCall, Call: call, Host: "a", Errno: syscall.ENOSPC})
		var native *verbs.CallError
		if err := make(); !errors.As(err, &native) || native.Errno != syscall.ENOSPC || native.Call != call.String() {
			t.Errorf("%s did not fail as planned: %v", call, err)
		}
	}
	if after := a.Live(); after != before {
		t.Errorf("calls that failed had an effect: %+v, before %+v", after, before)
	}
	a.must(a.FreeWindow(w))
	a.must(a.DestroyChannel(c))
	a.windUp(m)
	b.windUp()
	noneLive(t, f)
}

func TestSlowCallsTakeTheirTime(t *testing.T) {
	f, a, _, from, _ := planned(t, "(slow-call (host a) (call ibv_dereg_mr) (by 2s))")
	began := f.Now()
	a.must(a.Deregister(from.handle))
	if took := f.Now() - began; took != 2*second {
		t.Errorf("it took %v", took)
	}
}

func TestTimedFaultsComeAtTheirTime(t *testing.T) {
	f, a, _, from, to := planned(t, "(port-down (host a) (device mlx5_0) (at 5ms))\n(port-up (host a) (at 6ms))\n(gid-move (host b) (device mlx5_0) (gid 1) (to 7) (at 7ms))\n(kill-process (host b) (at 1h))")
	f.Advance(4 * time.Millisecond)
	a.five(f, from, to) // settle goes on to the last fault
	ended(t, a.sent, success, success, success, success, success)
	var kinds []verbs.AsyncKind
	for {
		e, some, _ := a.NextAsync(a.device)
		if !some {
			break
		}
		kinds = append(kinds, e.Kind)
	}
	if len(kinds) != 4 || kinds[0] != verbs.AsyncPortError || kinds[1] != verbs.AsyncPortActive {
		t.Errorf("events %v", kinds)
	}
	if live := f.Live(); len(live) != 1 || live[0].Host != "a" || f.Now() < time.Hour {
		t.Errorf("processes with objects at %v: %+v", f.Now(), live)
	}
	a.five(f, from, to)
	ended(t, a.sent[5:], verbs.WorkRetryExceeded, flushed, flushed, flushed, flushed)
}

func TestDelayedPacketsAreLateAndComplete(t *testing.T) {
	f, a, _, from, to := planned(t, "(delay-packet (pair 1) (index 2) (by 1500us))")
	a.five(f, from, to)
	ended(t, a.sent, success, success, success, success, success)
	if f.Now() < 1500*time.Microsecond || !bytes.Equal(from.bytes[:100], to.bytes[:100]) {
		t.Errorf("done at %v", f.Now())
	}
}

// What ibv_poll_cq(3) calls undefined after an error is not to be relied on.
func TestFailedCompletionsAreScrambled(t *testing.T) {
	f, a, _, from, to := planned(t, "(fail-work (pair 1) (status 10))")
	a.five(f, from, to)
	same := 0
	for i, c := range a.sent {
		if c.ID != uint64(i) || c.Pair != a.number || c.Status == success {
			t.Errorf("completion %d: %+v", i, c)
		}
		if c.Operation == verbs.CompletedWrite || c.Length == 100 || c.Flags == 0 {
			same++
		}
	}
	if same > 1 {
		t.Errorf("%d of 5 failed completions are as if they were good", same)
	}
}

func TestWindowKeysAreStaleOrDoubleAsPlanned(t *testing.T) {
	f, a, _, _, _ := planned(t, "(stale-key (host a) (index 0))\n(duplicate-key (host a) (index 1))")
	keyOf := func() (verbs.WindowHandle, verbs.RemoteKey) {
		w, key, err := a.AllocateWindow(a.domain)
		a.must(err)
		return w, key
	}
	w, first := keyOf()
	a.must(a.FreeWindow(w))
	if _, again := keyOf(); again != first {
		t.Errorf("key %#x after %#x was freed", again, first)
	}
	_, other := keyOf()
	if other>>8 == first>>8 {
		t.Errorf("key %#x beside %#x", other, first)
	}
	double, key := keyOf()
	if key>>8 != first>>8 {
		t.Errorf("key %#x, wanted the index of %#x", key, first)
	}
	a.must(a.FreeWindow(double))
	for range 20 {
		if _, fresh := keyOf(); fresh>>8 == first>>8 {
			t.Fatalf("key %#x: the index of a live window was freed with its double", fresh)
		}
	}
	if struck, all := f.Struck(); struck != all {
		t.Errorf("%d of %d faults struck", struck, all)
	}
}
