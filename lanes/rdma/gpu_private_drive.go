package rdma

import (
	"errors"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/segments"
	"github.com/orbitte/orbitte/verbs"
)

// privateEnd is what the source's end of a connection for one grant on a GPU has besides its queue pair: a protection domain,
// the region of the one message that ends the grant, and the region of the grant's exact range (SPEC C-7). All of it is
// made and ended on the cold loop, with the pair.
//
//	(none) ──open──▶ open ──the parent registers──▶ granted ──pair destroyed, end──▶ gone
//	                   └───────────────────────────────┴──a refusal, or the pair stays──▶ kept
type privateEnd struct {
	identity uint64 // of the domain, on the wire
	domain   *verbs.Domain
	stock    stock               // one slot
	grant    *verbs.MemoryRegion // nil: none, or not yet
	memory   *cuda.Memory        // behind the grant; nil: none
}

// open makes the domain and the memory of the message. What it made when it fails is for end. Slow.
func (e *privateEnd) open(d *Device) (err error) {
	if e.domain, err = d.Context.AllocateDomain(0); err != nil {
		return err
	}
	backing, err := segments.Map(messageSlotBytes)
	if err != nil {
		return err
	}
	region, err := e.domain.Register(backing.Address(), messageSlotBytes, verbs.AccessLocalWrite)
	if err != nil {
		backing.Drop()
		return err
	}
	e.stock = stock{slabs: []*slab{{backing, region, region.LocalKey()}}, free: []int32{0}}
	return nil
}

// end takes everything back, after the pair: the grant's region, the message's, the domain. The first refusal keeps what
// stands below it. Slow.
func (e *privateEnd) end() error {
	if e.grant != nil {
		if err := e.grant.Destroy(); err != nil {
			e.keep(err)
			return err
		}
	}
	for _, s := range e.stock.slabs {
		if err := s.region.Destroy(); err != nil {
			e.keep(err)
			return err
		}
		s.backing.Drop() // proof: deregistered
	}
	e.stock.slabs = nil
	if e.domain == nil {
		return nil
	}
	return e.domain.Close()
}

// keep lists what stays because something above it does, without asking the library; the GPU's memory stays, too, when a
// device may still reach it.
func (e *privateEnd) keep(why error) {
	regions := make([]*verbs.MemoryRegion, 0, 2)
	if e.grant != nil {
		regions = append(regions, e.grant)
	}
	for _, s := range e.stock.slabs {
		regions = append(regions, s.region)
	}
	for _, m := range regions {
		if m.Lend() {
			m.RetainUse()
		}
		if err := m.Destroy(); err != nil && m == e.grant && e.memory != nil {
			e.memory.Retain(errors.Join(why, err))
		}
	}
	if e.domain != nil {
		_ = e.domain.Close() // it has something left that stays
	}
}

// domain is where a connection's pairs and messages are.
func (c *Connection) domain() *verbs.Domain {
	if c.private != nil {
		return c.private.domain
	}
	return c.Device.Domain
}

// stock is where the slots of a connection's messages are.
func (c *Connection) stock() *stock {
	if c.private != nil {
		return &c.private.stock
	}
	return &c.rail.stock
}

// identity names the domain of this end on the wire.
func (c *Connection) identity() uint64 {
	if c.private != nil {
		return c.private.identity
	}
	return c.Device.Identity
}

// endPrivate ends what the connection has besides its pairs, which are destroyed unless stay says why not. On the cold
// loop.
func (c *Connection) endPrivate(stay error) error {
	if c.private == nil {
		return stay
	}
	if stay != nil {
		c.private.keep(stay)
		return stay
	}
	return c.private.end()
}
