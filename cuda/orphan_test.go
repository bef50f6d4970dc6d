package cuda

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
)

// doubted is memory that is retained since one copy of it has no proof.
func doubted(p *Platform) (*doubts, *life) {
	d, l := &doubts{}, &life{}
	d.unproven.Add(1)
	l.retain(p, KindAllocation, "memory", errors.New("a copy has no proof"))
	return d, l
}

// Memory whose last holder goes, and whose proof comes, is ended by one of the two: by the proof when the holder was told that it
// is retained, and by the holder when the proof comes while it is being told.
//
// proves C-3, G-9
func TestMemoryInDoubtIsEndedByItsHolderOrByTheProof(t *testing.T) {
	p := &Platform{}
	d, l := doubted(p)
	if gone, mine := d.orphan(l), d.proof(l, p); !gone || !mine {
		t.Errorf("the holder first: told that it stays %v, the proof ends it %v", gone, mine)
	}
	d, l = doubted(p)
	if mine, gone := d.proof(l, p), d.orphan(l); mine || gone { // the holder saw that it was retained before the proof came
		t.Errorf("the proof first: it ends it %v, the holder is told that it stays %v", mine, gone)
	}
	d, l = doubted(p)
	for range 3 {
		if !d.orphan(l) {
			t.Error("a holder that goes again and again has it without a proof")
		}
	}
	if !d.proof(l, p) {
		t.Error("nobody ends it")
	}
}

// The same when both happen at the same moment, anywhere in each other.
//
// proves C-3, G-9
func TestMemoryInDoubtIsEndedOnceWhenHolderAndProofMeet(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	const rounds = 50_000
	p := &Platform{}
	type pair struct {
		*doubts
		*life
	}
	var all [rounds]pair
	for i := range all {
		all[i].doubts, all[i].life = doubted(p)
	}
	var at [2]atomic.Int64 // how far each side is
	var ends [2][rounds]bool
	meet := func(side int, do func(x pair) bool) {
		for i := range all {
			at[side].Store(int64(i) + 1)
			for spin := 0; at[1-side].Load() <= int64(i); spin++ {
				if spin > 1000 {
					runtime.Gosched() // one processor may have to do
				}
			}
			for range i % 64 * side { // the two begin a little apart
				at[side].Load()
			}
			ends[side][i] = do(all[i])
		}
	}
	done := make(chan struct{})
	go func() {
		meet(1, func(x pair) bool { return x.proof(x.life, p) })
		close(done)
	}()
	meet(0, func(x pair) bool { return !x.orphan(x.life) })
	<-done
	byProof := 0
	for i := range all {
		if ends[0][i] == ends[1][i] {
			t.Fatalf("round %d: the holder ends it %v, the proof %v, want one of them", i, ends[0][i], ends[1][i])
		}
		if ends[1][i] {
			byProof++
		}
	}
	t.Logf("%d of %d ended by the proof", byProof, rounds)
}
