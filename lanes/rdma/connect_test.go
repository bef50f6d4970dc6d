package rdma

import (
	"testing"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// everyKind runs a test on all devices and in both progress modes.
func everyKind(t *testing.T, test func(t *testing.T, p simverbs.Personality, mode Progress)) {
	for _, p := range []simverbs.Personality{simverbs.Hardware, simverbs.SoftRoCE, simverbs.OldSoftRoCE} {
		for _, mode := range []Progress{Polling, EventDriven} {
			t.Run(p.String()+"/"+mode.String(), func(t *testing.T) { test(t, p, mode) })
		}
	}
}

// message sends one message from the requester's end of a pair to the source's, and checks that both completions reach
// their owners.
func message(t *testing.T, r *rig, from, to *site, c *Connection, pair int) (sender, receiver *holder) {
	t.Helper()
	there := to.source(c)
	if there == nil {
		t.Fatal("the source does not know the connection")
	}
	sender, receiver = &holder{}, &holder{}
	a, b := from.register(r.memory(4096), false), to.register(r.memory(4096), false)
	r.on(there.rails.lane.Loop, func() {
		local, _ := b.On(there.Device.NIC)
		address, _ := b.Range()
		there.Rail().Expect(1)
		must(t, there.PostReceive(pair, []verbs.ReceiveWork{{ID: there.TagReceive(receiver, 7), Address: address, Length: 64, LocalKey: local.LocalKey()}}))
	})
	r.on(c.rails.lane.Loop, func() {
		local, _ := a.On(c.Device.NIC)
		address, _ := a.Range()
		must(t, c.PostSend(pair, []verbs.Work{{SendWork: verbs.SendWork{
			ID: c.TagSend(sender, 9), Operation: verbs.Send, Address: address, Length: 32, LocalKey: local.LocalKey(),
		}}}))
	})
	r.until("both completions", func() bool { return len(sender.reaped) == 1 && len(receiver.reaped) == 1 })
	r.on(there.rails.lane.Loop, func() { there.Rail().Expect(-1) })
	if s, d := sender.reaped[0], receiver.reaped[0]; sender.words[0] != 9 || receiver.words[0] != 7 || s.Status != verbs.WorkSuccess || d.Status != verbs.WorkSuccess || d.Length != 32 {
		t.Errorf("sent %+v, received %+v", s, d)
	}
	return sender, receiver
}

// proves
func TestClaimsOfOneKeyShareOneConnectionOfTheSmallerWidth(t *testing.T) {
	everyKind(t, func(t *testing.T, p simverbs.Personality, mode Progress) {
		r := newRig(t, p)
		a := r.site("a", siteOptions{config: Config{Progress: mode, Width: 4}})
		b := r.site("b", siteOptions{config: Config{Progress: mode, Width: 2}})
		peer := a.peer(0, b)
		var holders []*holder
		for range 3 { // asked for at once: the second and third wait for the builder
			holders = append(holders, a.ask(0, peer, lanes.Read, func(q *Claim) { q.Path = Path{} }))
		}
		writer := a.ask(0, peer, lanes.Write, func(q *Claim) { q.Path = Path{} })
		r.until("four answers", func() bool {
			return holders[0].answers+holders[1].answers+holders[2].answers+writer.answers == 4
		})
		c := holders[0].claim.Hold.Connection
		if c == nil {
			t.Fatal(holders[0].claim.Err)
		}
		for _, h := range holders {
			if h.claim.Hold.Connection != c {
				t.Error("claims of one key got different connections")
			}
		}
		if w := writer.claim.Hold.Connection; w == nil || w == c {
			t.Errorf("a claim of the other direction got %v, %v", w, writer.claim.Err)
		}
		if c.Width() != 2 || a.transport.config.Budgets.Endpoints.Used() != 4 || b.transport.config.Budgets.Endpoints.Used() != 4 {
			t.Errorf("width %d, %d places here, %d there", c.Width(), a.transport.config.Budgets.Endpoints.Used(), b.transport.config.Budgets.Endpoints.Used())
		}
		for pair := range 2 {
			message(t, r, a, b, c, pair)
		}
		r.on(a.lanes[0].Loop, func() {
			for _, h := range append(holders, writer) {
				h.release()
			}
		})
		r.finish()
	})
}
