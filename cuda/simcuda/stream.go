package simcuda

import (
	"time"

	"github.com/orbitte/orbitte/cuda"
)

type operationKind uint8

const (
	opCopy operationKind = iota
	opFill
	opRecord
	opCallback
)

// operation is work on a stream. Memory is nil where the driver does not know the address: host memory of the process.
type operation struct {
	kind                 operationKind
	to, from, bytes      uint64
	toMemory, fromMemory *memory
	mark                 *mark
	sequence             uint64 // of the record
	signal               *signal
}

// stream does its work in order.
type stream struct {
	driver  *Driver
	context *context
	handle  cuda.StreamHandle
	number  int
	queue   []operation
	first   int  // of the queue; what is before is over
	running bool // true exactly when an event for the end of the first operation lies ahead
}

// mark is an event of the driver.
type mark struct {
	context             *context
	handle              cuda.EventHandle
	recorded, completed uint64
}

// CreateStream implements cuda.Calls.
func (d *Driver) CreateStream(h cuda.ContextHandle) (out cuda.StreamHandle, err error) {
	err = d.within(CallCreateStream, h, func(x *context) error {
		d.streamsAll++
		s := &stream{driver: d, context: x, handle: cuda.StreamHandle(d.handle()), number: d.streamsAll}
		d.streams[s.handle] = s
		x.objects++
		out = s.handle
		return nil
	})
	return given(out, err), err
}

// CreateEvent implements cuda.Calls.
func (d *Driver) CreateEvent(h cuda.ContextHandle) (out cuda.EventHandle, err error) {
	err = d.within(CallCreateEvent, h, func(x *context) error {
		m := &mark{context: x, handle: cuda.EventHandle(d.handle())}
		d.marks[m.handle] = m
		x.objects++
		out = m.handle
		return nil
	})
	return given(out, err), err
}

// stream finds a stream for a call in a context.
func (d *Driver) stream(c Call, x *context, h cuda.StreamHandle) (*stream, error) {
	s := d.streams[h]
	switch {
	case s == nil:
		d.violate("%s of stream %#x, which is not (or no longer) there", c, uint64(h))
		return nil, refuse(c, "stream", cuda.InvalidHandle)
	case s.context != x:
		d.violate("%s of stream %#x in another context than its own", c, uint64(h))
		return nil, refuse(c, "stream", cuda.InvalidHandle)
	}
	return s, nil
}

// mark finds an event for a call in a context.
func (d *Driver) mark(c Call, x *context, h cuda.EventHandle) (*mark, error) {
	m := d.marks[h]
	switch {
	case m == nil:
		d.violate("%s of event %#x, which is not (or no longer) there", c, uint64(h))
		return nil, refuse(c, "event", cuda.InvalidHandle)
	case m.context != x:
		d.violate("%s of event %#x in another context than its own", c, uint64(h))
		return nil, refuse(c, "event", cuda.InvalidHandle)
	}
	return m, nil
}

// DestroyStream implements cuda.Calls. Work on the stream goes on.
func (d *Driver) DestroyStream(h cuda.ContextHandle, sh cuda.StreamHandle) error {
	return d.within(CallDestroyStream, h, func(x *context) error {
		s, err := d.stream(CallDestroyStream, x, sh)
		if err != nil {
			return err
		}
		if len(s.queue) > s.first {
			d.violate("stream %d was destroyed with work on it", s.number)
		}
		delete(d.streams, sh)
		x.objects--
		return nil
	})
}

// DestroyEvent implements cuda.Calls.
func (d *Driver) DestroyEvent(h cuda.ContextHandle, eh cuda.EventHandle) error {
	return d.within(CallDestroyEvent, h, func(x *context) error {
		m, err := d.mark(CallDestroyEvent, x, eh)
		if err != nil {
			return err
		}
		if m.recorded != m.completed {
			d.violate("an event was destroyed before it was complete")
		}
		delete(d.marks, eh)
		x.objects--
		return nil
	})
}

// Query implements cuda.Calls.
func (d *Driver) Query(h cuda.ContextHandle, eh cuda.EventHandle) (bool, error) {
	d.enter()
	defer d.leave()
	x, err := d.push(CallQuery, h)
	if err != nil {
		return false, err
	}
	m, err := d.mark(CallQuery, x, eh)
	if err != nil {
		return false, err
	}
	if f := d.strike(FailCall, CallQuery, x.device, nil); f != nil {
		d.counts[CallPop]++
		return false, fail(CallQuery, x.device.name, f.Result, f.Effect)
	}
	return m.recorded == m.completed, d.pop(x)
}

// Synchronize implements cuda.Calls.
func (d *Driver) Synchronize(h cuda.ContextHandle, sh cuda.StreamHandle) error {
	return d.within(CallSynchronize, h, func(x *context) error {
		s, err := d.stream(CallSynchronize, x, sh)
		if err != nil {
			return err
		}
		if !d.await(func() bool { return len(s.queue) == s.first || x.device.lost != cuda.Success }) || x.device.lost != cuda.Success {
			return fail(CallSynchronize, x.device.name, x.device.lost, cuda.Maybe)
		}
		return nil
	})
}

// Zero implements cuda.Calls.
func (d *Driver) Zero(h cuda.ContextHandle, sh cuda.StreamHandle, p cuda.Pointer, bytes uint64) error {
	return d.within(CallZero, h, func(x *context) error {
		s, err := d.stream(CallZero, x, sh)
		if err != nil {
			return err
		}
		m := d.find(uint64(p))
		if bytes == 0 {
			return nil
		}
		if m == nil || !m.onDevice() || !m.covers(uint64(p), bytes) {
			return refuse(CallZero, x.device.name, cuda.InvalidValue)
		}
		s.put(operation{kind: opFill, to: uint64(p), bytes: bytes, toMemory: m})
		return nil
	})
}

// Submit implements cuda.Calls.
func (d *Driver) Submit(h cuda.ContextHandle, sh cuda.StreamHandle, copies []cuda.Copy, eh cuda.EventHandle, gh cuda.SignalHandle) (cuda.Submitted, error) {
	d.enter()
	defer d.leave()
	x, err := d.push(CallCopy, h)
	if err != nil {
		return cuda.Submitted{Unknown: effect(err) == cuda.Maybe}, err
	}
	d.counts[CallCopy]-- // each copy counts
	s, err := d.stream(CallCopy, x, sh)
	if err != nil {
		return cuda.Submitted{}, err
	}
	done, err := d.submit(x, s, copies, eh, gh)
	if err != nil {
		d.counts[CallPop]++
		return done, err
	}
	return done, d.pop(x)
}

func effect(err error) cuda.Effect {
	if call, ok := err.(*cuda.CallError); ok {
		return call.Effect
	}
	return cuda.Maybe
}

func (d *Driver) submit(x *context, s *stream, copies []cuda.Copy, eh cuda.EventHandle, gh cuda.SignalHandle) (done cuda.Submitted, err error) {
	for i := range copies {
		d.counts[CallCopy]++
		f := d.strike(FailCall, CallCopy, x.device, s)
		if f == nil || f.Effect == cuda.Maybe && d.coin() {
			err = s.copy(&copies[i])
		}
		if f != nil {
			done.Unknown = f.Effect == cuda.Maybe
			err = fail(CallCopy, x.device.name, f.Result, f.Effect)
		}
		if err != nil {
			return done, err
		}
		done.Copies++
	}
	d.counts[CallRecord]++
	m, err := d.mark(CallRecord, x, eh)
	if err != nil {
		return done, err
	}
	f := d.strike(FailCall, CallRecord, x.device, s)
	if f == nil || f.Effect == cuda.Maybe && d.coin() {
		m.recorded++
		s.put(operation{kind: opRecord, mark: m, sequence: m.recorded})
	}
	if f != nil {
		done.Unknown = f.Effect == cuda.Maybe
		return done, fail(CallRecord, x.device.name, f.Result, f.Effect)
	}
	done.Recorded = true
	if gh == 0 {
		return done, nil
	}
	err = d.launch(x, s, gh)
	done.Signaled = err == nil
	return done, err
}

// launch puts a host callback on the stream.
func (d *Driver) launch(x *context, s *stream, gh cuda.SignalHandle) error {
	d.counts[CallCallback]++
	g := d.signals[gh]
	if g == nil || g.closed {
		d.violate("a callback for signal %#x, which is not (or no longer) there", uint64(gh))
		return refuse(CallCallback, "signal", cuda.InvalidHandle)
	}
	f := d.strike(FailCall, CallCallback, x.device, s)
	if f == nil || f.Effect == cuda.Maybe && d.coin() {
		g.owed++
		s.put(operation{kind: opCallback, signal: g})
	}
	if f != nil {
		return fail(CallCallback, x.device.name, f.Result, f.Effect)
	}
	return nil
}

// copy puts one copy on the stream, if the driver takes it.
func (s *stream) copy(c *cuda.Copy) error {
	d, name := s.driver, s.context.device.name
	to, from := d.find(uint64(c.To)), d.find(uint64(c.From))
	switch {
	case c.Bytes == 0:
		return refuse(CallCopy, name, cuda.InvalidValue)
	case to != nil && !to.covers(uint64(c.To), c.Bytes), from != nil && !from.covers(uint64(c.From), c.Bytes):
		return refuse(CallCopy, name, cuda.InvalidValue)
	case to == nil && !reachable(uint64(c.To), c.Bytes, true), from == nil && !reachable(uint64(c.From), c.Bytes, false):
		return refuse(CallCopy, name, cuda.InvalidValue)
	}
	s.put(operation{kind: opCopy, to: uint64(c.To), from: uint64(c.From), bytes: c.Bytes, toMemory: to, fromMemory: from})
	return nil
}

// put puts work behind what is there.
func (s *stream) put(o operation) {
	for _, m := range [...]*memory{o.toMemory, o.fromMemory} {
		if m != nil {
			m.users++
		}
	}
	if o.kind == opCopy || o.kind == opFill {
		s.context.device.operations++
	}
	if s.first > 0 && len(s.queue) == cap(s.queue) {
		n := copy(s.queue, s.queue[s.first:])
		clear(s.queue[n:])
		s.queue, s.first = s.queue[:n], 0
	}
	s.queue = append(s.queue, o)
	s.kick()
}

// kick begins what is next, if nothing runs.
func (s *stream) kick() {
	for !s.running && s.first < len(s.queue) && s.context.device.lost == cuda.Success {
		switch o := &s.queue[s.first]; o.kind {
		case opRecord:
			o.mark.completed = max(o.mark.completed, o.sequence)
			s.next()
		case opCallback:
			o.signal.announce(s)
			s.next()
		default:
			s.running = true
			s.driver.schedule(s.begin(o), event{stream: s})
		}
	}
}

func (s *stream) next() {
	s.queue[s.first] = operation{}
	if s.first++; s.first == len(s.queue) {
		s.queue, s.first = s.queue[:0], 0
	}
}

// begin scrambles the target of an operation that starts, and says how long it takes.
func (s *stream) begin(o *operation) time.Duration {
	d := s.driver
	overlap := o.kind == opCopy && o.to < o.from+o.bytes && o.from < o.to+o.bytes
	if !overlap {
		scramble(target(o), d.random.Uint64())
	}
	took := d.draw(d.options.DelayMin, d.options.DelayMax) + time.Duration(float64(o.bytes)/d.options.BytesPerSecond*1e9)
	return took + d.late(SlowCopy, callNone, s.context.device, s)
}

func target(o *operation) []byte { return bytesOf(o.toMemory, o.to, o.bytes) }

func bytesOf(m *memory, address, length uint64) []byte {
	if m == nil {
		return hostView(address, length)
	}
	return m.view(address, length)
}

// finish ends the operation that runs, unless its device is lost: then it never ends.
func (s *stream) finish() {
	if s.context.device.lost != cuda.Success || s.first == len(s.queue) {
		return
	}
	switch o := &s.queue[s.first]; o.kind {
	case opFill:
		fill(target(o), 0)
	default:
		move(target(o), bytesOf(o.fromMemory, o.from, o.bytes))
	}
	s.over(&s.queue[s.first])
	s.next()
	s.running = false
	s.kick()
}

// over lets go of the memory of an operation.
func (s *stream) over(o *operation) {
	for _, m := range [...]*memory{o.toMemory, o.fromMemory} {
		if m != nil {
			m.users--
		}
	}
	if o.kind == opCopy || o.kind == opFill {
		s.context.device.operations--
	}
}

// drop ends a stream with its context: what is on it does not happen.
func (s *stream) drop() {
	for i := s.first; i < len(s.queue); i++ {
		s.over(&s.queue[i])
	}
	s.queue, s.first = nil, 0
	delete(s.driver.streams, s.handle)
}
