package rdma

import (
	"errors"
	"fmt"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
	"github.com/orbitte/orbitte/verbs"
)

// staging is private registered memory of one transfer or one parent, for host memory (SPEC R-6). It is not pooled: a staged transfer
// builds a connection of its own (SPEC R-16), beside which registering costs little. Its charge is taken before it is
// made, and repaid when the last region is deregistered.
//
//	charged ──make (cold loop)──▶ ready ──end (cold loop)──▶ gone, or retained
type staging struct {
	length  uint64
	access  verbs.Access
	devices []*Device
	backing *segments.Backing     // nil: not made
	regions []*verbs.MemoryRegion // beside devices
	charge  budgets.Charge
	errand  errand
}

// newStaging charges memory for length bytes.
func newStaging(b *budgets.Budget, length uint64, access verbs.Access) (*staging, error) {
	charge, err := b.Take(int64(length))
	if err != nil {
		return nil, err
	}
	return &staging{length: length, access: access, charge: charge}, nil
}

// on says that a device will use it; before make.
func (s *staging) on(d *Device) {
	for _, other := range s.devices {
		if other == d {
			return
		}
	}
	s.devices = append(s.devices, d)
}

// make maps and registers it, on the cold loop: all or nothing, as far as the library lets it be taken back.
func (s *staging) make() error {
	backing, err := segments.Map(s.length)
	if err != nil {
		return err
	}
	s.backing = backing
	for _, d := range s.devices {
		region, err := d.Domain.Register(s.backing.Address(), s.length, s.access)
		if err != nil {
			return errors.Join(err, s.unmake())
		}
		s.regions = append(s.regions, region)
	}
	return nil
}

// unmake ends what was made, on the cold loop.
func (s *staging) unmake() (first error) {
	left := s.regions[:0]
	for _, m := range s.regions {
		if err := m.Destroy(); err != nil {
			left = append(left, m)
			if first == nil {
				first = err
			}
		}
	}
	s.regions = left
	if len(left) == 0 && s.backing != nil {
		s.backing.Drop() // proof: every region is deregistered
		s.backing = nil
	}
	return first
}

// region is the one on a device.
func (s *staging) region(d *Device) *verbs.MemoryRegion {
	for i, other := range s.devices {
		if other == d {
			return s.regions[i]
		}
	}
	return nil
}

// end gives it back on the cold loop; nobody uses it any more. What is refused stays, charged and listed.
func (s *staging) end(r *Rails) {
	if s.backing == nil { // nothing was made
		s.charge.Repay()
		return
	}
	r.pending++
	var err error
	s.errand.send(r.transport.config.Cold, r.lane.Loop, func() { err = s.unmake() }, func(reactor.Instant) {
		r.pending--
		if err == nil {
			s.charge.Repay() // proof: deregistered and unmapped
		} else {
			r.transport.keep(&Residue{Object: fmt.Sprintf("staging of %d bytes", s.length), Bytes: s.length, Reason: err, owner: s})
		}
		r.settle()
	})
}
