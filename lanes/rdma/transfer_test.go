package rdma

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/segments"
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

func complete(t *testing.T, o lanes.Outcome, d lanes.Direction, n uint64) {
	t.Helper()
	want := lanes.Outcome{Bytes: n, Local: lanes.EffectComplete, Drained: true}
	if d == lanes.Write {
		want.Local, want.Remote = lanes.EffectNone, lanes.EffectComplete
	}
	if o != want {
		t.Fatalf("outcome %+v, want %+v", o, want)
	}
}

// proves
func TestReadsAndWritesOfAllSizesArriveWholeAndLeaveNothing(t *testing.T) {
	sizes := []uint64{1, 141, 64<<10 - 1, 64 << 10, 64<<10 + 1, 129 << 10, 5 << 20}
	everyKind(t, func(t *testing.T, p simverbs.Personality, mode Progress) {
		for _, rails := range []int{1, 2} {
			t.Run(fmt.Sprint(rails), func(t *testing.T) {
				o := siteOptions{config: Config{Progress: mode}}
				if rails == 1 {
					o.devices = single(p)
				}
				e := newEnds(t, p, endsOptions{o, o})
				for _, n := range sizes {
					remote := e.to.memory(n+3, netproto.ReadWrite, 1)
					local := e.from.memory(n, netproto.LocalOnly, 2)
					complete(t, e.run(e.transfer(lanes.Read, local, remote, 3)), lanes.Read, n)
					if string(local.bytes()) != string(pattern(n+3, 1)[3:]) {
						t.Fatalf("READ of %d bytes: other bytes arrived", n)
					}
					copy(local.bytes(), pattern(n, 3))
					complete(t, e.run(e.transfer(lanes.Write, local, remote, 3)), lanes.Write, n)
					if string(remote.bytes()) != string(pattern(n+3, 1)[:3])+string(pattern(n, 3)) {
						t.Fatalf("WRITE of %d bytes: other bytes arrived", n)
					}
				}
				e.end()
			})
		}
	})
}

// proves G-7
func TestAnEmptyTransferIsCheckedAtTheSourceAndMovesNothing(t *testing.T) {
	e := newEnds(t, simverbs.Hardware, endsOptions{})
	remote := e.to.memory(100, netproto.RemoteRead, 1)
	local := e.from.memory(100, netproto.LocalOnly, 2)
	empty := func(d lanes.Direction, offset uint64) lanes.Outcome {
		a := e.transfer(d, local, remote, offset)
		a.Length = 0
		return e.run(a)
	}
	complete(t, empty(lanes.Read, 100), lanes.Read, 0)
	for _, c := range []struct {
		d      lanes.Direction
		offset uint64
		status netproto.Status
	}{{lanes.Read, 101, netproto.StatusInvalidRange}, {lanes.Write, 0, netproto.StatusPermissionDenied}} {
		o := empty(c.d, c.offset)
		if f := faultIn(t, o); f.Status != c.status || !o.Drained || o.Remote != lanes.EffectNone {
			t.Errorf("%v at %d: %+v, want %v", c.d, c.offset, o, c.status)
		}
	}
	wide := e.to.memory(100, netproto.ReadWrite, 1)
	a := e.transfer(lanes.Write, local, wide, 0)
	a.Length = 0
	complete(t, e.run(a), lanes.Write, 0)
	equal(t, "grants", e.to.transport.GrantStats().Granted, 0)
	equal(t, "connections", e.from.transport.Stats().Built, 0)
	e.end()
}

// proves M-9
func TestALeasedRangeIsWaitedForALittleWhile(t *testing.T) {
	for _, side := range []string{"requester", "source"} {
		for _, held := range []time.Duration{50 * time.Millisecond, time.Second} {
			t.Run(fmt.Sprint(side, held), func(t *testing.T) {
				e := newEnds(t, simverbs.Hardware, endsOptions{})
				remote, local := e.to.memory(100<<10, netproto.ReadWrite, 1), e.from.memory(100<<10, netproto.LocalOnly, 2)
				m := local
				if side == "source" {
					m = remote
				}
				lease, err := m.Lease(99<<10, 1<<10, segments.Exclusive)
				must(t, err)
				e.world.Later(held, lease.Return)
				a := e.transfer(lanes.Write, local, remote, 0)
				a.Deadline = e.world.Now().After(10 * time.Second)
				o := e.run(a)
				if held < roomGrace {
					complete(t, o, lanes.Write, 100<<10)
				} else {
					f := faultIn(t, o)
					if want := map[string]lanes.Cause{"requester": lanes.Conflicted, "source": lanes.Refused}[side]; f.Cause != want || o.Remote != lanes.EffectNone {
						t.Errorf("%+v", o)
					}
				}
				e.pass(time.Second)
				e.end()
			})
		}
	}
}

// proves R-15
func TestOnlyACacheMissIsAnsweredByBuildingAnew(t *testing.T) {
	for misses := range 4 {
		t.Run(fmt.Sprint(misses), func(t *testing.T) {
			e := newEnds(t, simverbs.Hardware, endsOptions{siteOptions{devices: single(0)}, siteOptions{devices: single(0)}})
			remote, local := e.to.memory(100<<10, netproto.ReadWrite, 1), e.from.memory(100<<10, netproto.LocalOnly, 2)
			missing := misses
			service := e.to.lanes[0]
			for _, o := range []netproto.Operation{netproto.OperationRDMAWrite, netproto.OperationRDMAWriteSliced} {
				service.server.Handle(o, serviceFunc(func(s *control.Session, r netproto.Request) {
					if missing--; missing >= 0 {
						s.Refuse(netproto.StatusCacheMiss)
						return
					}
					e.to.services[0].Serve(s, r)
				}))
			}
			o := e.run(e.transfer(lanes.Write, local, remote, 0))
			if misses <= 2 {
				complete(t, o, lanes.Write, 100<<10)
			} else if f, miss := faultIn(t, o), (*MissError)(nil); f.Status != netproto.StatusCacheMiss || !errors.As(f, &miss) || miss.Times != 3 || o.Remote != lanes.EffectNone || !o.Drained {
				t.Errorf("%+v", o)
			}
			equal(t, "connections", e.from.transport.Stats().Built, uint64(min(misses, 2)+1))
			e.end()
		})
	}
}

type serviceFunc func(*control.Session, netproto.Request)

func (f serviceFunc) Serve(s *control.Session, r netproto.Request) { f(s, r) }

// A requester whose DONE comes after the source's own deadline is told that, and what it knows of the bytes: nothing of a
// WRITE, whose payload was posted.
//
// proves R-9, T-10
func TestADoneBehindTheSourcesDeadlineIsToldAsThat(t *testing.T) {
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		for _, host := range []netproto.HostMemoryPolicy{netproto.HostDirect, netproto.HostStaged} {
			t.Run(fmt.Sprint(d, host), func(t *testing.T) {
				o := siteOptions{devices: single(0), config: Config{Progress: EventDriven, Host: host}}
				e := newEnds(t, simverbs.Hardware, endsOptions{o, o})
				remote, local := e.to.memory(100<<10, netproto.ReadWrite, 1), e.from.memory(100<<10, netproto.LocalOnly, 2)
				a := e.transfer(d, local, remote, 0)
				a.Deadline = e.world.Now().After(time.Minute)
				e.start(a)
				e.until("payload under way", func() bool { return a.machine.stage == transferMoving })
				link := e.world.Link(e.from.host, e.to.host)
				link.BlackHole(true)
				e.world.Later(e.to.policy.SourceTimeout+time.Second, func() { link.BlackHole(false) })
				out := e.wait(a)
				var late *SourceDeadlineError
				f := faultIn(t, out)
				if f.Cause != lanes.Deadline || f.Stage != ReceiptStage || !errors.As(f, &late) || !out.Drained {
					t.Errorf("%+v: %v", out, f)
				}
				want := lanes.Outcome{Err: out.Err, Drained: true}
				if d == lanes.Write {
					want.Remote = lanes.EffectUnknown
				} else if host == netproto.HostDirect {
					want.Local = lanes.EffectPartial
				}
				if out != want {
					t.Errorf("%+v, want %+v", out, want)
				}
				e.idle()
				complete(t, e.run(e.transfer(d, local, remote, 0)), d, 100<<10)
				e.end()
			})
		}
	}
}

// The source forgets a connection; transfers of it find out, and build another one.
//
// proves R-15
func TestAConnectionThatTheSourceLostIsBuiltAnew(t *testing.T) {
	e := newEnds(t, simverbs.SoftRoCE, endsOptions{siteOptions{devices: single(1)}, siteOptions{devices: single(1)}})
	remote, local := e.to.memory(300<<10, netproto.ReadWrite, 1), e.from.memory(300<<10, netproto.LocalOnly, 2)
	complete(t, e.run(e.transfer(lanes.Read, local, remote, 0)), lanes.Read, 300<<10)
	e.on(e.to.lanes[0].Loop, func() {
		for _, c := range e.to.lanes[0].rails.rails[0].connections {
			c.Fail(errPeerLeft, 0)
		}
	})
	complete(t, e.run(e.transfer(lanes.Read, local, remote, 0)), lanes.Read, 300<<10)
	equal(t, "rebuilt", e.from.transport.GrantStats().Misses, 1)
	e.end()
}

// proves
func TestSlicesGoOverBothRailsAndTheMaskKeepsThemOnOne(t *testing.T) {
	for mask, want := range map[uint64][2]bool{0: {true, true}, 1: {true, false}, 2: {false, true}} {
		e := newEnds(t, simverbs.Hardware, endsOptions{from: siteOptions{config: Config{Mask: mask}}})
		remote, local := e.to.memory(5<<20, netproto.ReadWrite, 1), e.from.memory(5<<20, netproto.LocalOnly, 2)
		complete(t, e.run(e.transfer(lanes.Read, local, remote, 0)), lanes.Read, 5<<20)
		equal(t, "slices of the READ", e.to.transport.GrantStats().Received, 40)
		complete(t, e.run(e.transfer(lanes.Write, local, remote, 0)), lanes.Write, 5<<20)
		equal(t, "slices of both", e.to.transport.GrantStats().Received, 40+27)
		for i, rail := range e.from.lanes[0].rails.rails {
			equal(t, fmt.Sprintf("mask %d: rail %d is used", mask, i), rail.sends.Counts().Paid > 0, want[i])
		}
		var here, there Traffic
		add := func(sum *Flow, f Flow) { sum.Slices, sum.Bytes = sum.Slices+f.Slices, sum.Bytes+f.Bytes }
		for i, d := range e.from.transport.devices {
			x := d.Traffic()
			equal(t, fmt.Sprintf("mask %d: device %d has traffic", mask, i), x.Read.Slices > 0 && x.Written.Slices > 0, want[i])
			add(&here.Read, x.Read)
			add(&here.Written, x.Written)
			x = e.to.transport.devices[i].Traffic()
			add(&there.Served, x.Served)
			add(&there.Stored, x.Stored)
		}
		equal(t, "traffic of the requester", here, Traffic{Read: Flow{40, 5 << 20}, Written: Flow{27, 5 << 20}})
		equal(t, "traffic of the source", there, Traffic{Served: Flow{40, 5 << 20}, Stored: Flow{27, 5 << 20}})
		e.end()
	}
}

// Far more requests than completions fit: each waits for its turn, and no completion queue runs over. A requester knows the
// receives of a pair: where those of both directions have places in the source's queue, nobody is refused; otherwise the
// refused ask again.
//
// field case F-53
func TestAThousandRequestsShareSixteenCompletionEntries(t *testing.T) {
	for _, depth := range []int{4, 7} {
		t.Run(fmt.Sprint(depth, " receives"), func(t *testing.T) { aThousandRequests(t, depth) })
	}
}

func aThousandRequests(t *testing.T, depth int) {
	o := siteOptions{devices: single(0), config: Config{QueueEntries: 16, SendDepth: 7, ReceiveDepth: depth}}
	e := newEnds(t, simverbs.Hardware, endsOptions{o, o})
	remote, local := e.to.memory(64<<10, netproto.ReadWrite, 1), e.from.memory(64<<10, netproto.LocalOnly, 2)
	left := 1000
	var all []*attempt
	for i := range 32 { // as many as an engine admits at once
		a := e.transfer(lanes.Direction(1+i%2), local, remote, 0)
		a.Length, a.Deadline = 64, reactor.Forever
		a.LocalOffset, a.Offset = uint64(i)*1024, uint64(i)*1024
		a.Done = func(tr *Transfer) {
			tr.Local.Return()
			if tr.Outcome.Err != nil {
				t.Errorf("%v", tr.Outcome.Err)
			}
			if a.done++; left > 0 {
				left--
				e.begin(a)
			}
		}
		all = append(all, a)
	}
	e.on(e.from.lanes[0].Loop, func() {
		for _, a := range all {
			left--
			e.begin(a)
		}
	})
	e.until("a thousand transfers", func() bool {
		done := 0
		for _, a := range all {
			done += a.done
		}
		return done == 1000
	})
	if room := e.to.lanes[0].rails.rails[0].receives.Room(); 2*depth <= room {
		equal(t, "refusals for lack of room", e.from.transport.GrantStats().Retries, 0)
	} else if depth == 4 {
		t.Errorf("the source's queue has %d places", room)
	}
	for _, n := range []*engine{e.from, e.to} {
		for _, q := range []*verbs.CompletionQueue{n.lanes[0].rails.rails[0].sends, n.lanes[0].rails.rails[0].receives} {
			if c := q.Counts(); q.Fenced() != "" || c.Paid == 0 && n == e.to || c.Stale+c.Foreign+c.Malformed > 0 {
				t.Errorf("%s: %+v, fenced: %q", n.name, c, q.Fenced())
			}
		}
	}
	e.end()
}

// Several transfers share the pairs of one connection. When one fails, the others on it end too, with what is known of
// each, and their owners may try again at once.
//
// proves
func TestAFailedPairEndsAllItsTransfersAndNoOthers(t *testing.T) {
	for _, p := range []simverbs.Personality{simverbs.Hardware, simverbs.SoftRoCE} {
		e := newEnds(t, p, endsOptions{siteOptions{devices: single(p)}, siteOptions{devices: single(p)}})
		all := e.trials(8, 2<<20)
		e.startAll(all)
		e.until("payload under way", func() bool {
			moving := 0
			for _, x := range all {
				if x.machine.stage == transferMoving && x.Direction == lanes.Write {
					moving++
				}
			}
			return moving >= 2
		})
		e.on(e.from.lanes[0].Loop, func() {
			for _, c := range e.from.lanes[0].rails.rails[0].connections {
				if c.Direction == lanes.Write {
					c.Fail(&WorkError{Connection: c.String(), Status: verbs.WorkGeneral}, 0)
				}
			}
		})
		e.waitAll(all)
		for _, x := range all {
			x.judge(t)
			if x.Direction == lanes.Read && x.Outcome.Err != nil {
				t.Errorf("a READ failed with the WRITEs' pair: %v", x.Outcome.Err)
			}
			if x.Direction == lanes.Write && x.Outcome.Err != nil && x.Outcome.Remote == lanes.EffectNone && x.machine.touched {
				t.Error("payload was posted, and the effect is none")
			}
		}
		again := e.transfer(lanes.Write, all[1].local, all[1].remote, 0)
		complete(t, e.run(again), lanes.Write, 2<<20)
		e.end()
	}
}

// proves
func TestAPortThatGoesDownInTheMiddleEndsItsTransfersAndComesBack(t *testing.T) {
	everyKind(t, func(t *testing.T, p simverbs.Personality, mode Progress) {
		o := siteOptions{devices: single(p), config: Config{Progress: mode}}
		e := newEnds(t, p, endsOptions{o, o})
		all := e.trials(2, 1<<20)
		e.fabric.Plan(simverbs.Fault{Kind: simverbs.PortDown, Host: "b", At: 30 * time.Microsecond}, simverbs.Fault{Kind: simverbs.PortUp, Host: "b", At: 8 * time.Second})
		e.startAll(all)
		e.waitAll(all)
		for _, x := range all {
			x.judge(t)
			if x.Outcome.Err == nil {
				t.Errorf("a %v succeeded over a dead port", x.Direction)
			}
		}
		e.pass(15 * time.Second)
		e.peer.Paths = e.to.transport.Paths().Paths
		for _, x := range all {
			complete(t, e.run(e.transfer(x.Direction, x.local, x.remote, 0)), x.Direction, 1<<20)
		}
		e.end()
	})
}

// Each frame of the control stream is lost in turn, with its stream, on its way there or back.
//
// proves
func TestALostControlMessageLeavesNothing(t *testing.T) {
	for _, hosts := range append(stagedCases, [2]netproto.HostMemoryPolicy{}) {
		for _, way := range []simkernel.Direction{simkernel.ToServer, simkernel.ToClient} {
			for d := range 2 {
				for bytes := uint64(1); ; bytes += 90 {
					e := stagedEnds(t, simverbs.Hardware, Polling, hosts[0], hosts[1])
					cut := 0
					e.world.OnConnect(func(c *simkernel.Connection) {
						if cut++; cut == 1 {
							c.ResetAfter(way, bytes)
						}
					})
					x := e.trials(2, 200<<10)[d]
					e.startAll([]*trial{x})
					e.waitAll([]*trial{x})
					x.judge(t)
					e.world.OnConnect(nil)
					again := e.transfer(x.Direction, x.local, x.remote, 0)
					if o := e.run(again); o.Err != nil && x.Outcome.Err != nil {
						t.Errorf("afterwards: %v", o.Err)
					}
					e.end()
					if t.Failed() {
						t.Fatalf("policies %v, direction %v, %d bytes: %+v", hosts, way, bytes, x.Outcome)
					}
					if x.Outcome.Err == nil {
						break
					}
				}
			}
		}
	}
}

// proves R-18, G-9
func TestWhatIsNotProvenQuietIsKeptAndListed(t *testing.T) {
	e := newEnds(t, simverbs.Hardware, endsOptions{siteOptions{devices: single(0)}, siteOptions{devices: single(0)}})
	remote, local := e.to.memory(300<<10, netproto.ReadWrite, 1), e.from.memory(300<<10, netproto.LocalOnly, 2)
	warm := e.transfer(lanes.Read, local, remote, 0)
	complete(t, e.run(warm), lanes.Read, 300<<10)
	// The pair cannot be moved to the error state any more, and completions get lost.
	e.fabric.Plan(simverbs.Fault{Kind: simverbs.LoseCompletion, Process: "a", Count: -1}, simverbs.Fault{Kind: simverbs.FailCall, Process: "a", Call: simverbs.CallModifyPair, Count: -1})
	began := e.world.Now()
	a := e.transfer(lanes.Read, local, remote, 0)
	o := e.run(a)
	if o.Err == nil || o.Drained || o.Local != lanes.EffectPartial {
		t.Errorf("%+v", o)
	}
	kept, k := 0, &e.from.lanes[0].rails.rails[0].stock
	for _, p := range a.machine.parcels {
		if p.phase == parcelKept {
			kept++
		}
	}
	if lent := len(k.slabs)*slotsPerSlab - len(k.free); kept == 0 || lent != kept { // what the device may still read is nobody else's
		t.Errorf("%d slices are kept, and %d message slots", kept, lent)
	}
	if took := time.Duration(e.world.Now() - began); took > CleanupWindow+10*time.Second {
		t.Errorf("it took %v", took)
	}
	left := e.from.transport.Residues()
	if len(left) != 1 || left[0].Bytes != 300<<10 || left[0].Reason == nil {
		t.Errorf("residues %+v", left)
	}
	if local.Loans() != 1 || Of(local.Registration).Uses() != 1 || local.backing.Quiet() || e.from.transport.config.Budgets.DirectBytes.Used() != 300<<10 {
		t.Errorf("%d loans, %d uses, leases free: %v, %d bytes charged", local.Loans(), Of(local.Registration).Uses(), local.backing.Quiet(), e.from.transport.config.Budgets.DirectBytes.Used())
	}
	if len(e.from.transport.Retained()) == 0 {
		t.Error("the pair is not listed")
	}
	if !e.settleAll() {
		t.Error("nothing was retained")
	}
}

// A slice that is larger than one message of the port goes in several.
//
// proves R-13
func TestASliceLargerThanAMessageGoesInSeveral(t *testing.T) {
	o := siteOptions{devices: single(1), config: Config{Block: 32 << 20}}
	e := newEnds(t, simverbs.SoftRoCE, endsOptions{o, o})
	e.from.policy.PayloadBytesMax, e.to.policy.PayloadBytesMax = 64<<20, 64<<20
	const n = 20<<20 + 1
	remote, local := e.to.memory(n, netproto.ReadWrite, 1), e.from.memory(n, netproto.LocalOnly, 2)
	for i, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		a := e.transfer(d, local, remote, 0)
		a.Deadline = e.world.Now().After(time.Minute)
		complete(t, e.run(a), d, n)
		equal(t, "slices", e.to.transport.GrantStats().Received, uint64(i+1))
		if !local.holds(1) || !remote.holds(1) {
			t.Fatalf("%v: other bytes arrived", d)
		}
		copy(remote.bytes(), pattern(n, 2))
	}
	equal(t, "work requests", e.from.lanes[0].rails.rails[0].sends.Counts().Paid, 2*(3+1))
	e.pass(time.Second)
	e.end()
}

// One rail of a transfer fails. The slices on the other one are ended by their own messages: its pairs stay well, at both
// sides, for whoever comes next.
//
// proves
func TestAFailedRailLeavesTheOtherOneWell(t *testing.T) {
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		for _, p := range []simverbs.Personality{simverbs.Hardware, simverbs.SoftRoCE} {
			e := newEnds(t, p, endsOptions{})
			x := e.trials(2, 5<<20)[d-lanes.Read]
			e.startAll([]*trial{x})
			e.until("payload under way", func() bool { return x.machine.stage == transferMoving && x.machine.touched })
			e.on(e.from.lanes[0].Loop, func() {
				c := x.legs[0].connection()
				c.Fail(&WorkError{Connection: c.String(), Status: verbs.WorkGeneral}, 0)
			})
			e.waitAll([]*trial{x})
			x.judge(t)
			if f := faultIn(t, x.Outcome); f.Cause != lanes.Disconnected || !x.Outcome.Drained {
				t.Errorf("%+v", x.Outcome)
			}
			s := e.to.transport.GrantStats()
			if s.Received == 0 || s.Received >= 40 || e.from.transport.GrantStats().Surrendered == 0 {
				t.Errorf("%d slices were ended by their messages, %d unused", s.Received, e.from.transport.GrantStats().Surrendered)
			}
			equal(t, "failed connections of the requester", e.from.transport.Stats().Failed, 1)
			equal(t, "failed connections of the source", e.to.transport.Stats().Failed, 1)
			e.idle()
			complete(t, e.run(e.transfer(d, x.local, x.remote, 0)), d, 5<<20)
			equal(t, "connections", e.from.transport.Stats().Built, 3)
			e.end()
		}
	}
}

// A transfer that needs many receives is not passed by small ones behind it on the same connection.
//
// proves R-10
func TestTransfersWaitForReceivesInOrder(t *testing.T) {
	o := siteOptions{devices: single(0), config: Config{ReceiveDepth: 8}}
	e := newEnds(t, simverbs.Hardware, endsOptions{siteOptions{devices: single(0)}, o})
	h := e.hand(lanes.Read)
	large := &trial{local: e.from.memory(512<<10, netproto.LocalOnly, 2), remote: e.to.memory(512<<10, netproto.ReadWrite, 1)}
	small := &trial{local: e.from.memory(64, netproto.LocalOnly, 2), remote: e.to.memory(64, netproto.ReadWrite, 1)}
	other := &trial{local: e.from.memory(64, netproto.LocalOnly, 2), remote: e.to.memory(64, netproto.ReadWrite, 1)}
	for i, x := range []*trial{large, small, other} {
		x.attempt = e.transfer([]lanes.Direction{lanes.Read, lanes.Read, lanes.Write}[i], x.local, x.remote, 0)
	}
	lane := e.from.lanes[0]
	e.on(lane.Loop, func() { h.c.line(0).asked += 5 })
	e.startAll([]*trial{large, small, other})
	e.waitAll([]*trial{other}) // on another connection
	e.pass(10 * time.Millisecond)
	if large.done+small.done != 0 || large.machine.stage != transferRoom || small.machine.stage != transferRoom {
		t.Errorf("with 3 receives free, 8 asked for: the large one is at %q, the small one behind it at %q", large.machine.stage, small.machine.stage)
	}
	e.on(lane.Loop, func() {
		h.c.line(0).asked -= 5
		lane.rails.upper.serve()
	})
	e.waitAll([]*trial{large, small})
	for _, x := range []*trial{large, small, other} {
		complete(t, x.Outcome, x.Direction, x.Length)
	}
	h.leave()
	e.end()
}

// Readers stand side by side, also with the devices; a writer stands alone.
//
// proves M-9
func TestRangesAreLeasedForWhatTheirDeviceDoes(t *testing.T) {
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		for _, side := range []string{"requester", "source"} {
			e := newEnds(t, simverbs.Hardware, endsOptions{})
			remote, local := e.to.memory(100<<10, netproto.ReadWrite, 1), e.from.memory(100<<10, netproto.LocalOnly, 2)
			m, writes := local, d == lanes.Read
			if side == "source" {
				m, writes = remote, d == lanes.Write
			}
			lease, err := m.Lease(0, 1, segments.Shared) // somebody reads
			must(t, err)
			if o := e.run(e.transfer(d, local, remote, 0)); (o.Err != nil) != writes {
				t.Errorf("%v, while somebody reads the %s's range: %+v", d, side, o)
			}
			lease.Return()
			e.end()
		}
	}
}

// sends writes down the flags of messages that end grants, and how much payload was with the device then.
type sends struct {
	verbs.Calls
	flags []verbs.SendFlags
}

func (s *sends) PostSend(p verbs.PairHandle, list []verbs.SendWork) (int, error) {
	for _, w := range list {
		if w.Operation == verbs.SendWithInvalidate {
			s.flags = append(s.flags, w.Flags)
		}
	}
	return s.Calls.PostSend(p, list)
}

// proves R-13
func TestEveryBindingIsFenced(t *testing.T) {
	var s *sends
	e := newEnds(t, simverbs.Hardware, endsOptions{from: siteOptions{calls: func(c verbs.Calls) verbs.Calls {
		s = &sends{Calls: c}
		return s
	}}})
	remote, local := e.to.memory(300<<10, netproto.ReadWrite, 1), e.from.memory(300<<10, netproto.LocalOnly, 2)
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		complete(t, e.run(e.transfer(d, local, remote, 0)), d, 300<<10)
	}
	equal(t, "bindings", len(s.flags), 10)
	for i, flags := range s.flags {
		if flags&verbs.Fence == 0 {
			t.Errorf("binding %d has the flags %#x", i, flags)
		}
	}
	e.end()
}
