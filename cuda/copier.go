package cuda

import (
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"
)

// Slots is how many operations one memory object has under way at most: it has that many events on its one stream. An
// operation is what one Start queues, such as the copy of one chunk; a transfer that overlaps copies and network has
// two or more (SPEC C-4), and eight callers of one object find places for that.
const Slots = 16

// copier is a memory object's one stream with its events (SPEC C-3). It is made once, whole, and never exchanged. Every
// loop that holds the memory may start operations at the same time: each claims a slot, and with it an event, that
// nobody else uses before the operation is confirmed or drained.
//
//	free ─claim─▶ starting ─recorded──▶ flying ─complete──▶ free
//	                 │  └─nothing taken─▶ free  │ └─query failed─┐
//	                 └─part taken──────────▶ doubtful ◀──────────┘
//	         flying, doubtful ─Drain─▶ draining ─stream empty─▶ free, or ─no proof─▶ kept ─Prove─▶ free
//	         flying ─Forsake─▶ forsaken ─Prove─▶ free
type copier struct {
	stream *stream
	free   atomic.Uint32 // a bit for each slot without an operation
	doubts atomic.Int32  // doubtful and draining slots; while there are any, nothing is started
	slots  [Slots]slot
}

type stream struct {
	handle StreamHandle
	life   life
}

type slotState uint32

const (
	slotFree slotState = iota
	slotStarting
	slotFlying
	slotDoubtful
	slotDraining
	slotKept
	slotForsaken
)

var slotNames = [...]string{"free", "starting", "in flight", "doubtful", "draining", "kept", "forsaken"}

func (s slotState) String() string { return slotNames[s] }

// slot is an event and the operation that it proves.
type slot struct {
	event      EventHandle
	life       life
	state      atomic.Uint32 // slotState
	generation atomic.Uint32 // of the operation; a Pending of another one is over
	partner    Partner       // what else the copies touch; belongs to the operation
	given      bool          // true exactly from Forsake on until Prove has a proof
	witness    Partner       // what was retained by Forsake beside the memory
}

// flying counts operations; a copier that is not there has none.
func (c *copier) flying() int {
	if c == nil {
		return 0
	}
	return Slots - bits.OnesCount32(c.free.Load())
}

// Partner is the other side of copies: *Pinned or *Memory. Copies hold it until they are proven ended, and retain it
// when that cannot be proven.
type Partner interface {
	fmt.Stringer
	Covers(p Pointer, bytes uint64) bool
	lend() error
	giveBack()
	keep(reason error)
	proven() error
}

func (m *Memory) lend() error {
	if err := m.object.life.mustNotBeOver(m, "Start"); err != nil {
		return err
	}
	if m.object.stale.Load() {
		return &StaleError{Object: m.String(), Was: m.object.info.BufferID}
	}
	m.object.uses.Add(1)
	return nil
}

func (m *Memory) giveBack() { m.object.uses.Add(-1) }

func (m *Memory) keep(reason error) {
	m.object.doubts.unproven.Add(1)
	m.object.keep(reason)
}

// proven takes the proof of what keep was told of.
func (m *Memory) proven() error {
	if o := m.object; o.doubts.proof(&o.life, o.platform()) {
		return m.Drop()
	}
	return nil
}

// Prepared is true exactly when Start can be called.
func (m *Memory) Prepared() bool { return m.object.copier.Load() != nil }

// Prepare makes the object's stream and events if they are not there yet; an allocation has them from its start. What a
// failed Prepare made is ended again, and a later one may try once more. Slow.
func (m *Memory) Prepare() error {
	if err := m.object.life.mustNotBeOver(m, "Prepare"); err != nil {
		return err
	}
	return m.object.prepare()
}

func (o *object) prepare() error {
	o.make.enter()
	defer o.make.leave()
	if o.copier.Load() != nil {
		return nil
	}
	c, calls, counts := &copier{}, o.platform().calls, &o.platform().counts
	handle, err := calls.CreateStream(o.handle)
	if err = o.context.settle(err); err != nil {
		return o.notMade(err, KindStream, "cuStreamCreate")
	}
	counts.streams.Add(1)
	c.stream = &stream{handle: handle}
	for i := range c.slots {
		event, err := calls.CreateEvent(o.handle)
		if err = o.context.settle(err); err != nil {
			return errors.Join(o.notMade(err, KindEvent, "cuEventCreate"), o.keepShare(c.end(o)))
		}
		counts.events.Add(1)
		c.slots[i].event = event
		c.free.Or(1 << i)
	}
	o.copier.Store(c)
	return nil
}

// notMade is the failure of a call that makes something. When it may have made it after all, the book says so, and the
// context stays.
func (o *object) notMade(err error, kind Kind, call string) error {
	if effectOf(err) == None {
		return err
	}
	name := fmt.Sprintf("%v of %v", kind, o)
	refusal := &RetainedError{Object: name, Call: call, Err: err}
	o.platform().book.add(kind, name, refusal)
	return errors.Join(err, o.keepShare(refusal))
}

// keepShare adds a holder to the context that never ends, for something below it that is retained beside a living owner.
func (o *object) keepShare(refused error) error {
	if refused != nil {
		_, _ = o.context.Acquire() // it is held already, so this only counts
	}
	return refused
}

// end destroys events and stream. Destroying is clean-up and proves nothing: every operation is over before.
func (c *copier) end(o *object) error {
	if c == nil {
		return nil
	}
	calls, counts := o.platform().calls, &o.platform().counts
	var refused error
	for i := range c.slots {
		s := &c.slots[i]
		if s.event == 0 {
			continue
		}
		refused = errors.Join(refused, s.life.end(o.context, part{kind: KindEvent, name: s.name(o), call: "cuEventDestroy_v2", live: &counts.events,
			native: func() error { return calls.DestroyEvent(o.handle, s.event) }}))
	}
	return errors.Join(refused, c.stream.life.end(o.context, part{kind: KindStream, name: c.stream.name(o), call: "cuStreamDestroy_v2", live: &counts.streams,
		native: func() error { return calls.DestroyStream(o.handle, c.stream.handle) }}))
}

func (s *slot) name(o *object) string   { return "event of " + o.String() }
func (s *stream) name(o *object) string { return "stream of " + o.String() }

// claim takes a free slot.
func (c *copier) claim() (index uint32, ok bool) {
	for {
		free := c.free.Load()
		if free == 0 {
			return 0, false
		}
		index = uint32(bits.TrailingZeros32(free))
		if c.free.CompareAndSwap(free, free&^(1<<index)) {
			return index, true
		}
	}
}

// release gives a slot back, whose operation is proven over or was never begun.
func (c *copier) release(o *object, index uint32) {
	s := &c.slots[index]
	if s.partner != nil {
		s.partner.giveBack()
		s.partner = nil
	}
	s.state.Store(uint32(slotFree))
	o.platform().counts.copies.Add(-1)
	c.free.Or(1 << index)
}

// Pending is one operation under way. It belongs to one loop at a time and is over when Confirm said true or Drain
// returned; the zero value is no operation.
type Pending struct {
	memory            *Memory
	copier            *copier
	index, generation uint32
	silent            bool
}

// Started is true exactly when there is an operation that has to be confirmed or drained.
func (p Pending) Started() bool { return p.memory != nil }

// Silent is true exactly when a signal was asked for and the driver refused the callback: nothing will announce the
// end, so the caller has to ask again by itself.
func (p Pending) Silent() bool { return p.silent }

// take finds the slot, for what may be done in these states.
func (p Pending) take(verb string, states ...slotState) *slot {
	if p.memory == nil {
		panic(fmt.Sprintf("cuda: %s of no operation, want one that was started", verb))
	}
	s := &p.copier.slots[p.index]
	now := slotState(s.state.Load())
	if generation := s.generation.Load(); generation != p.generation {
		panic(fmt.Sprintf("cuda: %s of operation %d in a slot of %v, want %d: it is over", verb, p.generation, p.memory, generation))
	}
	for _, want := range states {
		if now == want {
			return s
		}
	}
	want := append([]slotState(nil), states...) // the panic's own: the caller's list stays on its stack
	panic(fmt.Sprintf("cuda: %s of an operation of %v which is %v, want %v", verb, p.memory, now, want))
}

// Start queues copies on the object's stream, records an event behind them, and lets the driver write to the signal (nil:
// none) when they are complete. Each copy has one side in this memory and the other in partner; with a nil partner the
// other side is host memory that the caller keeps until the end is proven, and for good if it is not. Partner is held
// until then. Neither side may be used before Confirm says true, except that what is copied from may be read.
//
// An error with a zero Pending has started nothing: *BusyError (no free slot: confirm some), *FencedError, *StaleError,
// *RangeError, *RetainedError, *UnquiescedError, *CopyError with Undrained false. A *CopyError with Undrained true comes
// with a Pending that only Drain ends. It does not block, and allocates nothing unless it fails.
func (m *Memory) Start(copies []Copy, partner Partner, signal *Signal) (Pending, error) {
	o, announce := m.object, signal.native()
	if err := o.admit(m, copies, partner); err != nil {
		return Pending{}, err
	}
	c := o.copier.Load()
	index, ok := c.claim()
	if !ok {
		return Pending{}, busy(o.String(), false, Debt{"copies", Slots})
	}
	s := &c.slots[index]
	if partner != nil {
		if err := partner.lend(); err != nil {
			c.free.Or(1 << index)
			return Pending{}, err
		}
		s.partner = partner
	}
	s.state.Store(uint32(slotStarting))
	o.platform().counts.copies.Add(1)
	pending := Pending{memory: m, copier: c, index: index, generation: s.generation.Add(1)}
	submitted, err := o.platform().calls.Submit(o.handle, c.stream.handle, copies, s.event, announce)
	err = o.context.settle(err)
	switch {
	case submitted.Recorded && !submitted.Unknown && submitted.Copies == len(copies):
		if pending.silent = signal != nil && !submitted.Signaled; pending.silent {
			o.platform().counts.silent.Add(1)
		}
		s.state.Store(uint32(slotFlying))
		return pending, nil
	case submitted.Copies == 0 && !submitted.Unknown && !submitted.Recorded:
		c.release(o, index)
		return Pending{}, &CopyError{Object: o.String(), Asked: len(copies), Err: err}
	}
	c.doubts.Add(1)
	s.state.Store(uint32(slotDoubtful))
	return pending, &CopyError{Object: o.String(), Asked: len(copies), Taken: submitted.Copies, Undrained: true, Err: err}
}

// admit says why nothing can be started.
func (o *object) admit(m *Memory, copies []Copy, partner Partner) error {
	if err := o.life.mustNotBeOver(m, "Start"); err != nil {
		return err
	}
	switch c := o.copier.Load(); {
	case c == nil:
		return &FencedError{Object: o.String(), Why: "it has no stream yet; call Prepare on a cold loop"}
	case c.doubts.Load() > 0:
		return &FencedError{Object: o.String(), Why: "a failed copy is not drained yet"}
	case o.stale.Load():
		return &StaleError{Object: o.String(), Was: o.info.BufferID}
	case len(copies) == 0:
		return &RangeError{Object: o.String()}
	}
	for i := range copies {
		if k := &copies[i]; !o.connects(k, partner) {
			return &RangeError{Object: o.String(), Copy: *k}
		}
	}
	return nil
}

// connects is true exactly when a copy lies between the object and its partner.
func (o *object) connects(k *Copy, partner Partner) bool {
	to, from := o.covers(k.To, k.Bytes), o.covers(k.From, k.Bytes)
	if k.Bytes == 0 || !to && !from {
		return false
	}
	if partner == nil || to && from {
		return true
	}
	return to && partner.Covers(k.From, k.Bytes) || from && partner.Covers(k.To, k.Bytes)
}

// Confirm asks whether the operation is complete. True is the proof that its copies have ended and what they wrote can
// be seen; the operation is over. False without an error: not yet. A *CopyError means that the driver cannot tell: only
// Drain ends the operation then. It does not block, and allocates nothing unless it fails.
func (p Pending) Confirm() (bool, error) {
	s, o := p.take("Confirm", slotFlying), p.memory.object
	done, err := o.platform().calls.Query(o.handle, s.event)
	if err = o.context.settle(err); err != nil {
		p.copier.doubts.Add(1)
		s.state.Store(uint32(slotDoubtful))
		return false, &CopyError{Object: o.String(), Undrained: true, Err: err}
	}
	if done {
		p.copier.release(o, p.index) // proof: the event recorded behind the copies is complete
	}
	return done, nil
}

// Drain waits until the object's stream is empty; nil is the proof that the operation's copies have ended, whatever they
// wrote. The operation is over in any case. When the driver cannot prove it, stream, event, memory and partner are
// retained: *UnquiescedError. Slow.
func (p Pending) Drain() error {
	s, o := p.take("Drain", slotFlying, slotDoubtful), p.memory.object
	if slotState(s.state.Swap(uint32(slotDraining))) == slotFlying {
		p.copier.doubts.Add(1)
	}
	err := o.context.settle(o.platform().calls.Synchronize(o.handle, p.copier.stream.handle))
	if err == nil {
		p.copier.release(o, p.index) // proof: the stream is empty
		p.copier.doubts.Add(-1)
		return nil
	}
	s.state.Store(uint32(slotKept))
	reason := o.unquiesced(p.copier, err)
	s.life.retain(o.platform(), KindEvent, s.name(o), reason)
	if s.partner != nil {
		s.partner.keep(reason)
	}
	return reason
}

// unquiesced retains the object and its stream, because work on it is not proven ended.
func (o *object) unquiesced(c *copier, err error) error {
	reason := &UnquiescedError{Object: o.String(), Call: "cuStreamSynchronize", Err: err}
	c.stream.life.retain(o.platform(), KindStream, c.stream.name(o), reason)
	o.doubts.unproven.Add(1)
	o.keep(reason)
	return reason
}

// Forsake gives up waiting for an operation, or for its drain: memory and partner are retained, until Prove brings the proof.
func (p Pending) Forsake(reason error) {
	s := p.take("Forsake", slotFlying, slotDoubtful, slotDraining, slotFree, slotKept)
	s.state.CompareAndSwap(uint32(slotFlying), uint32(slotForsaken)) // a drain says itself what it finds
	s.given, s.witness = true, s.partner
	p.memory.keep(&RetainedError{Object: p.memory.String(), Call: noProof, Err: reason})
	if s.partner != nil {
		s.partner.keep(&RetainedError{Object: s.partner.String(), Call: noProof, Err: reason})
	}
}

const noProof = "the proof of its quiet is missing"

// Prove asks once more about an operation that was forsaken, or whose Drain found no proof. Nil is the proof, and the
// operation is over: what was retained for it alone is as before, and ends now if its owner is gone. Nothing is asked that
// would wait for a device which is known to be at work still. The error is an *UnquiescedError, or what an end was refused
// with. Slow, and for one goroutine at a time.
func (p Pending) Prove() error {
	s, o, c := p.take("Prove", slotFree, slotKept, slotForsaken, slotDoubtful, slotDraining), p.memory.object, p.copier
	now := slotState(s.state.Load())
	if now == slotDoubtful || now == slotDraining {
		return &UnquiescedError{Object: o.String(), Call: "cuStreamSynchronize", Err: errUnfinished}
	}
	if err := c.finished(o); err != nil {
		return err
	}
	if now == slotKept {
		if err := o.context.settle(o.platform().calls.Synchronize(o.handle, c.stream.handle)); err != nil {
			return &UnquiescedError{Object: o.String(), Call: "cuStreamSynchronize", Err: err}
		}
		c.doubts.Add(-1)
		s.life.reopen(o.platform())
		c.stream.life.reopen(o.platform()) // proof for all of it: the stream is empty
	}
	var refused error
	prove := func(partner Partner) {
		if partner != nil {
			refused = errors.Join(refused, partner.proven())
		}
		refused = errors.Join(refused, p.memory.proven())
	}
	partner, given, witness := s.partner, s.given, s.witness
	if s.given, s.witness = false, nil; now != slotFree { // otherwise its drain has come to an end since
		c.release(o, p.index) // proof: the stream is empty, or the event recorded behind the copies is complete
	}
	if now == slotKept {
		prove(partner)
	}
	if given {
		prove(witness)
	}
	return refused
}

// finished says whether the device is through with all that was forsaken on the stream; nil: it is. An event that is not
// complete also says that it is at work on what was kept, whatever else the driver cannot tell about that.
func (c *copier) finished(o *object) error {
	for i := range c.slots {
		s := &c.slots[i]
		now := slotState(s.state.Load())
		if now != slotForsaken && now != slotKept {
			continue
		}
		done, err := o.platform().calls.Query(o.handle, s.event)
		if err = o.context.settle(err); err == nil && !done {
			err = errUnfinished
		} else if now == slotKept {
			err = nil // whether it was recorded behind the copies is not known: their stream is waited for
		}
		if err != nil {
			return &UnquiescedError{Object: o.String(), Call: "cuEventQuery", Err: err}
		}
	}
	return nil
}

var errUnfinished = errors.New("the device has not finished it")
