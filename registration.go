package orbitte

import (
	"context"
	"sync"

	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/segments"
)

// Permission says what peers may do with a registered range (SPEC M-8).
type Permission = netproto.Permission

const (
	LocalOnly   = netproto.LocalOnly   // for this engine's own requests; never exported
	RemoteRead  = netproto.RemoteRead  // peers may READ
	RemoteWrite = netproto.RemoteWrite // peers may WRITE
	ReadWrite   = netproto.ReadWrite   // both
)

// Range is one element of RegisterBatch: length bytes from offset in a memory object.
type Range struct {
	Memory         *Memory
	Offset, Length uint64
	Permission     Permission
	// HPTCP lets peers reach the range over HP-TCP as well (SPEC W-8). It needs Config.HPTCP.
	HPTCP bool
}

// Registration is one registered range: the handle that Unregister takes. Registering the same range
// again gives a handle of its own to the same ID (SPEC M-5).
type Registration struct {
	engine *Engine
	inner  *segments.Registration
	mu     sync.Mutex
	used   bool    // true exactly when the handle was given back
	ending *ending // non-nil exactly when Unregister has yet to see the end
}

// ID is never reused in the engine's life.
func (r *Registration) ID() uint64 { return r.inner.ID() }

// Address is the address of the first byte.
func (r *Registration) Address() uint64 { return r.inner.Address() }

// Length is the number of bytes.
func (r *Registration) Length() uint64 { return r.inner.Length() }

// Permission is what the first registration of the range asked for.
func (r *Registration) Permission() Permission { return r.inner.Permission() }

// HPTCP is true exactly when the first registration of the range let peers reach it over HP-TCP (OverHPTCP).
func (r *Registration) HPTCP() bool { return r.inner.Region().Flags&netproto.RegionHPTCP != 0 }

// ending is somebody's wait for the end of a registration.
type ending struct {
	done   chan struct{}
	native *nativeMemory // what it has on the devices; nil: nothing
	driver *driverMemory // what it holds of a CUDA driver; nil: nothing
	err    error         // why the devices keep it; read after done
}

// over says that the registration has ended, once its memory's hold is given back. What devices keep for good is held for
// good.
func (w *ending) over(e *Engine, kept error) {
	if w.err = kept; w.driver == nil || kept != nil {
		close(w.done)
		return
	}
	e.releaseDriverMemory(w.driver, func() { close(w.done) })
}

// awaitEnd lets Unregister hear of the end, and holds the driver's memory until then, once for each registration. The
// caller has registering, and holds the memory, too.
func (e *Engine) awaitEnd(r *segments.Registration, d *driverMemory) {
	entry, _ := e.ended.LoadOrStore(r, &ending{done: make(chan struct{})})
	if w := entry.(*ending); d != nil && w.driver == nil && d.tryHold() {
		w.driver = d
	}
}

// registrable checks what the tracker does not know: the range's part of its memory object, and whether this engine can
// use such memory.
func (e *Engine) registrable(r *Range) error {
	m := r.Memory
	switch {
	case r.HPTCP && e.hptcp == nil:
		return &Error{Class: ErrUnavailable, Cause: errNoHPTCP}
	case r.Length == 0, !segments.Within(r.Offset, r.Length, m.length):
		return &segments.RangeError{Object: "memory object", ID: m.Address(), Offset: r.Offset, Length: r.Length, Limit: m.length}
	case m.Type() == MemoryHost:
		return nil
	case e.cuda == nil:
		return &Error{Class: ErrUnavailable, Cause: errNoCUDA}
	case m.driver.platform != e.cuda.platform:
		return &Error{Class: ErrInvalid, Cause: errOtherDriver}
	case r.HPTCP:
		return &Error{Class: ErrUnavailable, Cause: errDeviceHPTCP}
	}
	return nil
}

// Register makes a range of a memory object usable by requests and, if permitted, by peers. Errors:
// ErrInvalid (empty, outside, overlapping another memory object), ErrExhausted, ErrClosed; ErrUnavailable for OverHPTCP
// without Config.HPTCP. Of an exact repetition the first permission and options stay, as Registration.Permission and HPTCP
// tell (SPEC M-5): give every handle back first to register the range otherwise. Where several regions cover what a request
// asks for, the one with the lowest address counts, of these the longest, whatever each permits (SPEC M-7): ranges that
// peers are to use with different permissions or transports should not lie in one another.
func (e *Engine) Register(m *Memory, offset, length uint64, p Permission, options ...RegisterOption) (*Registration, error) {
	r := Range{Memory: m, Offset: offset, Length: length, Permission: p}
	for _, option := range options {
		option(&r)
	}
	handles, err := e.register("Register", []Range{r})
	if err != nil {
		return nil, err
	}
	return handles[0], nil
}

// RegisterBatch registers all ranges at once, or none: a failure leaves everything as it was, and its
// Index names the range (SPEC M-4).
func (e *Engine) RegisterBatch(ranges []Range) ([]*Registration, error) {
	return e.register("RegisterBatch", ranges)
}

func (e *Engine) register(op string, ranges []Range) ([]*Registration, error) {
	specs := make([]segments.Spec, len(ranges))
	for i, r := range ranges {
		if !r.Memory.hold() {
			return nil, &Error{Op: op, Index: i, Class: ErrInvalid, Cause: errMemoryClosed}
		}
		defer r.Memory.unhold()
		if err := e.registrable(&r); err != nil {
			return nil, rangeError(op, i, err)
		}
		specs[i] = segments.Spec{Backing: r.Memory.backing, Offset: r.Memory.offset + r.Offset, Length: r.Length, Permission: r.Permission, Profile: r.profile()}
	}
	inner, undone, err := e.publish(specs, ranges)
	if err != nil {
		e.awaitAll(undone)
		return nil, registrationError(op, err)
	}
	handles := make([]*Registration, len(inner))
	seen := map[*segments.Registration]*Registration{}
	for i, r := range inner {
		if seen[r] == nil { // elements that were coalesced share a handle, as they share a reference
			seen[r] = &Registration{engine: e, inner: r}
		}
		handles[i] = seen[r]
	}
	return handles, nil
}

// publish makes a batch visible, once the devices have it. A failure says what of the batch is still to be waited for.
func (e *Engine) publish(specs []segments.Spec, ranges []Range) (inner []*segments.Registration, undone []*ending, err error) {
	e.registering.Lock()
	defer e.registering.Unlock()
	e.mu.Lock()
	began := e.closing.began
	e.mu.Unlock()
	if began {
		return nil, nil, &Error{Index: -1, Class: ErrClosed}
	}
	if err := e.prepareDevices(specs); err != nil {
		return nil, nil, err
	}
	if undone, err := e.reachSlots(); err != nil {
		return nil, undone, err
	}
	prepare := func(fresh []*segments.Registration) (failed int, err error) {
		failed, undone, err = e.rdma.prepare(fresh)
		return failed, err
	}
	if e.rdma == nil {
		prepare = nil
	}
	inner, err = e.tracker.RegisterPrepared(specs, prepare)
	for i, r := range inner {
		e.awaitEnd(r, ranges[i].Memory.driver)
	}
	return inner, undone, err
}

// rangeError is about one range of a registration; an error of this package is said once.
func rangeError(op string, i int, err error) error {
	own, ok := err.(*Error)
	if !ok {
		return &Error{Op: op, Index: i, Class: classOf(err), Cause: err, situation: publishing}
	}
	own.Op, own.Index, own.situation = op, i, publishing
	return own
}

func registrationError(op string, err error) error {
	element, ok := err.(*segments.ElementError)
	if !ok {
		return failure(op, err)
	}
	class := classOf(element.Err)
	if class == ErrPermission { // a permission that is none
		class = ErrInvalid
	}
	return &Error{Op: op, Index: element.Element, Class: class, Cause: element.Err}
}

// Unregister gives a handle back. With the last handle of its range the region disappears for peers
// and requests at once; then Unregister waits until no admitted work holds it any more, so that nil
// proves: the engine does not touch the range on behalf of this registration again. Nil for a handle that is not the last of
// its range proves nothing, and other registrations that overlap it are not asked. Errors: ErrInvalid
// (given back before), ErrUnquiesced when the context ends first; the region is gone all the same, and
// Unregister may be called again to go on waiting.
func (e *Engine) Unregister(ctx context.Context, r *Registration) error {
	if r == nil || r.engine != e {
		return &Error{Op: "Unregister", Index: -1, Class: ErrInvalid, Cause: errHandle}
	}
	// Held here so that the memory, if this was its last hold, is unmapped on this goroutine and not on a lane.
	if backing := r.inner.Backing(); backing.TryHold() {
		defer backing.Drop()
	}
	waiting, err := r.giveBack()
	if err != nil || waiting == nil {
		return failure("Unregister", err)
	}
	if err := e.waitOn(ctx, waiting.done, nil); err != nil {
		return &Error{Op: "Unregister", Index: -1, Class: ErrUnquiesced, Cause: err}
	}
	if waiting.err != nil {
		return &Error{Op: "Unregister", Index: -1, Class: ErrUnquiesced, Cause: waiting.err, situation: keeping}
	}
	r.mu.Lock()
	r.ending = nil
	r.mu.Unlock()
	return nil
}

// giveBack drops the handle's reference, once, and says what end is left to wait for.
func (r *Registration) giveBack() (*ending, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.used {
		if r.ending == nil {
			return nil, &Error{Index: -1, Class: ErrInvalid, Cause: errHandle}
		}
		return r.ending, nil
	}
	r.used = true
	e := r.engine
	waiting, _ := e.ended.Load(r.inner)
	e.registering.Lock()
	last, err := e.tracker.Unregister(r.inner.ID())
	e.registering.Unlock()
	if err != nil || !last {
		return nil, err
	}
	r.ending = waiting.(*ending)
	return r.ending, nil
}

// registrationEnded is called once for each registration, on whatever thread ended it.
func (e *Engine) registrationEnded(r *segments.Registration) {
	entry, ok := e.ended.LoadAndDelete(r)
	if !ok {
		return
	}
	if w := entry.(*ending); w.native != nil {
		w.native.end(w)
	} else {
		w.over(e, nil)
	}
}

// describe appends the descriptor as peers see it now: the mirror is one consistent set (SPEC M-4).
func (e *Engine) describe(dst []byte) ([]byte, error) {
	d := e.descriptor()
	return netproto.AppendDescriptor(dst, &d), nil
}
