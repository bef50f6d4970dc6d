package rdma

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// slow makes every call at the source that ends authority take its time: an acknowledgement that does not wait for them
// comes first.
func (e *gpuEnds) slow() {
	for _, c := range []simverbs.Call{simverbs.CallDestroyPair, simverbs.CallDeregister, simverbs.CallFreeDomain} {
		e.fabric.Plan(simverbs.Fault{Kind: simverbs.SlowCall, Call: c, Process: "b", Count: -1, By: 2 * time.Millisecond})
	}
	for _, g := range e.gpus {
		g.driver.Plan(simcuda.Fault{Kind: simcuda.SlowCall, Call: simcuda.CallFlush, Count: -1, By: 2 * time.Millisecond})
	}
}

// life is what became of one domain at the source, as places in the log; -1: nothing.
type grantLife struct {
	pairs                                 int
	grant                                 entry
	registered, pairEnds, grantEnds, ends int
	messageEnds                           int
}

func (e *gpuEnds) lives(from int) map[verbs.DomainHandle]*grantLife {
	lives := map[verbs.DomainHandle]*grantLife{}
	message := map[uint64]bool{}
	for i, x := range e.log[from:] {
		i += from
		if x.who != "b" || x.domain == 0 {
			continue
		}
		l := lives[x.domain]
		if l == nil {
			l = &grantLife{registered: -1, pairEnds: -1, grantEnds: -1, messageEnds: -1, ends: -1}
			lives[x.domain] = l
		}
		switch x.call {
		case "pair":
			l.pairs++
		case "region":
			if x.access == verbs.AccessLocalWrite {
				message[x.handle] = true
			} else {
				l.grant, l.registered = x, i
			}
		case "pair ends":
			l.pairEnds = i
		case "region ends":
			if message[x.handle] {
				l.messageEnds = i
			} else {
				l.grantEnds = i
			}
		case "domain ends":
			l.ends = i
		}
	}
	return lives
}

// Each grant has a domain, a queue pair and a region of its exact range with only the permission that was asked for; its end is
// a fenced plain SEND. The source acknowledges when, in this order, the message was received, the pair is destroyed, the
// grant's region and the message's are deregistered, the domain is freed, and what was written is visible; the range is
// leased until then.
//
// proves C-7, R-16, R-9
func TestAGrantOnAGPUOwnsAllOfItsAuthorityAndIsAcknowledgedWhenItIsGone(t *testing.T) {
	for _, mode := range []Progress{Polling, EventDriven} {
		for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
			t.Run(fmt.Sprint(mode, d), func(t *testing.T) {
				e := newGPUEnds(t, mode)
				const n, slices = 3*4096 + 2000, 4
				remote := e.memory(e.to, n+7, netproto.ReadWrite, 1)
				local := e.from.memory(n, netproto.LocalOnly, 2)
				e.gpus[e.to].flushing = func() {
					if remote.backing.Quiet() {
						t.Error("the range is given back before the flush")
					}
				}
				e.slow()
				from := len(e.log)
				complete(t, e.run(e.direct(d, local, &remote.memory, 7)), d, n)
				want, got := pattern(n+7, 1)[7:], local.bytes()
				if d == lanes.Write {
					want, got = pattern(n, 2), remote.content()[7:]
				}
				if !bytes.Equal(got, want) || !bytes.Equal(remote.content()[:7], pattern(n+7, 1)[:7]) {
					t.Error("other bytes arrived")
				}

				acknowledged, flush, sends, receipt := -1, -1, 0, -1
				for i, x := range e.log[from:] {
					switch i += from; {
					case x.call == "flush" && x.who == "b":
						flush = i
					case x.call == "pair ends" && x.who == "a" && acknowledged < 0:
						acknowledged = i
					case x.call == "receipt" && x.who == "b":
						receipt = i
					case x.call == "send" && x.op == verbs.SendWithInvalidate:
						t.Error("a message invalidates a key")
					case x.call == "send" && x.op == verbs.Send:
						if sends++; x.flags&verbs.Fence == 0 {
							t.Error("a message is not fenced")
						}
					}
				}
				lives := e.lives(from)
				if len(lives) != slices || sends != slices {
					t.Fatalf("%d domains and %d messages for %d grants", len(lives), sends, slices)
				}
				access, covered := verbs.AccessRemoteRead, uint64(0)
				if d == lanes.Write {
					access = verbs.AccessRemoteWrite | verbs.AccessLocalWrite
				}
				for _, l := range lives {
					if l.pairs != 1 || l.grant.access != access || l.grant.from < remote.Address()+7 || l.grant.from+l.grant.length > remote.Address()+7+n || l.grant.length > 4096 {
						t.Errorf("%d pairs; a region [%#x, +%d) with %#x, want %#x and a slice of [%#x, +%d)", l.pairs, l.grant.from, l.grant.length, l.grant.access, access, remote.Address()+7, n)
					}
					covered += l.grant.length
					order := []int{l.registered, receipt, l.pairEnds, l.grantEnds, l.messageEnds, l.ends, acknowledged}
					if d == lanes.Write {
						order = []int{l.registered, receipt, l.pairEnds, l.grantEnds, l.messageEnds, l.ends, flush, acknowledged}
					}
					for i := 1; i < len(order); i++ {
						if order[i-1] < 0 || order[i] <= order[i-1] {
							t.Fatalf("places in the log: %v, want rising ones", order)
						}
					}
				}
				if covered != n || d == lanes.Read && flush >= 0 {
					t.Errorf("regions of %d bytes for %d, flush at %d", covered, n, flush)
				}
				e.finishGPUs()
			})
		}
	}
}

// The requester gives its own range on a GPU back when what devices wrote there is visible, also when the transfer fails.
//
// proves C-7, C-6
func TestARangeOnAGPUIsGivenBackWhenItsWritesAreVisible(t *testing.T) {
	for _, fails := range []bool{false, true} {
		for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
			t.Run(fmt.Sprint(fails, d), func(t *testing.T) {
				e := newGPUEnds(t, Polling)
				const n = 5 * 4096
				remote := e.to.memory(n, netproto.ReadWrite, 1)
				local := e.memory(e.from, n, netproto.LocalOnly, 2)
				flushes := 0
				a := e.transfer(d, &local.memory, remote, 0)
				e.gpus[e.from].flushing = func() {
					if flushes++; local.backing.Quiet() || a.done > 0 {
						t.Error("the range is given back before the flush")
					}
				}
				e.slow()
				if fails {
					e.fabric.Plan(simverbs.Fault{Kind: simverbs.FailWork, Process: "a", Index: 3})
				}
				o := e.run(a)
				if !fails {
					complete(t, o, d, n)
				} else if o.Err == nil || !o.Drained || d == lanes.Read && o.Local != lanes.EffectPartial {
					t.Errorf("%+v", o)
				}
				if flushes != map[lanes.Direction]int{lanes.Read: 1}[d] {
					t.Errorf("%d flushes", flushes)
				}
				if d == lanes.Read && !fails && !bytes.Equal(local.content(), pattern(n, 1)) {
					t.Error("other bytes arrived")
				}
				e.finishGPUs()
			})
		}
	}
}

// Whatever native call of a grant's life fails at the source: the transfer tells the truth, and what is not proven to have
// ended is listed, leased and charged; all else is given back.
//
// proves C-7, G-9, R-17, R-18, U-1
func TestAFailedCallInTheLifeOfAGrantOnAGPUKeepsWhatIsNotProven(t *testing.T) {
	verbsCalls := []simverbs.Call{
		simverbs.CallAllocateDomain, simverbs.CallRegister, simverbs.CallRegisterDescriptor, simverbs.CallCreatePair, simverbs.CallModifyPair,
		simverbs.CallPostReceive, simverbs.CallDestroyPair, simverbs.CallDeregister, simverbs.CallFreeDomain,
	}
	ends := map[simverbs.Call]int{simverbs.CallDestroyPair: 2, simverbs.CallDeregister: 4, simverbs.CallFreeDomain: 2} // of the grants; the others are the close's
	for _, call := range verbsCalls {
		indexes := 4
		if n := ends[call]; n > 0 {
			indexes = n
		}
		for index := range indexes {
			sweepGrant(t, fmt.Sprint(call, index), index == 0, ends[call] > 0, func(e *gpuEnds) {
				kind := simverbs.FailCall
				if call == simverbs.CallPostReceive {
					kind = simverbs.BadWork
				}
				e.fabric.Plan(simverbs.Fault{Kind: kind, Call: call, Process: "b", Index: index, Errno: 5})
			})
		}
	}
	for _, call := range []simcuda.Call{simcuda.CallExport, simcuda.CallFlush} {
		for index := range 2 {
			sweepGrant(t, fmt.Sprint(call, index), false, false, func(e *gpuEnds) {
				e.gpus[e.to].driver.Plan(simcuda.Fault{Kind: simcuda.FailCall, Call: call, Index: index})
			})
		}
	}
}

// sweepGrant runs a transfer of two grants in each direction. Strikes says that the fault is certainly met, ending that it meets
// the end of a grant.
func sweepGrant(t *testing.T, name string, strikes, ending bool, plan func(*gpuEnds)) {
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		t.Run(fmt.Sprint(name, d), func(t *testing.T) {
			e := newGPUEnds(t, Polling)
			const n = 2 * 4096
			remote := e.memory(e.to, n, netproto.ReadWrite, 1)
			local := e.from.memory(n, netproto.LocalOnly, 2)
			plan(e)
			o := e.run(e.direct(d, local, &remote.memory, 0))
			e.idle()
			if struck, planned := e.fabric.Struck(); strikes && struck != planned {
				t.Fatal("the call was not made")
			}
			changed := !bytes.Equal(local.bytes(), pattern(n, 2))
			if d == lanes.Write {
				changed = !bytes.Equal(remote.content(), pattern(n, 1))
			}
			switch {
			case o.Err == nil:
				complete(t, o, d, n)
				if want := map[lanes.Direction][]byte{lanes.Read: pattern(n, 1), lanes.Write: pattern(n, 2)}[d]; !bytes.Equal(local.bytes(), want) || !bytes.Equal(remote.content(), want) {
					t.Error("other bytes arrived")
				}
			case changed && o.Local == lanes.EffectNone && o.Remote == lanes.EffectNone:
				t.Errorf("%+v, and bytes were changed", o)
			case !o.Drained:
				t.Errorf("a failure of the source leaves the requester undrained: %+v", o)
			}
			if struck, _ := e.gpus[e.to].driver.Struck(); (ending || struck > 0 && e.gpus[e.to].driver.Calls(simcuda.CallFlush) > 0) && len(e.to.transport.Residues()) != 1 {
				t.Errorf("%d grants are retained, want the one whose end was refused: %+v", len(e.to.transport.Residues()), o)
			}
			refused := map[verbs.DomainHandle]string{}
			for _, x := range e.log {
				if why := refused[x.domain]; why != "" && strings.HasSuffix(x.call, " ends") {
					t.Errorf("%q follows the refusal of %q", x.call, why)
				}
				if x.failed {
					refused[x.domain] = x.call
				}
			}
			e.accounted(remote, o)
		})
	}
}

// accounted checks what a source keeps: everything about a grant that is not proven to have ended, or nothing.
func (e *gpuEnds) accounted(remote *gpuMemory, o lanes.Outcome) {
	t := e.t
	t.Helper()
	b := &e.to.transport.config.Budgets
	kept := len(e.to.transport.Residues())
	listed := len(e.to.transport.Retained())
	if kept == 0 {
		if !remote.backing.Quiet() || remote.Loans() != 0 || b.Grants.Used() != 0 || b.DirectBytes.Used() != 0 {
			t.Errorf("nothing is retained, and leases are free %v, %d loans, %d grants and %d bytes are charged", remote.backing.Quiet(), remote.Loans(), b.Grants.Used(), b.DirectBytes.Used())
		}
	} else {
		if o.Err == nil {
			t.Error("a grant that is not proven to have ended was acknowledged")
		}
		if remote.backing.Quiet() || remote.Loans() == 0 || b.Grants.Used() != 1 || b.DirectBytes.Used() != int64(remote.Length()) || Of(remote.Registration).Uses() == 0 {
			t.Errorf("a grant is retained, and leases are free %v, %d loans, %d grants and %d bytes are charged", remote.backing.Quiet(), remote.Loans(), b.Grants.Used(), b.DirectBytes.Used())
		}
	}
	if kept == 0 && listed == 0 {
		e.finishGPUs()
		return
	}
	e.retire()
	if kept > 0 { // a grant that is retained uses its memory's registration for good
		e.to.registers = nil
	}
	e.close()
	live := e.to.native.Live()
	kinds := map[string]int{}
	for _, r := range e.to.transport.Retained() {
		for _, kind := range []string{"memory region", "queue pair", "protection domain"} {
			if strings.HasPrefix(r.Object, kind) {
				kinds[kind]++
			}
		}
	}
	still := 0 // the memory's own regions, and the devices' domains, of which the transport says that they are lent
	if kept > 0 {
		still = 2
	}
	if kinds["memory region"] != live.Regions-still || kinds["queue pair"] != live.Pairs || kinds["protection domain"] != live.Domains-still {
		t.Errorf("%+v are left; listed are %v", live, e.to.transport.Retained())
	}
	if live.Regions > still && e.gpus[e.to].memories[0].native.Retained() == nil && kinds["memory region"] == 2*kinds["protection domain"] {
		t.Error("a device may reach memory on a GPU that is not retained")
	}
	e.endLoops()
}
