package delegate

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
)

// READ and WRITE through slots over RDMA move every byte of the range and no other, at every border of slots, at odd
// offsets, from and to host memory, host memory that is staged here and device memory.
//
// proves C-8, R-9, R-11, R-13
func TestSlotsOverRDMAMoveEveryByteAndNoOther(t *testing.T) {
	for _, slots := range []int{1, 2, 3, 5, 16} {
		for name, here := range map[string]struct {
			setup
			device bool
		}{"host": {over(setup{}), false}, "staged": {staged(setup{}), false}, "device": {over(setup{}), true}} {
			t.Run(fmt.Sprintf("%d-%s", slots, name), func(t *testing.T) { moveEveryBorderOverRDMA(t, slots, here.setup, here.device) })
		}
	}
}

func moveEveryBorderOverRDMA(t *testing.T, slots int, local setup, device bool) {
	there := over(setup{slots: 16})
	if slots%2 == 1 {
		there = staged(there) // slots are reached all the same
	}
	local.device = device
	p := newPairOf(t, rand.Uint64(), there, local, 20*slotBytes)
	parts := p.everyByte(slots, 1, slotBytes-1, slotBytes+1, 2*slotBytes-1, min(uint64(slots)*slotBytes+1, 1800), 18*slotBytes+7)
	if g := p.source.device.transport.GrantStats(); g.Granted != parts || g.Received != parts || g.Revoked+g.Violations+g.Staged != 0 {
		t.Errorf("%+v, %d parts", g, parts)
	}
	p.finish()
}

// What is copied at the source while other slots' payload travels saves time, and grants of several slots are out at
// once. Slots and connections are made once, not for each transfer.
//
// proves C-8, R-7, R-10
func TestPipelinedSlotsOverlapOverRDMA(t *testing.T) {
	for _, d := range []lanes.Direction{lanes.Read, lanes.Write} {
		seed := rand.Uint64()
		took := func(slots int, slow time.Duration) time.Duration {
			p := newPairOf(t, seed, over(setup{slow: slow}), over(setup{}), 40*slotBytes)
			c := p.requester.channel(p.source)
			a := p.requester.ask(d, p.source, p.here, p.there, 0, 0, 40*slotBytes, slots)
			if o := p.wait(a.start(c)); o.Err != nil {
				t.Fatal(o.Err)
			}
			made, built := p.source.device.native.Live(), p.requester.device.transport.Stats().Built
			a.done, a.Deadline = 0, p.world.Now().After(time.Minute)
			began := p.world.Now()
			if o := p.wait(a.start(c)); o.Err != nil {
				t.Fatal(o.Err)
			}
			took := time.Duration(p.world.Now() - began)
			if now := p.source.device.native.Live(); now != made || built != 1 || p.requester.device.transport.Stats().Built != built {
				t.Errorf("another transfer made %+v of %+v", now, made)
			}
			if want := min(slots, payloadsMax); len(a.grants.parts) != want {
				t.Errorf("%d parts were under way with %d slots, want %d", len(a.grants.parts), slots, want)
			}
			p.finish()
			return took
		}
		one, four := took(1, 150*time.Microsecond), took(4, 150*time.Microsecond)
		if four > one*2/3 {
			t.Errorf("%v: %v with one slot, %v with four", d, one, four)
		}
	}
}

// proves C-8, T-10, R-18
func TestASourceOverRDMAKilledAtEachStepFailsTheTransfer(t *testing.T) {
	eachStep(t, 7, slowly(newRDMAPair, 0), func(p *pairOf, a *attempt) { p.source.kill() }, func(p *pairOf, a *attempt) {
		o := p.wait(a)
		if o.Err == nil { // all was done, and only the end of the pin was left
			if s := p.source.service.Stats(); s.Copied != a.machine.parts() {
				p.t.Errorf("a success after %d copies of %d", s.Copied, a.machine.parts())
			}
		} else {
			p.truth(a, o)
		}
		p.finish()
	})
}

// truth holds the effects of a failed transfer against what the ranges hold.
func (p *pairOf) truth(a *attempt, o lanes.Outcome) {
	p.t.Helper()
	here, there := p.here.bytes(), p.there.bytes()
	if p.source.dead { // with its GPUs
		there = pattern(7*slotBytes, 1)
	}
	switch {
	case o.Err == nil && (!bytes.Equal(here[3:][:6*slotBytes+1], there[5:][:6*slotBytes+1]) || o.Bytes != 6*slotBytes+1):
		p.t.Errorf("a success, and other bytes: %+v", o)
	case o.Err == nil:
	case a.Direction == lanes.Read && o.Local == lanes.EffectNone && !bytes.Equal(here, pattern(7*slotBytes, 2)):
		p.t.Errorf("the local range is changed, which is denied: %+v", o)
	case a.Direction == lanes.Write && o.Remote == lanes.EffectNone && !bytes.Equal(there, pattern(7*slotBytes, 1)):
		p.t.Errorf("the remote range is changed, which is denied: %+v", o)
	case max(o.Local, o.Remote) == lanes.EffectComplete:
		p.t.Errorf("a failure that is complete: %+v", o)
	}
	outside := func(b []byte, at int, seed byte) bool {
		want := pattern(7*slotBytes, seed)
		return bytes.Equal(b[:at], want[:at]) && bytes.Equal(b[at+6*slotBytes+1:], want[at+6*slotBytes+1:])
	}
	if !outside(here, 3, 2) || !outside(there, 5, 1) {
		p.t.Error("bytes beside the ranges were changed")
	}
}
