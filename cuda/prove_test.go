package cuda_test

import (
	"errors"
	"testing"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
)

var errGivenUp = errors.New("nobody waits for it any more")

// What is retained for a copy alone is as before once a late proof has come: its owners end it, or it ends with the proof
// when they have gone. Until then nothing is asked that waits for the device.
//
// proves C-3, G-9
func TestALateProofGivesBackWhatACopyRetained(t *testing.T) {
	for _, gone := range []bool{false, true} {
		for name, give := range map[string]func(*rig, cuda.Pending){
			"forsaken": func(r *rig, p cuda.Pending) { p.Forsake(errGivenUp) },
			"forsaken, then drained": func(r *rig, p cuda.Pending) {
				r.plan("(fail-call (call cuEventQuery))")
				_, err := p.Confirm()
				r.is("a query that fails", err, cuda.ErrCopy)
				p.Forsake(errGivenUp)
				r.is("a proof before the drain", p.Prove(), cuda.ErrUnquiesced)
				r.must(p.Drain())
			},
			"not drained": func(r *rig, p cuda.Pending) {
				r.plan("(fail-call (call cuStreamSynchronize))")
				r.is("a drain that fails", p.Drain(), cuda.ErrUnquiesced)
			},
			"forsaken, then not drained": func(r *rig, p cuda.Pending) {
				r.plan("(fail-call (call cuEventQuery))\n(fail-call (call cuStreamSynchronize))")
				_, err := p.Confirm()
				r.is("a query that fails", err, cuda.ErrCopy)
				p.Forsake(errGivenUp)
				r.is("a drain that fails", p.Drain(), cuda.ErrUnquiesced)
			},
		} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t, simcuda.Options{})
				m, h, _ := r.pair(1000)
				p, err := m.Start(up(m, h), h, nil)
				r.must(err)
				give(r, p)
				for _, err := range []error{m.Retained(), h.Retained()} {
					r.is("what is given up", err, cuda.ErrRetained)
				}
				if name == "forsaken" || name == "not drained" {
					calls := r.driver.Calls(simcuda.CallSynchronize)
					r.is("a proof while the copy is under way", p.Prove(), cuda.ErrUnquiesced)
					if r.driver.Calls(simcuda.CallSynchronize) != calls {
						t.Error("the driver was asked to wait")
					}
				}
				if gone {
					r.is("the end of memory", m.Drop(), cuda.ErrRetained)
					r.is("the end of pinned memory", h.Free(), cuda.ErrRetained)
				}
				r.settle()
				r.must(p.Prove())
				if gone {
					r.close()
					return
				}
				if m.Retained() != nil || h.Retained() != nil || len(r.platform.Retained()) != 0 {
					t.Errorf("retained with a proof: %v", r.platform.Retained())
				}
				again, err := m.Start(up(m, h), h, nil)
				r.must(err)
				r.finish(again)
				r.end(m, h)
			})
		}
	}
}

// A proof about copies is none about anything else, such as a network device.
//
// proves C-3, G-9
func TestALateProofGivesNothingBackThatIsRetainedForMore(t *testing.T) {
	r := newRig(t, simcuda.Options{})
	m, h, _ := r.pair(1000)
	p, err := m.Start(up(m, h), h, nil)
	r.must(err)
	p.Forsake(errGivenUp)
	m.Retain(errors.New("a network device may reach it"))
	h.Retain(errors.New("a network device may reach it"))
	r.settle()
	r.must(p.Prove())
	r.is("memory", m.Drop(), cuda.ErrRetained)
	r.is("pinned memory", h.Free(), cuda.ErrRetained)
	if got, want := r.kinds(), "map[allocation:1 pinned memory:1]"; got != want {
		t.Errorf("retained are %v, want %v", got, want)
	}
	r.must(r.platform.Close())
}
