package staging

import (
	"errors"
	"fmt"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
)

// supply is what the first Prepare makes: the lane's signal, the chunks of each role, and what lends those that peers
// direct.
type supply struct {
	signal *cuda.Signal
	chunks [Devices][]chunk
	slots  *segments.Tracker // nil: none are lent
}

// sealed takes the supply's place once the stage is closed.
var sealed = new(supply)

// Prepare makes ready what flows of this memory use on this lane: the memory's stream and events, and the first time the
// lane's chunks and signal, in the context of the memory's GPU, which the memory has already. It comes before a
// registration of the memory is visible. It may block, for the driver; any goroutine but a lane's. Errors: those of
// package cuda, *budgets.Exhausted, ErrClosed; nothing is left behind then.
func (s *Stage) Prepare(m *cuda.Memory) error {
	if err := m.Prepare(); err != nil {
		return err
	}
	switch s.supply.Load() {
	case sealed:
		return ErrClosed
	case nil:
	default:
		return nil
	}
	made, err := s.make(m.Platform(), m.Ordinal())
	if err != nil {
		return err
	}
	if s.supply.CompareAndSwap(nil, made) {
		return nil
	}
	made.end() // somebody else was quicker, or the stage was closed
	made.repay(s)
	if s.supply.Load() == sealed {
		return ErrClosed
	}
	return nil
}

func (s *Stage) make(p *cuda.Platform, ordinal int) (*supply, error) {
	signal, err := p.OpenSignal()
	if err != nil {
		return nil, fmt.Errorf("staging: signal of the lane: %w", err)
	}
	made := &supply{signal: signal}
	for role := range made.chunks {
		for i := range s.config.chunks(Role(role)) {
			made.chunks[role] = append(made.chunks[role], chunk{stage: s, role: Role(role), index: i})
		}
	}
	for role := range made.chunks {
		for i := range made.chunks[role] {
			if err := made.chunks[role][i].pin(p, ordinal); err != nil {
				made.end()
				made.repay(s)
				return nil, fmt.Errorf("staging: pinned chunk %d of %d, %d bytes: %w", i+1, s.config.chunks(Role(role)), s.config.ChunkBytes, err)
			}
		}
	}
	if err := made.enlist(); err != nil {
		made.end()
		made.repay(s)
		return nil, fmt.Errorf("staging: slots: %w", err)
	}
	return made, nil
}

// pin charges and makes the chunk's memory.
func (c *chunk) pin(p *cuda.Platform, ordinal int) error {
	s := c.stage
	charge, err := s.config.Budget.Take(int64(s.config.ChunkBytes))
	if err != nil {
		return err
	}
	pinned, err := p.AllocateHost(ordinal, s.config.ChunkBytes)
	if err != nil {
		charge.Repay()
		return err
	}
	c.pinned, c.charge = pinned, charge
	s.counts.chunks.Add(1)
	s.counts.pinned.Add(int64(s.config.ChunkBytes))
	if c.backing, err = segments.AdoptHost(pinned.Address(), s.config.ChunkBytes, pinned, c.free); err != nil {
		return err
	}
	c.bytes = c.backing.Bytes()
	return nil
}

// end frees everything that is not retained; it may block.
func (m *supply) end() {
	m.signal.Close()
	if m.slots != nil {
		m.slots.RetireAll()
	}
	for role := range m.chunks {
		for i := range m.chunks[role] {
			m.chunks[role][i].unpin()
		}
	}
}

// unpin frees the chunk's memory, unless it is retained, or something else holds it: a slot that a network device may still
// reach is never freed.
func (c *chunk) unpin() {
	if c.pinned == nil || c.state == chunkKept {
		return
	}
	backing := c.backing
	if c.backing, c.bytes = nil, nil; backing == nil {
		c.free()
		return
	}
	c.failure = errHeld // unless free follows
	backing.Drop()
}

// free is the end of the last holder. What the driver refuses to free is retained by its owner.
func (c *chunk) free() { c.failure = c.pinned.Free() }

var errHeld = errors.New("staging: the chunk is held by others than its stage")

// repay gives the charges of freed chunks back. Proof: the driver has freed them.
func (m *supply) repay(s *Stage) {
	for role := range m.chunks {
		for i := range m.chunks[role] {
			c := &m.chunks[role][i]
			if !c.charge.Held() || c.failure != nil || c.state == chunkKept {
				continue
			}
			c.charge.Repay()
			s.counts.chunks.Add(-1)
			s.counts.pinned.Add(-int64(s.config.ChunkBytes))
		}
	}
}

// farewell is the last errand of a stage: its supply ends on the cold loop.
type farewell struct {
	letter reactor.Letter
	made   *supply
	ended  bool
	closed func()
}

// Close takes no more flows, and once all have ended gives chunks and signal back; closed is called on the lane then.
// What is retained stays. On the lane, once.
func (s *Stage) Close(closed func()) {
	s.closing, s.closed = true, closed
	s.settle()
}

// settle goes on with a close that waits for flows, or for the watch.
func (s *Stage) settle() {
	if s.closed == nil || s.flows > 0 || s.lent > 0 {
		return
	}
	if s.watch != 0 {
		s.lane.Cancel(s.watch) // Complete follows
		return
	}
	s.lane.Disarm(&s.timer)
	f := &s.farewell
	f.closed, s.closed = s.closed, nil
	if f.made = s.supply.Swap(sealed); f.made == nil {
		f.closed()
		return
	}
	if err := s.config.Cold.Post(&f.letter, s.parting()); err != nil {
		panic("staging: the cold loop is closed, want open until the stage is closed: " + err.Error())
	}
}

func (s *Stage) parting() reactor.Recipient { return (*parting)(s) }

// parting is the recipient of the farewell: Stage has other words of its own.
type parting Stage

// Receive runs on the cold loop, then at home (reactor.Recipient).
func (p *parting) Receive(*reactor.Letter, reactor.Instant) {
	f := &p.farewell
	if !f.ended {
		f.made.end()
		f.ended = true
		_ = p.lane.Post(&f.letter, p) // a home that is closed hears nothing any more; the charges stay
		return
	}
	f.made.repay((*Stage)(p))
	f.closed()
}

// Abandon ends a stage whose lane never ran, or does not run any more, on the caller's goroutine. It may block.
func (s *Stage) Abandon() {
	if made := s.supply.Swap(sealed); made != nil && made != sealed {
		made.end()
		made.repay(s)
	}
}

// Residue is what one flow keeps because nobody can prove that the device is done with it: chunks, charges, device
// memory, the lease and loans of its user (SPEC G-9). It stays for good, unless Reclaim finds the proof.
type Residue struct {
	Object string
	Bytes  uint64 // of the flow
	Reason error

	owners   []any // keeps them reachable
	chunks   []*chunk
	giveBack func() // what the user's are given back with; nil: they stay, whatever is proven
	older    *Residue
}

// Reclaim asks the driver once more about what copies left without a proof, and gives leases and loans back where it proves
// their end. False: something is left. Only after the stage is closed and the lane has ended, by one goroutine at a time. Slow:
// it may wait for the driver.
func (s *Stage) Reclaim() bool {
	var left []*Residue
	for r := s.residues.Load(); r != nil; r = r.older {
		kept := *r
		if err := s.reclaim(&kept); err != nil {
			kept.Reason = err
			left = append(left, &kept)
			continue
		}
		s.counts.retained.Add(-1)
	}
	var list *Residue
	for i := len(left) - 1; i >= 0; i-- {
		left[i].older, list = list, left[i]
	}
	s.residues.Store(list)
	return list == nil
}

// reclaim gives back what one flow kept, if all of its copies are proven to have ended. The error says what is not.
func (s *Stage) reclaim(r *Residue) error {
	if r.giveBack == nil {
		return r.Reason
	}
	for _, c := range r.chunks {
		if !c.pending.Started() {
			continue // it was proven before
		}
		if err := c.pending.Prove(); errors.Is(err, cuda.ErrUnquiesced) {
			return err
		}
		c.pending = cuda.Pending{} // what the driver refused to end is listed by its owner
	}
	r.giveBack() // proof: no copy of the flow touches anything any more
	return nil
}

// Release frees the chunks that were kept, once Reclaim has left nothing and nobody else, such as a network device, may
// touch one. The rest as Reclaim.
func (s *Stage) Release() {
	made := s.farewell.made
	if made == nil {
		return
	}
	for role := range made.chunks {
		for i := range made.chunks[role] {
			if c := &made.chunks[role][i]; c.state == chunkKept {
				c.state = chunkRoom
				c.unpin()
			}
		}
	}
	made.repay(s)
}

// Residues lists them, the newest first; any goroutine.
func (s *Stage) Residues() (all []Residue) {
	for r := s.residues.Load(); r != nil; r = r.older {
		all = append(all, Residue{Object: r.Object, Bytes: r.Bytes, Reason: r.Reason})
	}
	return all
}

// retain makes the residue of a flow whose end is unproven.
func (s *Stage) retain(f *Flow) *Residue {
	r := &Residue{
		Object: fmt.Sprintf("copy %v of %d bytes at %#x of %v", wayNames[f.plan.Way], f.plan.Length, f.plan.Address, f.plan.Memory),
		Bytes:  f.plan.Length, Reason: f.unproven, owners: []any{f.plan.Memory, f.plan.Partner}, older: s.residues.Load(),
	}
	p := f.pool()
	for _, c := range f.chunks[:f.held] {
		r.chunks = append(r.chunks, c)
		c.flow = nil
		p.lose()
	}
	s.residues.Store(r)
	s.counts.retained.Add(1)
	for waiter := p.head; waiter != nil && p.whole == 0; waiter = p.head {
		waiter.unwait()
		waiter.state = flowRunning
		waiter.fail(refusal(lanes.Exhausted, ErrAllRetained))
	}
	return r
}

// shortage says that a flow waited for a chunk in vain.
func (s *Stage) shortage(r Role) error {
	return fmt.Errorf("all %d pinned chunks of the %v side of this lane are in use; raise the limits of pinned staging, or ask for less at once", s.pools[r].whole, r)
}
