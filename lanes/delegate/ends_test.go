package delegate

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/tcp"
	"github.com/orbitte/orbitte/netproto"
)

// pairOf is a source and a requester with one range each.
type pairOf struct {
	*rig
	source, requester *node
	there, here       *memory
}

func newPair(t testing.TB, there, here setup, length uint64) *pairOf {
	t.Helper()
	return newPairOf(t, rand.Uint64(), there, here, length)
}

func newPairOf(t testing.TB, seed uint64, there, here setup, length uint64) *pairOf {
	t.Helper()
	p := &pairOf{rig: newRig(t, seed)}
	p.source, p.requester = p.node(sourceHost, there), p.node(requesterHost, here)
	p.there, p.here = p.source.register(true, length, netproto.ReadWrite, 1), p.requester.register(here.device, length, netproto.LocalOnly, 2)
	return p
}

// pairMaker is newPair, or newRDMAPair.
type pairMaker func(t testing.TB, there, here setup, length uint64) *pairOf

// eachWay runs a test with payload over TCP, and over RDMA.
func eachWay(t *testing.T, test func(t *testing.T, pair pairMaker)) {
	t.Run("TCP", func(t *testing.T) { test(t, newPair) })
	t.Run("RDMA", func(t *testing.T) { test(t, newRDMAPair) })
}

// parents is how many requests have grants of the source.
func (p *pairOf) parents() int {
	if p.source.device == nil {
		return 0
	}
	return p.source.device.rails.Source().Parents()
}

// slowly makes pairs whose copies take so long.
func slowly(pair pairMaker, slow time.Duration) func(*testing.T) *pairOf {
	return func(t *testing.T) *pairOf { return pair(t, setup{slow: slow}, setup{}, 7*slotBytes) }
}

// eachStep runs a transfer again and again, in worlds of their own, and does something to it later each time, until it
// ends before that. It says how many it met.
func eachStep(t *testing.T, stride int, prepare func(*testing.T) *pairOf, strike func(p *pairOf, a *attempt), check func(p *pairOf, a *attempt)) {
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		for _, slots := range []int{1, 3, 4} {
			t.Run(fmt.Sprintf("%v-%d", d, slots), func(t *testing.T) {
				met := 0
				for n := 0; ; n += stride {
					p := prepare(t)
					a := p.requester.ask(d, p.source, p.here, p.there, 3, 5, 6*slotBytes+1, slots).start(p.requester.channel(p.source))
					for range n {
						p.world.Step()
					}
					if a.done > 0 {
						p.finish()
						break
					}
					met++
					strike(p, a)
					check(p, a)
					if t.Failed() {
						t.Fatalf("after %d steps", n)
					}
				}
				if met < 10 {
					t.Errorf("met only %d times", met)
				}
			})
		}
	}
}

// A requester that is killed at any step leaves nothing at the source: its pin ends with its stream, each slot is lent
// again once neither a copy nor a grant touches it, and not before, and the charges are repaid.
//
// proves C-8, R-18, U-2
func TestARequesterKilledAtEachStepLeavesNothingAtTheSource(t *testing.T) {
	eachWay(t, func(t *testing.T, pair pairMaker) {
		eachStep(t, 5, slowly(pair, 300*time.Microsecond), func(p *pairOf, a *attempt) { p.requester.kill() }, func(p *pairOf, a *attempt) {
			early, began, soon := false, p.world.Now(), time.Second
			if p.source.device != nil {
				soon *= 2 // receipts that are on their way have a grace
			}
			p.until("the pins' end", func() bool {
				s, g := p.source.stage.Stats(), p.parents()
				early = early || (s.Flying > 0 || g > 0) && p.source.slots.Used() == 0
				return p.source.service.Stats().Pins == 0 && p.source.slots.Used() == 0 && s.Flying == 0 && g == 0 && p.source.server.Sessions() == 0
			})
			if early {
				p.t.Error("slots were free while a copy or a grant was under way")
			}
			if p.world.Now() > began.After(soon) {
				p.t.Errorf("the pins took %v", time.Duration(p.world.Now()-began))
			}
			p.finish()
		})
	})
}

// A source that is killed at any step fails the transfer, says what may have happened, and leaves nothing at the requester.
//
// proves C-8, T-10
func TestASourceKilledAtEachStepFailsTheTransfer(t *testing.T) {
	eachStep(t, 5, slowly(newPair, 0), func(p *pairOf, a *attempt) { p.source.kill() }, func(p *pairOf, a *attempt) {
		o, m := p.wait(a), &a.machine
		if o.Err == nil { // all was done, and only the end of the pin, or the receipt on its way, was left
			if s := p.source.service.Stats(); s.Copied != m.parts() {
				p.t.Errorf("a success after %d copies of %d", s.Copied, m.parts())
			}
			p.finish()
			return
		}
		if a.Direction == lanes.Read && m.part > 0 && m.moved == m.parts() {
			p.t.Errorf("all the payload is here, and %v", o.Err)
		}
		f := fault(p.t, o)
		if !o.Drained || f.Cause != lanes.Disconnected && f.Cause != lanes.Unreachable {
			p.t.Errorf("%+v: %v", o, f)
		}
		if a.Direction == lanes.Write && (o.Remote == lanes.EffectUnknown) != m.posted || a.Direction == lanes.Read && (o.Local != lanes.EffectNone) != (m.moved > 0) {
			p.t.Errorf("%+v after %d parts, posted %v", o, m.moved, m.posted)
		}
		p.finish()
	})
}

// A transfer that is cancelled at any step ends, gives its slots back, and says what it did; the next one is whole.
//
// proves C-8, G-8
func TestCancelAtEachStepGivesTheSlotsBack(t *testing.T) {
	eachWay(t, func(t *testing.T, pair pairMaker) {
		eachStep(t, 5, slowly(pair, 300*time.Microsecond), func(p *pairOf, a *attempt) { a.Cancel() }, func(p *pairOf, a *attempt) {
			o := p.wait(a)
			if o.Err != nil && fault(p.t, o).Cause != lanes.Cancelled || !o.Drained {
				p.t.Errorf("%+v", o)
			}
			p.truth(a, o)
			p.until("the pin's end", func() bool { return p.source.slots.Used() == 0 })
			again := p.wait(p.requester.ask(lanes.Read, p.source, p.here, p.there, 0, 0, 7*slotBytes, 4).start(p.requester.channels[0]))
			if again.Err != nil || !bytes.Equal(p.here.bytes(), p.there.bytes()) {
				p.t.Errorf("afterwards: %+v", again)
			}
			p.finish()
		})
	})
}

// The source closed at any step takes its slots back once copies and grants have ended, and is quiet then.
//
// proves C-8, G-6
func TestCloseSourceAtEachStepTakesThePinsBack(t *testing.T) {
	eachWay(t, func(t *testing.T, pair pairMaker) {
		eachStep(t, 5, slowly(pair, 300*time.Microsecond), func(p *pairOf, a *attempt) {
			p.source.admission.Fence()
			p.source.service.Fence()
		}, func(p *pairOf, a *attempt) {
			began := p.world.Now()
			p.until("a quiet source", func() bool { return p.source.admission.Gate.Inside() == 0 })
			if p.source.slots.Used() != 0 || p.source.stage.Stats().Flying != 0 || p.parents() != 0 || p.world.Now() > began.After(time.Second) {
				p.t.Errorf("quiet after %v with %d slots charged, %+v", time.Duration(p.world.Now()-began), p.source.slots.Used(), p.source.stage.Stats())
			}
			o := p.wait(a)
			p.truth(a, o)
			if o.Err != nil && fault(p.t, o).Cause != lanes.Refused || !o.Drained {
				p.t.Errorf("%+v", o)
			}
			p.finish()
		})
	})
}

// A neighbour on the stream that is cancelled at any step retires it, and ends the pin: a READ goes on through another
// one, and so does a WRITE of which nothing was delegated; one that may have begun says so, and is not repeated.
//
// proves C-8, T-5, T-10
func TestANeighboursEndDoesNotFailWhatCanGoOn(t *testing.T) {
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		again, unknown := 0, 0
		for n := 0; n < 600; n += 3 {
			p := newPair(t, setup{slow: 100 * time.Microsecond}, setup{}, 7*slotBytes)
			beside := p.requester.register(false, 7*slotBytes, netproto.LocalOnly, 3)
			c := p.requester.channel(p.source)
			a := p.requester.ask(d, p.source, p.here, p.there, 3, 5, 6*slotBytes+1, 2).start(c)
			done := false
			b := &tcp.Transfer{
				Direction: lanes.Read, Local: beside.Registration, Region: p.there.ID(), Length: 7 * slotBytes,
				Epoch: p.source.policy.Epoch, Deadline: a.Deadline,
			}
			b.Done = func(x *tcp.Transfer) {
				if done = x.Outcome.Err != nil; !done {
					b.Start(c) // again and again, until it is cancelled
				}
			}
			b.Start(c)
			for range n {
				p.world.Step()
			}
			b.Cancel()
			p.until("the neighbour's end", func() bool { return done })
			o := p.wait(a)
			if p.source.service.Stats().Pinned > 1 {
				again++
			}
			want := pattern(7*slotBytes, 2)
			copy(want[3:], pattern(7*slotBytes, 1)[5:][:6*slotBytes+1])
			switch {
			case o.Err == nil && d == lanes.Read && bytes.Equal(p.here.bytes(), want):
			case o.Err == nil && d == lanes.Write && bytes.Equal(p.there.bytes()[5:][:6*slotBytes+1], p.here.bytes()[3:][:6*slotBytes+1]):
			case d == lanes.Write && o.Remote == lanes.EffectUnknown && fault(t, o).Cause == lanes.Disconnected:
				unknown++
			default:
				t.Fatalf("%v, step %d: %+v", d, n, o)
			}
			p.finish()
		}
		if again == 0 || d == lanes.Write && unknown == 0 {
			t.Errorf("%v: %d times another pin, %d times unknown", d, again, unknown)
		}
	}
}
