package control

import (
	"fmt"
	"testing"
	"time"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// later takes frames off the stream and is told by the test when to answer which.
type later struct {
	served []*laterFrame
	status netproto.Status // what is refused at once; 0: nothing
}

type laterFrame struct {
	slip       Slip
	sent, lost int
	payload    []byte
}

func (l *later) Serve(s *Session, r netproto.Request) {
	if l.status != netproto.StatusSuccess {
		s.Refuse(l.status)
		return
	}
	f := &laterFrame{payload: []byte{byte(r.Length), byte(len(s.Body()))}}
	l.served = append(l.served, f)
	s.Detach(&f.slip, f)
}

func (f *laterFrame) Sent(int)     { f.sent++ }
func (f *laterFrame) Received(int) {}
func (f *laterFrame) Lost(Loss)    { f.lost++ }

func (f *laterFrame) answer() { f.slip.Answer(netproto.StatusSuccess, f.payload) }

// takenFrame is one frame of an operation whose service takes it off the stream, with a body. It needs a handler.
func takenFrame() []byte {
	return append(netproto.AppendRequest(nil, netproto.Request{Operation: netproto.OperationDelegate, Epoch: epoch, Length: takenBody}), make([]byte, takenBody)...)
}

const takenBody = netproto.DelegateHeadSize + netproto.DelegateCopySize

// doneFrame is one of an operation that only ends something.
func doneFrame() []byte {
	body := netproto.AppendParent(nil, netproto.Parent{Requester: otherEpoch, Generation: 1, Slices: 1})
	return append(netproto.AppendRequest(nil, netproto.Request{Operation: netproto.OperationRDMADone, Epoch: epoch, Length: uint64(len(body))}), body...)
}

func describeFrame() []byte {
	return netproto.AppendRequest(nil, netproto.Request{Operation: netproto.OperationDescribe, Epoch: epoch})
}

func (l *later) node(r *rig, handlers int64) *node {
	n := r.node(nodeHost, 4)
	n.admission.Handlers = n.ledger.Add(budgets.New("all handlers", "frames", handlers))
	n.server.HandleDetached(netproto.OperationDelegate, l)
	n.server.HandleDetached(netproto.OperationRDMADone, l)
	return n
}

func (r *rig) served(l *later, n int) {
	r.t.Helper()
	r.until(fmt.Sprintf("%d frames", n), func() bool { return len(l.served) >= n })
}

// success reads one with its payload.
func (w *wire) success() []byte {
	w.rig.t.Helper()
	p := w.reply()
	if p.Status != netproto.StatusSuccess {
		w.rig.t.Fatalf("%+v", p)
	}
	b, err := w.receive(int(p.Length))
	must(w.rig.t, err)
	return b
}

// Frames that a service takes off the stream are served side by side, as many as there may be, and answered in their
// order whatever ends first; one more waits for the first answer. Each holds its admission until it is answered.
//
// proves T-6, R-10
// field case F-31
func TestFramesTakenOffTheStreamAreAnsweredInOrder(t *testing.T) {
	for _, chop := range []int{0, 1, 31} {
		r := rigWith(t, 1, simkernel.WorldOptions{ChopReceive: chop})
		l := &later{}
		n := l.node(r, 2*slipsMax)
		w := r.dial(n.address)
		var frames []byte
		for range slipsMax + 1 {
			frames = append(frames, takenFrame()...)
		}
		must(t, w.send(frames))
		r.served(l, slipsMax)
		r.pass(soon)
		if len(l.served) != slipsMax || n.admission.Handlers.Used() != slipsMax {
			t.Fatalf("%d are served with %d handlers", len(l.served), n.admission.Handlers.Used())
		}
		for i := slipsMax - 1; i > 0; i-- {
			l.served[i].payload[0] = byte(i)
			l.served[i].answer()
		}
		r.pass(soon)
		for i, f := range l.served {
			if f.sent != 0 {
				t.Fatalf("answer %d was sent before the first", i)
			}
		}
		l.served[0].payload[0] = 0
		l.served[0].answer()
		for i := range slipsMax {
			if b := w.success(); b[0] != byte(i) || int(b[1]) != takenBody {
				t.Errorf("answer %d is %v", i, b)
			}
		}
		r.served(l, slipsMax+1)
		if used := n.admission.Handlers.Used(); used != 1 {
			t.Errorf("%d handlers are used", used)
		}
		l.served[slipsMax].answer()
		w.success()
		must(t, w.send(describeFrame()))
		w.success()
		r.finish()
	}
}

// A frame of another kind, a refusal, and a violation come after the answers that are owed for frames before them.
//
// proves W-14, W-15
func TestOtherFramesWaitForAnswersThatAreOwed(t *testing.T) {
	for _, c := range []struct {
		name   string
		frame  []byte
		status netproto.Status // of the service, for the second frame
		want   netproto.Status
		ends   bool
	}{
		{"another kind", describeFrame(), 0, netproto.StatusSuccess, false},
		{"a refusal", takenFrame(), netproto.StatusExhausted, netproto.StatusExhausted, false},
		{"a violation", make([]byte, netproto.RequestSize), 0, netproto.StatusProtocolError, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, 1)
			l := &later{}
			n := l.node(r, 2*slipsMax)
			w := r.dial(n.address)
			must(t, w.send(takenFrame()))
			r.served(l, 1)
			l.status = c.status
			must(t, w.send(append(c.frame[:len(c.frame):len(c.frame)], takenFrame()...)))
			r.pass(soon)
			if len(l.served) != 1 {
				t.Fatalf("%d frames were served", len(l.served))
			}
			l.status = 0
			l.served[0].answer()
			w.success()
			p := w.reply()
			if p.Status != c.want {
				t.Fatalf("%+v, want %v", p, c.want)
			}
			if c.ends {
				w.ends()
				r.finish()
				return
			}
			if p.Length > 0 {
				_, err := w.receive(int(p.Length))
				must(t, err)
			}
			r.served(l, 2)
			l.served[1].answer()
			w.success()
			r.finish()
		})
	}
}

// A frame that finds no handler while its stream owes answers waits for those; its stream is not closed, and frames of
// others that wait are not overtaken.
//
// proves T-6
func TestOwedAnswersMakeRoomForTheNextFrame(t *testing.T) {
	r := newRig(t, 1)
	l := &later{}
	n := l.node(r, slipsMax)
	first, second := r.dial(n.address), r.dial(n.address)
	var frames []byte
	for range slipsMax - 1 {
		frames = append(frames, takenFrame()...)
	}
	must(t, first.send(frames))
	r.served(l, slipsMax-1)
	must(t, second.send(takenFrame()))
	r.served(l, slipsMax)
	must(t, second.send(takenFrame()))
	r.pass(3 * overflowGrace)
	if len(l.served) != slipsMax || n.lane.Counts.OverflowedSessions.Load() != 0 {
		t.Fatalf("%d served, %d overflowed", len(l.served), n.lane.Counts.OverflowedSessions.Load())
	}
	l.served[slipsMax-1].answer() // the second stream's own
	second.success()
	r.served(l, slipsMax+1)
	for _, f := range l.served {
		if f.sent == 0 {
			f.answer()
		}
	}
	second.success()
	for range slipsMax - 1 {
		first.success()
	}
	r.finish()
}

// A frame that only ends something needs no handler, and does not wait behind frames that do: they may wait for what it gives
// back. A stream may owe no more answers for it.
//
// proves T-6
func TestAFrameThatOnlyEndsSomethingNeedsNoHandler(t *testing.T) {
	r := newRig(t, 1)
	l := &later{}
	n := l.node(r, 1)
	first, second, third := r.dial(n.address), r.dial(n.address), r.dial(n.address)
	must(t, first.send(takenFrame()))
	r.served(l, 1)
	must(t, second.send(takenFrame()))
	r.until("a frame that waits", func() bool { return n.admission.Queue.Used() == 1 })
	must(t, first.send(doneFrame())) // which owes an answer
	r.served(l, 2)
	for range slipsMax + 1 {
		must(t, third.send(doneFrame()))
	}
	r.served(l, 2+slipsMax)
	r.pass(soon)
	if len(l.served) != 2+slipsMax || n.admission.Handlers.Used() != 1 || n.admission.Queue.Used() != 1 {
		t.Errorf("%d served, %d handlers, %d wait", len(l.served), n.admission.Handlers.Used(), n.admission.Queue.Used())
	}
	for i := 0; i < 4+slipsMax; i++ {
		r.served(l, i+1)
		l.served[i].answer()
	}
	for w, answers := range map[*wire]int{first: 2, second: 1, third: slipsMax + 1} {
		for range answers {
			w.success()
		}
	}
	r.finish()
}

// A frame that waits for a handler, its body received together with its head, is served when another stream's ends.
//
// proves T-6
func TestFrameReceivedAheadIsServedWhenAHandlerIsFree(t *testing.T) {
	r := newRig(t, 1)
	l := &later{}
	n := l.node(r, 1)
	first, second := r.dial(n.address), r.dial(n.address)
	must(t, second.send(takenFrame()))
	r.served(l, 1)
	l.served[0].answer()
	second.success()
	must(t, first.send(takenFrame()))
	r.served(l, 2)
	must(t, second.send(takenFrame()))
	r.pass(soon)
	l.served[1].answer()
	first.success()
	r.served(l, 3)
	l.served[2].answer()
	second.success()
	r.finish()
}

// A stream that is lost, ends at the source's deadline, or is closed with the source, tells every frame that is owed, and
// nothing stays charged.
//
// proves T-9, U-2, G-6
func TestLostStreamTellsEveryFrameThatIsOwed(t *testing.T) {
	for _, how := range []string{"closed by the peer", "deadline", "deadline of the second", "between answer and send"} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t, 1)
			l := &later{}
			n := l.node(r, 2*slipsMax)
			w := r.dial(n.address)
			must(t, w.send(append(takenFrame(), takenFrame()...)))
			r.served(l, 2)
			switch how {
			case "deadline":
				r.pass(n.policy.SourceTimeout + time.Second)
				if n.lane.Counts.SourceTimeouts.Load() != 1 {
					t.Errorf("%d timeouts", n.lane.Counts.SourceTimeouts.Load())
				}
			case "deadline of the second":
				r.pass(n.policy.SourceTimeout / 2)
				l.served[0].answer()
				r.pass(n.policy.SourceTimeout/2 + time.Second)
				if n.lane.Counts.SourceTimeouts.Load() != 1 || l.served[0].sent != 1 || l.served[1].lost != 1 {
					t.Errorf("%d timeouts: %+v", n.lane.Counts.SourceTimeouts.Load(), l.served)
				}
			case "between answer and send":
				l.served[0].answer()
				w.close()
			default:
				w.close()
			}
			r.until("the loss", func() bool { return n.server.Sessions() == 0 })
			for i, f := range l.served {
				if f.sent+f.lost != 1 || f.slip.Owed() {
					t.Errorf("frame %d: sent %d, lost %d, owed %v", i, f.sent, f.lost, f.slip.Owed())
				}
			}
			if used := n.admission.Handlers.Used(); used != 0 {
				t.Errorf("%d handlers are used", used)
			}
			r.finish()
		})
	}
}

// A source that closes answers what it owes, and its streams end then.
//
// proves G-6
func TestClosingSourceSendsWhatItOwes(t *testing.T) {
	r := newRig(t, 1)
	l := &later{}
	n := l.node(r, 2*slipsMax)
	w := r.dial(n.address)
	must(t, w.send(append(takenFrame(), takenFrame()...)))
	r.served(l, 2)
	n.admission.Fence()
	closed := false
	n.server.Close(func() { closed = true })
	r.pass(soon)
	if closed {
		t.Fatal("it closed with answers owed")
	}
	l.served[1].answer()
	l.served[0].answer()
	w.success()
	w.success()
	began := r.world.Now()
	w.ends()
	if took := time.Duration(r.world.Now() - began); took > time.Second {
		t.Errorf("the stream ended %v later", took)
	}
	r.until("the end", func() bool { return closed })
	r.finish()
}

func TestMisuseOfASlipPanics(t *testing.T) {
	r := newRig(t, 1)
	l := &later{}
	n := l.node(r, 2*slipsMax)
	w := r.dial(n.address)
	must(t, w.send(takenFrame()))
	r.served(l, 1)
	f := l.served[0]
	panics(t, "detaching twice", func() { f.slip.session.Detach(&f.slip, f) })
	f.answer()
	panics(t, "answering twice", f.answer)
	w.success()
	panics(t, "answering what is not owed", f.answer)
	r.finish()
}
