package control

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// delivery is one notification of a test.
type delivery struct {
	Delivery
	ended int
}

func (n *node) notify(c *Channel, op netproto.Operation, name, text string) *delivery {
	d := &delivery{}
	d.Notification = netproto.Notification{Name: name, Message: text}
	d.Operation, d.Epoch, d.Deadline = op, epoch, n.soon()
	d.Done = func(*Delivery) { d.ended++ }
	d.Start(c)
	return d
}

func (r *rig) delivered(d *delivery) lanes.Outcome {
	r.t.Helper()
	r.until("a delivery", func() bool { return d.ended > 0 })
	if d.ended != 1 {
		r.t.Errorf("Done was called %d times", d.ended)
	}
	return d.Outcome
}

// Both channels feed one inbox, in order; empty strings and repeats are fine; a receipt confirms the
// enqueue.
//
// proves N-1, N-2, N-5, W-14
func TestNotificationsArriveInOrderOverBothChannels(t *testing.T) {
	r := newRig(t, 1)
	source, sender := r.node(nodeHost, 4), r.node(otherHost, 4)
	c := sender.channel(source.address)
	var want []Message
	for i, text := range []string{"", "a", "a", "größer", strings.Repeat("x", 1000)} {
		op := netproto.OperationNotify
		if i%2 == 1 {
			op = netproto.OperationControlNotify
		}
		name := fmt.Sprintf("n%d", i%2)
		if i == 0 {
			name = ""
		}
		if o := r.delivered(sender.notify(c, op, name, text)); o.Err != nil || o.Remote != lanes.EffectComplete || !o.Drained {
			t.Fatalf("%d: %+v", i, o)
		}
		want = append(want, Message{Name: name, Text: text})
		if i == 2 {
			if got := source.inbox.Drain(); !slices.Equal(got, want) {
				t.Fatalf("%+v, want %+v", got, want)
			}
			want = nil
		}
	}
	if got := source.inbox.Drain(); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if sender.lane.Counts.Connects.Load() != 1 || source.lane.Counts.Notified.Load() != 5 {
		t.Error("not over one stream, or not counted")
	}
	r.finish()
}

// Room is reserved before the body is let come: a full inbox, a message above the limit and a channel
// that is switched off are refused without an effect, and the stream goes on.
//
// proves N-4, N-5
func TestInboxReservesBeforeItTakesABody(t *testing.T) {
	r := newRig(t, 2)
	source, sender := r.node(nodeHost, 4), r.node(otherHost, 4)
	c := sender.channel(source.address)
	refused := func(what string, d *delivery, status netproto.Status) {
		t.Helper()
		o := r.delivered(d)
		f, ok := o.Err.(*lanes.Fault)
		if !ok || f.Cause != lanes.Refused || f.Status != status || o.Remote != lanes.EffectNone || !o.Drained {
			t.Errorf("%s: %+v", what, o)
		}
	}
	refused("one byte too many", sender.notify(c, netproto.OperationNotify, "n", strings.Repeat("x", 1024)), netproto.StatusExhausted)
	for range 2 {
		r.delivered(sender.notify(c, netproto.OperationNotify, "", strings.Repeat("x", 900)))
	}
	refused("no bytes left", sender.notify(c, netproto.OperationControlNotify, "", strings.Repeat("x", 900)), netproto.StatusExhausted)
	for range 2 {
		r.delivered(sender.notify(c, netproto.OperationNotify, "", ""))
	}
	refused("no place left", sender.notify(c, netproto.OperationNotify, "", ""), netproto.StatusExhausted)
	if got := len(source.inbox.Drain()); got != 4 {
		t.Errorf("%d messages", got)
	}
	source.policy.TCPNotifications = false
	refused("switched off", sender.notify(c, netproto.OperationNotify, "n", "m"), netproto.StatusBackendUnavailable)
	if o := r.delivered(sender.notify(c, netproto.OperationControlNotify, "n", "m")); o.Err != nil {
		t.Errorf("the fallback: %+v", o)
	}
	stale := sender.notify(c, netproto.OperationNotify, "n", "m")
	r.delivered(stale)
	stale.Epoch, stale.ended = otherEpoch, 0
	stale.Deadline = sender.soon()
	stale.Start(c)
	refused("another epoch", stale, netproto.StatusEpochMismatch)
	if sender.lane.Counts.StreamsRetired.Load() != 0 {
		t.Error("a refusal cost the stream")
	}

	// While a body is on its way its room is taken.
	w := r.dial(source.address)
	source.inbox.Drain()
	note := netproto.Notification{Name: "abc", Message: "defg"}
	must(t, w.send(netproto.AppendRequest(nil, note.Request(netproto.OperationControlNotify, epoch))))
	w.reply()
	if source.inbox.count.Used() != 1 || source.inbox.bytes.Used() != 7 {
		t.Errorf("%d places, %d bytes are reserved", source.inbox.count.Used(), source.inbox.bytes.Used())
	}
	w.close()
	r.pass(soon)
	if source.inbox.count.Used() != 0 || source.inbox.bytes.Used() != 0 {
		t.Error("the reservation outlives its stream")
	}
	r.finish()
}

// Malformed bodies never enter the inbox; the sender is told the status, and the stream ends. Partial
// ones end with their stream or at the source's deadline.
//
// proves N-4, W-13, W-15
func TestMalformedAndPartialBodiesNeverArrive(t *testing.T) {
	r := newRig(t, 3)
	source := r.node(nodeHost, 4)
	frame := netproto.AppendRequest(nil, netproto.Request{Operation: netproto.OperationNotify, Epoch: epoch, Offset: 2, Length: 3})
	for _, body := range []string{"nametx", "namet\x01", "na\xffet\x00", "\xc3\xa9xe\xc3\x00", "n\xc3\xa9e\x80\x00"} {
		w := r.dial(source.address)
		must(t, w.send(append(frame[:len(frame):len(frame)], body...)))
		if p := w.reply(); p.Status != netproto.StatusReady {
			t.Fatalf("%+v", p)
		}
		if p := w.reply(); p != (netproto.Reply{Status: netproto.StatusProtocolError, Epoch: epoch}) {
			t.Errorf("%q: %+v", body, p)
		}
		w.ends()
	}
	for cut := range 6 {
		w := r.dial(source.address)
		must(t, w.send(frame))
		w.reply()
		must(t, w.send([]byte("namet\x00")[:cut]))
		if cut%2 == 0 {
			w.close()
			r.pass(soon)
			continue
		}
		w.ends() // at the source's deadline
	}
	if got := source.inbox.Drain(); len(got) != 0 || source.lane.Counts.Notified.Load() != 0 {
		t.Errorf("%+v", got)
	}
	if used := source.inbox.count.Used() + source.inbox.bytes.Used() + source.admission.Handlers.Used(); used != 0 {
		t.Errorf("%d charges are left", used)
	}
	r.finish()
}

// After bytes of the body may have left and no receipt came the effect is Unknown; before that it is
// None; the stream is retired.
//
// proves N-4
func TestLostReceiptIsUnknown(t *testing.T) {
	ready, success := replyBytes(netproto.StatusReady, 0), replyBytes(netproto.StatusSuccess, 0)
	foreign := netproto.AppendReply(nil, netproto.Reply{Status: netproto.StatusReady, Epoch: otherEpoch})
	const body = 4 // bytes, the marker included
	for _, k := range []struct {
		name   string
		answer []byte
		take   int // bytes of the body to wait for
		then   func(r *rig, w *wire, d *delivery)
		cause  lanes.Cause
		stage  string
		effect lanes.Effect
	}{
		{"closed before ready", nil, 0, func(_ *rig, w *wire, _ *delivery) { w.close() }, lanes.Disconnected, "reply", lanes.EffectNone},
		{"half a header", ready[:20], 0, func(_ *rig, w *wire, _ *delivery) { w.close() }, lanes.Disconnected, "reply", lanes.EffectNone},
		{"silence before ready", nil, 0, func(r *rig, _ *wire, d *delivery) { r.delivered(d) }, lanes.Deadline, "reply", lanes.EffectNone},
		{"cancelled before ready", nil, 0, func(_ *rig, _ *wire, d *delivery) { d.Cancel() }, lanes.Cancelled, "reply", lanes.EffectNone},
		{"success for ready", success, 0, func(*rig, *wire, *delivery) {}, lanes.Violated, "reply", lanes.EffectNone},
		{"ready of another process", foreign, 0, func(*rig, *wire, *delivery) {}, lanes.Violated, "reply", lanes.EffectNone},
		{"closed before the receipt", ready, body, func(_ *rig, w *wire, _ *delivery) { w.close() }, lanes.Disconnected, "receipt", lanes.EffectUnknown},
		{"silence before the receipt", ready, body, func(r *rig, _ *wire, d *delivery) { r.delivered(d) }, lanes.Deadline, "receipt", lanes.EffectUnknown},
		{"cancelled before the receipt", ready, body, func(_ *rig, _ *wire, d *delivery) { d.Cancel() }, lanes.Cancelled, "receipt", lanes.EffectUnknown},
		{"second ready", append(ready[:len(ready):len(ready)], ready...), body, func(*rig, *wire, *delivery) {}, lanes.Violated, "receipt", lanes.EffectUnknown},
		{"refusal for a receipt", append(ready[:len(ready):len(ready)], replyBytes(netproto.StatusProtocolError, 0)...), body,
			func(*rig, *wire, *delivery) {}, lanes.Refused, "receipt", lanes.EffectUnknown},
	} {
		r := newRig(t, 4)
		sender := r.node(otherHost, 4)
		p := r.listen()
		c := sender.channel(p.address)
		d := sender.notify(c, netproto.OperationNotify, "n", "mm")
		w := p.accept()
		if q := w.request(); q.Offset != 1 || q.Length != 2 || q.Region != 0 {
			t.Fatalf("%+v", q)
		}
		must(t, w.send(k.answer))
		if k.take > 0 {
			if b, err := w.receive(k.take); err != nil || string(b) != "nmm\x00" {
				t.Fatalf("%q %v", b, err)
			}
		}
		k.then(r, w, d)
		o := r.delivered(d)
		f, ok := o.Err.(*lanes.Fault)
		if !ok || f.Cause != k.cause || f.Stage != k.stage || o.Remote != k.effect || !o.Drained {
			t.Errorf("%s: %+v %v", k.name, o, f)
		}
		r.pass(soon)
		if sender.lane.Streams.Used() != 0 {
			t.Errorf("%s: the stream is kept", k.name)
		}
		r.finish()
	}
}

// A body is interrupted: the effect is Unknown exactly when some of it was with the system already.
//
// proves N-4
func TestInterruptedBodyIsUnknownOnceBytesLeft(t *testing.T) {
	seen := map[lanes.Effect]int{}
	for seed := range uint64(16) {
		r := rigWith(t, seed, simkernel.WorldOptions{Buffer: 200})
		sender := r.node(otherHost, 4)
		p := r.listen()
		d := sender.notify(sender.channel(p.address), netproto.OperationNotify, "", strings.Repeat("x", 900))
		w := p.accept()
		w.request()
		must(t, w.send(replyBytes(netproto.StatusReady, 0)))
		r.until("the body", func() bool { return d.machine.stage == notifyBody })
		if seed%2 == 0 {
			r.pass(soon) // the first part fills the buffers
		}
		d.Cancel()
		o := r.delivered(d)
		left, _ := w.receive(1000)
		want := lanes.EffectNone
		if len(left) > 0 {
			want = lanes.EffectUnknown
		}
		if f, ok := o.Err.(*lanes.Fault); !ok || f.Cause != lanes.Cancelled || f.Stage != "body" || o.Remote != want || len(left) > 900 {
			t.Errorf("SEED=%d: %+v after %d bytes", seed, o, len(left))
		}
		seen[o.Remote]++
		r.finish()
	}
	if len(seen) != 2 {
		t.Errorf("only %v were seen", seen)
	}
}

// A delivery that waits behind another one keeps its own deadline, and may be used again.
//
// proves N-1
func TestDeliveryIsReusable(t *testing.T) {
	r := newRig(t, 5)
	source, sender := r.node(nodeHost, 4), r.node(otherHost, 4)
	c := sender.channel(source.address)
	d := sender.notify(c, netproto.OperationNotify, "n", "1")
	r.delivered(d)
	for range 3 {
		d.ended, d.Deadline = 0, sender.soon()
		d.Start(c)
		if o := r.delivered(d); o.Err != nil || o.Remote != lanes.EffectComplete {
			t.Errorf("%+v", o)
		}
	}
	if got := len(source.inbox.Drain()); got != 4 {
		t.Errorf("%d messages", got)
	}
	r.finish()
}

// Many writers and pollers: every message comes out once, those of one writer in their order, and the
// room is given back.
//
// proves N-2
func TestConcurrentPollersGetDisjointMessages(t *testing.T) {
	const writers, each = 4, 2000
	count, size := budgets.New("notifications", "notifications", 64), budgets.New("bytes", "bytes", 1<<20)
	inbox := NewInbox(count, size)
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := 0; i < each; {
				m, err := inbox.Reserve(8)
				if err != nil {
					time.Sleep(time.Microsecond) // full: back-pressure
					continue
				}
				m.Name, m.Text = fmt.Sprint(w), fmt.Sprint(i)
				inbox.Put(m)
				i++
			}
		})
	}
	seen := make(chan Message, writers*each)
	stop := make(chan struct{})
	var pollers sync.WaitGroup
	for range 3 {
		pollers.Go(func() {
			last := map[string]int{}
			for {
				for _, m := range inbox.Drain() {
					var i int
					_, _ = fmt.Sscan(m.Text, &i)
					if previous, ok := last[m.Name]; ok && i <= previous {
						t.Errorf("writer %s: %d after %d", m.Name, i, previous)
					}
					last[m.Name] = i
					seen <- m
				}
				select {
				case <-inbox.Arrived():
				case <-stop:
					return
				}
			}
		})
	}
	all.Wait()
	unique := map[Message]bool{}
	for range writers * each {
		m := <-seen
		if unique[m] {
			t.Errorf("%+v came twice", m)
		}
		unique[m] = true
	}
	close(stop)
	pollers.Wait()
	if count.Used() != 0 || size.Used() != 0 || inbox.Drain() != nil {
		t.Error("room is left taken")
	}
}
