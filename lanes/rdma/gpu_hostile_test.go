package rdma

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// regionHand is a hand with a connection for one grant of a region.
func (e *gpuEnds) regionHand(d lanes.Direction) *hand {
	e.t.Helper()
	holder := e.from.ask(0, e.peer, d, func(q *Claim) { q.Private, q.Profile = true, netproto.ProfileRegion })
	e.until("a connection", func() bool { return holder.answers > 0 })
	must(e.t, holder.claim.Err)
	h := &hand{ends: e.ends, holder: holder, c: holder.claim.Hold.Connection}
	h.local, h.message = e.from.memory(1<<16, netproto.LocalOnly, 2), e.from.memory(4096, netproto.LocalOnly, 0)
	return h
}

// askRegion asks for one grant, under a profile.
func (h *hand) askRegion(region, offset, length uint64, p netproto.GrantProfile) netproto.Status {
	h.t.Helper()
	h.ask(999, offset, length, 1)
	h.op.Region, h.request.Profile = region, p
	h.op.Operation = operation(h.c.Direction)
	h.request.Generation = h.from.transport.generation(&h.from.transport.grants.parents)
	return h.repeat()
}

// plain sends the message that ends a grant.
func (h *hand) plain(change func(*netproto.Binding)) verbs.WorkStatus {
	h.t.Helper()
	b := h.binding(0)
	b.Profile = netproto.ProfileRegion
	if change != nil {
		change(&b)
	}
	netproto.PutBinding(h.message.bytes(), &b)
	region, _ := Of(h.message.Registration).On(h.c.Device.NIC)
	return h.post(h.c, verbs.SendWork{Operation: verbs.Send, Flags: verbs.Fence, Address: h.message.Address(), Length: netproto.BindingSize, LocalKey: region.LocalKey()})
}

// The receipt alone, or DONE alone, ends nothing: the source needs both, and nothing is torn down before.
//
// proves C-7, R-13
func TestAGrantOnAGPUEndsWithItsReceiptAndTheRequestersWord(t *testing.T) {
	e := newGPUEnds(t, Polling)
	remote := e.memory(e.to, 64<<10, netproto.ReadWrite, 1)
	h := e.regionHand(lanes.Write)
	equal(t, "grant", h.askRegion(remote.ID(), 4096, 4096, netproto.ProfileRegion), netproto.StatusSuccess)
	equal(t, "payload", h.payload(h.c, verbs.Write, 0, 0, 64), verbs.WorkSuccess)
	domains := e.to.native.Live().Domains
	equal(t, "binding", h.plain(nil), verbs.WorkSuccess)
	e.pass(10 * time.Millisecond)
	if n := e.to.native.Live().Domains; n != domains || remote.backing.Quiet() {
		t.Errorf("%d domains, before the receipt %d; leases are free: %v", n, domains, remote.backing.Quiet())
	}
	equal(t, "DONE", h.tell(netproto.OperationRDMADone), netproto.StatusSuccess)
	if n := e.to.native.Live().Domains; n != domains-1 || !remote.backing.Quiet() {
		t.Errorf("%d domains after DONE, before %d; leases are free: %v", n, domains, remote.backing.Quiet())
	}
	equal(t, "DONE again", h.tell(netproto.OperationRDMADone), netproto.StatusProtocolError)
	h.leave()
	e.finishGPUs()
}

// When the requester's word does not come behind the receipts, as when what has its stream waits for the very range, the grant
// ends without it, visibly, and the range is given back. DONE is a success afterwards; without one the source's deadline ends
// the parent.
//
// proves C-7, R-9
func TestAGrantOnAGPUWhoseReceiptIsHereDoesNotKeepItsRangeForTheRequestersWord(t *testing.T) {
	for _, tells := range []bool{true, false} {
		e := newGPUEnds(t, Polling)
		remote := e.memory(e.to, 64<<10, netproto.ReadWrite, 1)
		flushes := e.flushed(remote)
		h := e.regionHand(lanes.Write)
		equal(t, "grant", h.askRegion(remote.ID(), 4096, 4096, netproto.ProfileRegion), netproto.StatusSuccess)
		equal(t, "payload", h.payload(h.c, verbs.Write, 0, 0, 64), verbs.WorkSuccess)
		domains := e.to.native.Live().Domains
		equal(t, "binding", h.plain(nil), verbs.WorkSuccess)
		e.pass(wordPatience - 10*time.Millisecond)
		if e.to.native.Live().Domains != domains || remote.backing.Quiet() {
			t.Error("the grant has ended while a lost acknowledgement may be asked for again")
		}
		e.pass(20 * time.Millisecond)
		if n := e.to.native.Live().Domains; n != domains-1 || !remote.backing.Quiet() || *flushes != 1 {
			t.Errorf("%d domains, before %d; leases are free: %v; %d flushes", n, domains, remote.backing.Quiet(), *flushes)
		}
		if failed := e.to.transport.counts.failed.Load(); failed != 0 {
			t.Errorf("%d connections count as failed", failed)
		}
		if tells {
			equal(t, "DONE", h.tell(netproto.OperationRDMADone), netproto.StatusSuccess)
		}
		e.idle()
		if status := h.payload(h.c, verbs.Write, 0, 64, 64); status == verbs.WorkSuccess {
			t.Error("a key that has ended was taken")
		}
		h.leave()
		e.finishGPUs()
	}
}

// A grant that ends without its requester's word gives nothing back that is not proven visible: DONE hears so.
//
// proves C-7, G-9
func TestAGrantOnAGPUThatEndsUnprovenKeepsItsRange(t *testing.T) {
	e := newGPUEnds(t, Polling)
	remote := e.memory(e.to, 64<<10, netproto.ReadWrite, 1)
	h := e.regionHand(lanes.Write)
	equal(t, "grant", h.askRegion(remote.ID(), 4096, 4096, netproto.ProfileRegion), netproto.StatusSuccess)
	e.gpus[e.to].driver.Plan(simcuda.Fault{Kind: simcuda.FailCall, Call: simcuda.CallFlush})
	equal(t, "binding", h.plain(nil), verbs.WorkSuccess)
	e.pass(wordPatience + 10*time.Millisecond)
	if struck, _ := e.gpus[e.to].driver.Struck(); struck != 1 || remote.backing.Quiet() {
		t.Errorf("%d flushes failed; leases are free: %v", struck, remote.backing.Quiet())
	}
	equal(t, "DONE", h.tell(netproto.OperationRDMADone), netproto.StatusNativeError)
	if n := len(e.to.transport.Residues()); n != 1 || remote.backing.Quiet() {
		t.Errorf("%d grants are retained, want 1; leases are free: %v", n, remote.backing.Quiet())
	}
	h.leave()
	e.retire()
	e.to.registers = nil // a grant that is retained uses its memory's registration for good
	e.close()
}

// A region's key works in its direction, inside its range and over its own pair only, and not after its end.
//
// proves C-7, M-8
func TestAKeyOfAGrantOnAGPUReachesNothingElse(t *testing.T) {
	for name, attempt := range map[string]func(h, other *hand) verbs.WorkStatus{
		"the other direction": func(h, _ *hand) verbs.WorkStatus { return h.payload(h.c, verbs.Write, 0, 0, 64) },
		"another pair":        func(h, other *hand) verbs.WorkStatus { return h.payload(other.c, verbs.Read, 0, 0, 64) },
		"before its range":    func(h, _ *hand) verbs.WorkStatus { return h.payload(h.c, verbs.Read, 0, -1, 64) },
		"behind its range":    func(h, _ *hand) verbs.WorkStatus { return h.payload(h.c, verbs.Read, 0, 4096-63, 64) },
		"after its end": func(h, _ *hand) verbs.WorkStatus {
			equal(h.t, "binding", h.plain(nil), verbs.WorkSuccess)
			equal(h.t, "DONE", h.tell(netproto.OperationRDMADone), netproto.StatusSuccess)
			return h.payload(h.c, verbs.Read, 0, 0, 64)
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newGPUEnds(t, Polling)
			remote := e.memory(e.to, 64<<10, netproto.ReadWrite, 1)
			h, other := e.regionHand(lanes.Read), e.regionHand(lanes.Read)
			equal(t, "grant", h.askRegion(remote.ID(), 4096, 4096, netproto.ProfileRegion), netproto.StatusSuccess)
			equal(t, "the grant's own use", h.payload(h.c, verbs.Read, 0, 0, 64), verbs.WorkSuccess)
			if status := attempt(h, other); status == verbs.WorkSuccess {
				t.Error("the device took the key")
			}
			h.tell(netproto.OperationRDMAAbandon)
			e.idle()
			if !bytes.Equal(remote.content(), pattern(64<<10, 1)) {
				t.Error("bytes at the source were changed")
			}
			h.leave()
			other.leave()
			e.finishGPUs()
		})
	}
}

// What is asked for in another way than the source serves it is refused before any authority.
//
// proves C-7, R-9, R-15
func TestAGrantOnAGPUIsRefusedUnderAnotherProfileOrOnASharedConnection(t *testing.T) {
	e := newGPUEnds(t, Polling)
	device, host := e.memory(e.to, 64<<10, netproto.RemoteRead, 1), e.to.memory(64<<10, netproto.ReadWrite, 1)
	h, shared := e.regionHand(lanes.Read), e.hand(lanes.Read)
	equal(t, "a window on a GPU", shared.askRegion(device.ID(), 0, 64, netproto.ProfileWindow), netproto.StatusBackendUnavailable)
	equal(t, "a region of host memory", h.askRegion(host.ID(), 0, 64, netproto.ProfileRegion), netproto.StatusBackendUnavailable)
	equal(t, "a region over a shared connection", shared.askRegion(device.ID(), 0, 64, netproto.ProfileRegion), netproto.StatusProtocolError)
	equal(t, "a window over a private connection", h.askRegion(host.ID(), 0, 64, netproto.ProfileWindow), netproto.StatusProtocolError)
	h.askRegion(999, 0, 128, netproto.ProfileRegion)
	h.op.Region, h.op.Operation = device.ID(), netproto.OperationRDMAReadSliced
	h.request.Slices = []netproto.GrantSlice{{Offset: 0, Length: 64}, {Offset: 64, Length: 64}}
	equal(t, "two slices over one connection", h.repeat(), netproto.StatusProtocolError)
	writer := e.regionHand(lanes.Write)
	equal(t, "a WRITE into what may be read", writer.askRegion(device.ID(), 0, 64, netproto.ProfileRegion), netproto.StatusPermissionDenied)
	if n := e.to.transport.GrantStats().Granted; n != 0 || len(e.lives(0)) == 0 {
		t.Errorf("%d grants", n)
	}
	for _, l := range e.lives(0) {
		if l.grant.access&(verbs.AccessRemoteRead|verbs.AccessRemoteWrite) != 0 {
			t.Error("a range was registered for a grant that was refused")
		}
	}
	equal(t, "grant", h.askRegion(device.ID(), 0, 64, netproto.ProfileRegion), netproto.StatusSuccess)
	one := h.request
	equal(t, "a second grant over the connection", h.askRegion(device.ID(), 64, 64, netproto.ProfileRegion), netproto.StatusProtocolError)
	h.request = one
	equal(t, "ABANDON", h.tell(netproto.OperationRDMAAbandon), netproto.StatusSuccess)
	for _, x := range []*hand{h, shared, writer} {
		x.leave()
	}
	e.finishGPUs()
}

// A requester that is silent, gives up, or says something else than what was granted loses the grant: its connection, region
// and domain end, and what it wrote is made visible before the range is anybody else's.
//
// proves C-7, R-14, R-18, G-9
func TestAGrantOnAGPUIsRevokedWithAllThatItOwns(t *testing.T) {
	for _, how := range []string{"silent", "abandoned", "forged"} {
		t.Run(how, func(t *testing.T) {
			e := newGPUEnds(t, Polling)
			remote := e.memory(e.to, 64<<10, netproto.ReadWrite, 1)
			flushes := e.flushed(remote)
			h := e.regionHand(lanes.Write)
			domains := e.to.native.Live().Domains
			equal(t, "grant", h.askRegion(remote.ID(), 0, 4096, netproto.ProfileRegion), netproto.StatusSuccess)
			equal(t, "payload", h.payload(h.c, verbs.Write, 0, 0, 64), verbs.WorkSuccess)
			switch how {
			case "abandoned":
				equal(t, "ABANDON", h.tell(netproto.OperationRDMAAbandon), netproto.StatusSuccess)
			case "forged":
				h.plain(func(b *netproto.Binding) { b.Offset++ })
				if status := h.tell(netproto.OperationRDMADone); status == netproto.StatusSuccess {
					t.Error("DONE was acknowledged after a forged message")
				}
			}
			e.idle()
			if n := e.to.native.Live().Domains; n != domains-1 || *flushes != 1 {
				t.Errorf("%d domains, before %d; %d flushes", n, domains, *flushes)
			}
			seen := string(remote.content())
			if status := h.payload(h.c, verbs.Write, 0, 64, 64); status == verbs.WorkSuccess {
				t.Error("a revoked key was taken")
			}
			e.pass(time.Second)
			if string(remote.content()) != seen {
				t.Error("bytes were changed after the end of the grant")
			}
			h.leave()
			e.finishGPUs()
		})
	}
}

// Transfers that are cancelled, whose work fails, or whose connection is lost at any moment leave nothing, and say what they may
// have changed.
//
// proves C-7, R-17, R-18, T-2
func TestTransfersFromAndToGPUsEndWholeWheneverTheyAreStopped(t *testing.T) {
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		for _, after := range []time.Duration{0, 50e3, 100e3, 150e3, 200e3, 250e3, 300e3, 400e3, 600e3, 1e6} {
			for _, how := range []string{"cancelled", "work fails", "port down"} {
				t.Run(fmt.Sprint(d, after, how), func(t *testing.T) {
					e := newGPUEnds(t, Polling)
					const n = 6 * 4096
					remote, local := e.memory(e.to, n, netproto.ReadWrite, 1), e.memory(e.from, n, netproto.LocalOnly, 2)
					a := e.direct(d, &local.memory, &remote.memory, 0)
					e.start(a)
					e.world.Later(after, func() {
						switch how {
						case "cancelled":
							l := &letterTo{f: a.Cancel}
							must(t, e.from.lanes[0].Post(&l.Letter, l))
						case "work fails":
							e.fabric.Plan(simverbs.Fault{Kind: simverbs.FailWork, Process: "a"})
						case "port down":
							e.fabric.Plan(simverbs.Fault{Kind: simverbs.PortDown, Host: "b", Device: "mlx5_0"})
						}
					})
					o := e.wait(a)
					e.idle()
					changed, want := local, pattern(n, 2)
					if d == lanes.Write {
						changed, want = remote, pattern(n, 1)
					}
					if o.Err != nil && max(o.Local, o.Remote) == lanes.EffectNone && !bytes.Equal(changed.content(), want) {
						t.Errorf("%+v, and bytes were changed", o)
					}
					if o.Err == nil && !bytes.Equal(local.content(), remote.content()) {
						t.Error("other bytes arrived")
					}
					e.finishGPUs()
				})
			}
		}
	}
}

// A requester that cannot make visible what devices wrote keeps its range, and says so.
//
// proves C-7, G-9
func TestAReadIntoAGPUWithoutProofOfVisibilityIsUnquiesced(t *testing.T) {
	e := newGPUEnds(t, Polling)
	remote, local := e.to.memory(8192, netproto.RemoteRead, 1), e.memory(e.from, 8192, netproto.LocalOnly, 2)
	e.gpus[e.from].driver.Plan(simcuda.Fault{Kind: simcuda.FailCall, Call: simcuda.CallFlush})
	o := e.run(e.transfer(lanes.Read, &local.memory, remote, 0))
	if f := faultIn(t, o); f.Cause != lanes.DeviceFailed || o.Drained || o.Local != lanes.EffectPartial {
		t.Errorf("%+v", o)
	}
	b := &e.from.transport.config.Budgets
	if local.backing.Quiet() || Of(local.Registration).Uses() == 0 || b.DirectBytes.Used() != 8192 || len(e.from.transport.Residues()) != 1 {
		t.Errorf("leases are free %v, %d bytes are charged, residues %+v", local.backing.Quiet(), b.DirectBytes.Used(), e.from.transport.Residues())
	}
	e.retire()
	e.from.registers = nil
	e.close()
	e.endLoops()
}

// proves R-8
func TestAReadIntoAGPUHasAtMost32Slices(t *testing.T) {
	e := newGPUEnds(t, Polling)
	const n = 40 * 4096
	remote, device, host := e.to.memory(n, netproto.RemoteRead, 1), e.memory(e.from, n, netproto.LocalOnly, 2), e.from.memory(n, netproto.LocalOnly, 2)
	complete(t, e.run(e.transfer(lanes.Read, host, remote, 0)), lanes.Read, n)
	equal(t, "slices into host memory", e.from.transport.GrantStats().Asked, 40)
	complete(t, e.run(e.transfer(lanes.Read, &device.memory, remote, 0)), lanes.Read, n)
	equal(t, "slices into a GPU", e.from.transport.GrantStats().Asked, 40+20)
	e.finishGPUs()
}

// A source that stages makes no connections for regions.
//
// proves R-6
func TestASourceThatStagesRefusesConnectionsForRegions(t *testing.T) {
	e := newEnds(t, simverbs.Hardware, endsOptions{})
	holder := e.from.ask(0, e.peer, lanes.Read, func(q *Claim) { q.Private, q.Profile = true, netproto.ProfileRegion })
	e.until("an answer", func() bool { return holder.answers > 0 })
	if holder.claim.Err == nil {
		t.Error("a connection for a region was made")
	}
	e.end()
}

// With places for fewer queue pairs than the slices of all transfers want, here or at the source, they take turns: none is
// stuck, and none is refused.
//
// proves R-10, U-3
func TestTransfersOfGPUsShareFewQueuePairs(t *testing.T) {
	for _, places := range [][2]int64{{8, 8}, {64, 6}} {
		for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
			t.Run(fmt.Sprint(places, d), func(t *testing.T) {
				e := newGPUEndsWith(t, Polling, places[0], places[1])
				equal(t, "slices that the source says it admits", int64(e.to.transport.Paths().SlicesMax), places[1])
				e.peer = e.from.knows(0, e.to)
				const n = 20 * 4096
				var all []*attempt
				for i := range 4 {
					remote, local := e.memory(e.to, n, netproto.ReadWrite, 1), e.memory(e.from, n, netproto.LocalOnly, byte(2+i%2))
					a := e.direct(d, &local.memory, &remote.memory, 0)
					a.Deadline = e.world.Now().After(time.Minute)
					all = append(all, e.start(a))
				}
				for _, a := range all {
					complete(t, e.wait(a), d, n)
				}
				e.finishGPUs()
			})
		}
	}
}

// Requesters that do not know of each other share the few places of a source: one steps aside for the other.
//
// proves R-10, U-3
func TestRequestersOfGPUsStepAsideForEachOther(t *testing.T) {
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		t.Run(fmt.Sprint(d), func(t *testing.T) {
			e := newGPUEndsWith(t, Polling, 64, 6)
			const n = 5 * 4096
			var all []*attempt
			for i := range 6 {
				if i%3 == 0 {
					e.peer = e.from.knows(0, e.to)
				}
				remote, local := e.memory(e.to, n, netproto.ReadWrite, 1), e.memory(e.from, n, netproto.LocalOnly, 2)
				a := e.direct(d, &local.memory, &remote.memory, 0)
				a.Deadline = e.world.Now().After(time.Minute)
				all = append(all, e.start(a))
			}
			for _, a := range all {
				complete(t, e.wait(a), d, n)
			}
			e.finishGPUs()
		})
	}
}

// A connection for a grant that never comes gives way after a while, and its end at any time leaves nothing.
//
// proves
func TestAConnectionForAGrantThatNeverComesGivesWay(t *testing.T) {
	for _, wait := range []time.Duration{0, 2 * awaitMax} {
		e := newGPUEndsWith(t, Polling, 64, 1)
		h := e.regionHand(lanes.Read)
		second := e.from.ask(0, e.from.knows(0, e.to), lanes.Read, func(q *Claim) {
			q.Private, q.Profile, q.Deadline = true, netproto.ProfileRegion, e.world.Now().After(time.Minute)
		})
		e.until("an answer", func() bool { return second.answers > 0 })
		if second.claim.Err == nil {
			t.Error("a connection that waits for its grant gave way at once")
		}
		e.pass(wait)
		if wait > 0 {
			other := e.regionHand(lanes.Read)
			other.leave()
		}
		h.leave()
		e.finishGPUs()
	}
}

// A connection that waits for its grant ends like any other one when its device's port goes down.
//
// proves
func TestAConnectionThatWaitsForItsGrantEndsWithItsPort(t *testing.T) {
	e := newGPUEnds(t, EventDriven)
	h := e.regionHand(lanes.Read)
	domains := e.to.native.Live().Domains
	e.fabric.Plan(simverbs.Fault{Kind: simverbs.PortDown, Host: "b", Device: h.c.Device.Name})
	e.pass(2 * CleanupWindow)
	if s := e.to.transport.Stats(); s.RetainedConnections != 0 || s.Gone != 1 || e.to.native.Live().Domains != domains-1 {
		t.Errorf("%+v, %d domains, before %d", s, e.to.native.Live().Domains, domains)
	}
	h.leave()
	e.finishGPUs()
}

// Transfers that wait for their turn leave when they are cancelled or late, and those behind them go on.
//
// proves R-10, U-1
func TestATransferLeavesTheTurnstileOfGPUs(t *testing.T) {
	e := newGPUEndsWith(t, Polling, 8, 64)
	const n = 6 * 4096
	var all []*attempt
	for range 4 {
		remote, local := e.memory(e.to, n, netproto.ReadWrite, 1), e.memory(e.from, n, netproto.LocalOnly, 2)
		all = append(all, e.direct(lanes.Read, &local.memory, &remote.memory, 0))
	}
	all[1].Deadline = e.world.Now().After(10 * time.Microsecond)
	e.on(e.from.lanes[0].Loop, func() {
		for _, a := range all {
			e.begin(a)
		}
		all[2].Cancel()
	})
	for i, a := range all {
		if o := e.wait(a); (o.Err == nil) != (i == 0 || i == 3) {
			t.Errorf("transfer %d: %+v", i, o)
		}
	}
	if u := &e.from.lanes[0].rails.upper.turns; u.inside != 0 || len(u.waiting) != 0 {
		t.Errorf("%+v", u)
	}
	e.finishGPUs()
}

// A registration that fails on the second context and cannot be taken back on the first keeps what the device may still
// reach: the region, its charge, and the GPU's memory.
//
// proves C-6, R-5, G-9
func TestARegistrationOfAGPUThatCannotBeTakenBackIsKept(t *testing.T) {
	for _, refused := range []bool{false, true} {
		e := newGPUEnds(t, Polling)
		m := e.unregistered(e.to, 8192, netproto.ReadWrite, 1)
		e.fabric.Plan(simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallRegisterDescriptor, Process: "b", Index: 1, Errno: 12})
		if refused {
			e.fabric.Plan(simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallDeregister, Process: "b"})
		}
		g, err := e.to.transport.RegisterDevice(m.native, m.Address(), 8192)
		var direct *DirectError
		var left *RollbackError
		if g != nil || !errors.As(err, &direct) || errors.As(err, &left) != refused {
			t.Errorf("%v, %v", g, err)
		}
		b := &e.to.transport.config.Budgets
		want := map[bool]int64{true: 1}[refused]
		if live := e.to.native.Live().Regions; int64(live) != want || b.CachedRegions.Used() != want || (m.native.Retained() != nil) != refused {
			t.Errorf("%d regions are left, %d charged, the memory is retained: %v", live, b.CachedRegions.Used(), m.native.Retained())
		}
		m.gpus.memories = append(m.gpus.memories, m)
		if !refused { // it may be tried again
			g, err := e.to.transport.RegisterDevice(m.native, m.Address(), 8192)
			must(t, err)
			e.to.registers = append(e.to.registers, g)
			m.Attach(g)
			e.finishGPUs()
			continue
		}
		e.retire()
		e.close()
		e.endLoops()
	}
}
