//go:build vm && cgo

package libibverbs_test

import (
	"slices"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/libibverbs"
)

// thief takes completions away before their owners see them.
type thief struct {
	verbs.Calls
	takes int
}

func (l *thief) Poll(sends, receives verbs.QueueHandle, out []verbs.Completion) (int, int, error) {
	sent, received, err := l.Calls.Poll(sends, receives, out)
	stolen := min(l.takes, sent)
	copy(out, out[stolen:sent+received])
	l.takes -= stolen
	return sent - stolen, received, err
}

// party is one end of a connection: a context with one lane's objects.
type party struct {
	t       *testing.T
	context *verbs.Context
	domain  *verbs.Domain
	channel *verbs.Channel
	queues  [2]*verbs.CompletionQueue
	poller  *verbs.Poller
	out     []verbs.Reaped
	memory  []byte
	region  *verbs.MemoryRegion
}

const partyBytes = 64 << 10

func newParty(t *testing.T, c *verbs.Context) *party {
	p := &party{t: t, context: c, out: make([]verbs.Reaped, 16)}
	var err error
	keep := func(e error) {
		t.Helper()
		if e != nil {
			t.Fatal(e)
		}
	}
	p.domain, err = c.AllocateDomain(1000)
	keep(err)
	p.channel, err = c.CreateChannel()
	keep(err)
	for i := range p.queues {
		p.queues[i], err = c.CreateQueue(64, p.channel)
		keep(err)
	}
	p.poller = verbs.NewPoller(p.queues[0], p.queues[1], len(p.out))
	p.memory, err = syscall.Mmap(-1, 0, partyBytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	keep(err)
	p.region, err = p.domain.Register(p.at(0), partyBytes, verbs.AccessLocalWrite|verbs.AccessWindowBind)
	keep(err)
	return p
}

func (p *party) at(i int) uint64 { return uint64(uintptr(unsafe.Pointer(&p.memory[i]))) }

func (p *party) check(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// until polls until a condition holds, and returns what was reaped.
func (p *party) until(what string, done func(all []verbs.Reaped) bool) (all []verbs.Reaped) {
	p.t.Helper()
	for limit := time.Now().Add(20 * time.Second); !done(all); {
		n, _, err := p.poller.Poll(p.out)
		p.check(err)
		all = append(all, p.out[:n]...)
		if time.Now().After(limit) {
			p.t.Fatalf("no %s; %+v", what, all)
		}
	}
	return all
}

func (p *party) reap(n int) []verbs.Reaped {
	p.t.Helper()
	return p.until("completion", func(all []verbs.Reaped) bool { return len(all) >= n })
}

func join(a, b *party) (*verbs.QueuePair, *verbs.QueuePair) {
	a.t.Helper()
	ends, pairs := [2]*party{a, b}, [2]*verbs.QueuePair{}
	for i, p := range ends {
		var err error
		pairs[i], err = p.domain.CreatePair(verbs.PairPlan{Sends: p.queues[0], Receives: p.queues[1], SendDepth: 8, ReceiveDepth: 8})
		p.check(err)
	}
	for i, p := range ends {
		own, far := p.context.Route(), ends[1-i].context.Route()
		for _, step := range []verbs.Transition{
			{To: verbs.PairInit, Port: own.Port, Access: verbs.AccessRemoteRead | verbs.AccessRemoteWrite},
			{To: verbs.PairReadyToReceive, Remote: pairs[1-i].Number(), MTU: 1024, SourceGID: own.GID.Index, RemoteGID: far.GID.GID, HopLimit: 16, ReadsAnswered: 16, ReceiverNotReady: 12},
			{To: verbs.PairReadyToSend, Timeout: 14, Retries: 3, NotReadyRetries: 3, ReadsAsked: 16},
		} {
			p.check(pairs[i].Move(step))
		}
		p.check(pairs[i].Attach())
	}
	return pairs[0], pairs[1]
}

func (p *party) receive(tag uint64) verbs.ReceiveWork {
	return verbs.ReceiveWork{ID: tag, Address: p.at(0), Length: 256, LocalKey: p.region.LocalKey()}
}

// end drains a pair, ends its window, if it has one, and the pair.
func (p *party) end(q *verbs.QueuePair, w *verbs.MemoryWindow) {
	p.t.Helper()
	p.check(q.Drain())
	p.until("drain", func([]verbs.Reaped) bool { return q.Drained() })
	if w != nil {
		p.check(w.Free())
	}
	p.check(q.Detach())
	p.check(q.Destroy())
}

func (p *party) close() {
	p.t.Helper()
	for _, end := range []func() error{
		p.region.Destroy, p.domain.Close, p.queues[0].Destroy, p.queues[1].Destroy, p.channel.Destroy, p.context.Close,
	} {
		p.check(end())
	}
	if left := p.context.Retained(); len(left) > 0 {
		p.t.Errorf("%+v", left)
	}
}

// grants lets b write into a's memory n times, each under a key of its own, and returns the window.
func grants(a, b *party, qa, qb *verbs.QueuePair, n int) *verbs.MemoryWindow {
	a.t.Helper()
	var w *verbs.MemoryWindow
	for i := range n {
		if w == nil || !w.Reusable() {
			if w != nil {
				a.domain.Park(w)
			}
			var err error
			w, err = a.domain.AllocateWindow()
			a.check(err)
		}
		bind, err := w.PrepareBind(1, qa, a.region, a.at(1000), 64, verbs.AccessRemoteWrite)
		a.check(err)
		a.check(qa.PostSend([]verbs.Work{bind}))
		a.reap(1)
		key := w.Publish()
		a.check(qa.PostReceive([]verbs.ReceiveWork{a.receive(5)}))
		b.memory[0] = byte(i)
		work := verbs.SendWork{ID: 2, Operation: verbs.Write, Address: b.at(0), Length: 64, LocalKey: b.region.LocalKey(), Remote: a.at(1000), RemoteKey: key}
		done := work
		done.ID, done.Operation, done.Flags, done.Length = 3, verbs.SendWithInvalidate, verbs.Fence, 141
		b.check(qb.PostSend([]verbs.Work{{SendWork: work}, {SendWork: done}}))
		b.reap(2)
		if got := a.reap(1); !w.EndByPeer(&got[0]) || a.memory[1000] != byte(i) || got[0].Length != 141 {
			a.t.Fatalf("grant %d: %+v, window %s", i, got, w.Phase())
		}
	}
	return w
}

// TestTheLibraryConformsToItsOwners runs the owners of package verbs on the guest's two soft-RoCE devices (test/vm): a
// window through more grants than an index has keys, and each way in which a pair is drained.
//
// proves
func TestTheLibraryConformsToItsOwners(t *testing.T) {
	library, err := libibverbs.Load()
	if err != nil {
		t.Fatal(err)
	}
	calls := &thief{Calls: library}
	slots, err := verbs.Discover(calls, verbs.Filter{Whitelist: []string{"rxe0", "rxe1"}}, verbs.Pins{})
	if err != nil {
		t.Fatal(err)
	}
	a, b := newParty(t, slots[0].Context), newParty(t, slots[1].Context)
	defer func() { a.close(); b.close() }()

	qa, qb := join(a, b)
	w := grants(a, b, qa, qb, 300)
	if c := a.domain.Counts(); c.Parked != 1 || c.KeyIndices != 2 {
		t.Errorf("%+v", c)
	}
	t.Log("proved: 300 one-use grants by memory windows; the used-up key index was parked")

	a.check(qa.PostReceive([]verbs.ReceiveWork{a.receive(6), a.receive(7)}))
	a.end(qa, w)
	b.check(qb.PostReceive([]verbs.ReceiveWork{b.receive(8)}))
	b.check(qb.PostSend([]verbs.Work{{SendWork: verbs.SendWork{ID: 9, Operation: verbs.Write}}}))
	b.until("failure", func([]verbs.Reaped) bool { return qb.Fenced() != "" })
	b.end(qb, nil)
	t.Log("proved: a living pair and one that failed before are drained through flush barriers on both queues")

	qa, qb = join(a, b)
	for tag := range uint64(3) {
		a.check(qa.PostSend([]verbs.Work{{SendWork: verbs.SendWork{ID: 20 + tag, Operation: verbs.Write}}}))
	}
	calls.takes = 2
	a.reap(1)
	a.end(qa, nil)
	b.end(qb, nil)
	lost := make([]verbs.Tag, 4)
	if lost = lost[:qa.Lost(lost)]; !slices.Equal(lost, []verbs.Tag{{Value: 20}, {Value: 21}}) {
		t.Errorf("lost: %+v", lost)
	}
	t.Log("proved: work whose completions were lost is paid by barrier and destruction")
}
