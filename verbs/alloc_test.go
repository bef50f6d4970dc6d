package verbs_test

import (
	"testing"

	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// echo completes what was posted at the next poll, in memory that it has, so that only the owners' allocations count.
type echo struct {
	verbs.Calls
	on       bool
	sends    [64]verbs.Completion
	receives [64]verbs.Completion
	sent     int
	received int
	number   verbs.PairNumber
	key      verbs.RemoteKey   // ended by the next receive completion
	windows  []verbs.RemoteKey // what the next allocations give; then the twin's own
}

var echoes = map[verbs.SendOperation]verbs.CompletionOperation{
	verbs.Write: verbs.CompletedWrite, verbs.Read: verbs.CompletedRead, verbs.BindWindow: verbs.CompletedBind,
	verbs.LocalInvalidate: verbs.CompletedLocalInvalidate, verbs.SendWithInvalidate: verbs.CompletedSend, verbs.Send: verbs.CompletedSend,
}

// CreatePair gives every pair the echo's number, if it has one.
func (e *echo) CreatePair(d verbs.DomainHandle, o verbs.PairOptions) (verbs.PairHandle, verbs.PairNumber, error) {
	h, number, err := e.Calls.CreatePair(d, o)
	if e.on && e.number != 0 {
		number = e.number
	}
	return h, number, err
}

func (e *echo) AllocateWindow(d verbs.DomainHandle) (verbs.WindowHandle, verbs.RemoteKey, error) {
	h, key, err := e.Calls.AllocateWindow(d)
	if len(e.windows) > 0 {
		key, e.windows = e.windows[0], e.windows[1:]
	}
	return h, key, err
}

func (e *echo) PostSend(h verbs.PairHandle, list []verbs.SendWork) (int, error) {
	if !e.on {
		return e.Calls.PostSend(h, list)
	}
	for i := range list {
		e.sends[e.sent] = verbs.Completion{ID: list[i].ID, Operation: echoes[list[i].Operation], Pair: e.number}
		e.sent++
	}
	return len(list), nil
}

func (e *echo) PostReceive(h verbs.PairHandle, list []verbs.ReceiveWork) (int, error) {
	if !e.on {
		return e.Calls.PostReceive(h, list)
	}
	for i := range list {
		e.receives[e.received] = verbs.Completion{ID: list[i].ID, Operation: verbs.CompletedReceive, Pair: e.number, Invalidated: e.key}
		e.received++
	}
	return len(list), nil
}

func (e *echo) Poll(sends, receives verbs.QueueHandle, out []verbs.Completion) (int, int, error) {
	if !e.on {
		return e.Calls.Poll(sends, receives, out)
	}
	sent := copy(out, e.sends[:e.sent])
	received := copy(out[sent:], e.receives[:e.received])
	e.sent, e.received = 0, 0
	return sent, received, nil
}

func (e *echo) Arm(q verbs.QueueHandle) error {
	if !e.on {
		return e.Calls.Arm(q)
	}
	return nil
}

func TestPostingAndReapingAllocateNothing(t *testing.T) {
	f := newFabric(simverbs.Hardware, 1)
	a, b := newEnd(t, f, "a", 64), newEnd(t, f, "b", 64)
	qa, _ := connect(a, b, 16)
	twin := &echo{Calls: a.process, number: qa.Number()}
	a.tamper.Calls = twin
	w := window(t, a)
	twin.on = true
	list := []verbs.Work{send(1, a, 0, 64, verbs.Write), send(2, a, 0, 64, verbs.Read), send(3, a, 0, 8, verbs.SendWithInvalidate)}
	receives := []verbs.ReceiveWork{receive(4, a)}
	var bind [1]verbs.Work
	failed := false
	poll := func(want int) {
		reaped, _, err := a.poller.Poll(a.out)
		failed = failed || err != nil || reaped != want
	}
	if n := testing.AllocsPerRun(80, func() {
		work, err := w.PrepareBind(9, qa, a.region, addressOf(a.memory), 64, verbs.AccessRemoteRead)
		bind[0] = work
		failed = failed || err != nil || qa.PostSend(bind[:]) != nil
		poll(1)
		twin.key = w.Publish()
		failed = failed || qa.PostSend(list) != nil || qa.PostReceive(receives) != nil || a.poller.Arm() != nil
		poll(4)
		failed = failed || !w.EndByPeer(&a.out[3]) || a.poller.MayBlock()
		poll(0)
		failed = failed || !a.poller.MayBlock() || !a.region.Lend()
		a.region.Return()
	}); n != 0 {
		t.Errorf("%v allocations per round", n)
	}
	if failed {
		t.Error("a round did not do what it should")
	}
}

func BenchmarkPostAndReapFour(b *testing.B) {
	f := newFabric(simverbs.Hardware, 1)
	a, peer := newEnd(b, f, "a", 64), newEnd(b, f, "b", 64)
	qa, _ := connect(a, peer, 16)
	twin := &echo{Calls: a.process, number: qa.Number(), on: true}
	a.tamper.Calls = twin
	one := send(1, a, 0, 64, verbs.Write)
	list := []verbs.Work{one, one, one, one}
	for b.Loop() {
		if qa.PostSend(list) != nil {
			b.Fatal("refused")
		}
		if n, _, err := a.poller.Poll(a.out); n != 4 || err != nil {
			b.Fatal(n, err)
		}
	}
}
