package staging

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
)

// More flows than places on one memory's stream, of all ways and roles, of which some end early, with slow copies, bad
// callbacks and now and then a failing call: every flow ends once, who succeeded has its bytes, nothing is left.
//
// proves C-3, C-4
func TestAStormOfFlowsOnOneMemoryLeavesNothing(t *testing.T) {
	mappings(t)
	const flows, part = 64, 150
	stalled := uint64(0)
	for range 25 {
		seed := seedOf(t)
		random := rand.New(rand.NewPCG(seed, 1))
		r := newRigWith(t, Config{ChunkBytes: 1 + random.Uint64N(60), Chunks: 1 + random.IntN(40)}, seed, true)
		d, other := r.allocate(0, flows*part, 1), r.allocate(random.IntN(2), flows*part, 3)
		r.driver.Plan(
			simcuda.Fault{Kind: simcuda.SlowCopy, Index: random.IntN(50), Count: 20, By: time.Millisecond},
			simcuda.Fault{Kind: simcuda.LateCallback, Index: random.IntN(50), Count: 20, By: 30 * time.Millisecond},
			simcuda.Fault{Kind: simcuda.DoubleCallback, Index: random.IntN(50), Count: 10})
		faults := random.IntN(3)
		for range faults {
			call := []simcuda.Call{simcuda.CallCopy, simcuda.CallRecord, simcuda.CallQuery}[random.IntN(3)]
			r.driver.Plan(simcuda.Fault{Kind: simcuda.FailCall, Call: call, Index: random.IntN(300), Effect: cuda.Effect(random.IntN(2))})
		}
		ends := 0
		var all []*pipe
		for i := range uint64(flows) {
			p := r.pipe(d, Way(random.IntN(3)), i*part, 1+random.Uint64N(part), nil)
			p.plan.Role, p.wire = Role(random.IntN(2)), time.Duration(random.IntN(200))*time.Microsecond
			switch p.plan.Way {
			case In:
				p.bytes = pattern(p.plan.Length, 2)
			case Across:
				p.plan.Partner, p.plan.From = other.memory, uint64(other.memory.Pointer())+i*part
			}
			all = append(all, p)
			r.world.Later(time.Duration(random.IntN(2000))*time.Microsecond, func() {
				start := &post{do: func() {
					if fault := p.start(d); fault != nil {
						t.Error(fault)
					}
				}}
				_ = r.lane.Post(&start.letter, start)
			})
			if random.IntN(4) == 0 {
				ends++
				r.world.Later(time.Duration(random.IntN(4000))*time.Microsecond, func() {
					stop := &post{do: func() {
						if p.started && p.ended == 0 && !p.ending && !p.busy {
							p.end()
						}
					}}
					_ = r.lane.Post(&stop.letter, stop)
				})
			}
		}
		r.until("all flows", func() bool {
			for _, p := range all {
				if p.ended == 0 {
					return false
				}
			}
			return true
		})
		failed := 0
		for i, p := range all {
			if p.fault != nil {
				failed++
			}
			got, at := p.bytes, uint64(i*part)
			want := pattern(flows*part, 1)[at : at+p.plan.Length]
			switch {
			case p.plan.Way == In:
				got, want = d.bytes()[at:at+p.plan.Length], pattern(p.plan.Length, 2)
			case p.plan.Way == Across:
				got, want = d.bytes()[at:at+p.plan.Length], other.bytes()[at:at+p.plan.Length]
			}
			if p.ended != 1 || !p.proven || p.flow.Whole() && p.fault == nil && !bytes.Equal(got, want) {
				t.Errorf("flow %d, %v of %d bytes: ended %d times, fault %v, proven %v", i, wayNames[p.plan.Way], p.plan.Length, p.ended, p.fault, p.proven)
			}
		}
		if failed > faults {
			t.Errorf("%d flows failed by %d faults", failed, faults)
		}
		stalled += r.stage.Stats().Stalled
		r.finish()
	}
	if stalled == 0 {
		t.Error("no copy ever waited for a place on the stream")
	}
}
