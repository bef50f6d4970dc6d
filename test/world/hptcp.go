package world

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/lanes/hptcp"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/test/faults"
)

const (
	// dataPort is where every engine with HP-TCP takes data.
	dataPort = port + 1
	// closedEvery: of the registrations of such an engine so many-th does not opt in.
	closedEvery = 7
)

// hurry gives an engine that is about to start its HP-TCP.
func (l *life) hurry(c *orbitte.Config) {
	own := l.slot.config
	if !own.Bool(faults.HPTCP) {
		return
	}
	chunk := uint64(own.Get(faults.ChunkBytes))
	credit := uint64(own.Get(faults.CreditBytes))
	if chunk == 0 { // the default may be more than the credit
		chunk = credit
	}
	if limit := c.Limits.PayloadBytes; limit > 0 {
		chunk = min(chunk, limit)
	}
	c.HPTCP = &orbitte.HPTCPConfig{
		Bind: netip.AddrPortFrom(l.slot.host, dataPort).String(), Streams: own.Int(faults.DataStreams), ChunkBytes: chunk,
		InFlightBytes: max(credit, chunk), Checksums: own.Bool(faults.Checksums),
		Limits: orbitte.HPTCPLimits{Streams: own.Int(faults.DataSlots)},
	}
}

// hurried is true exactly when the life serves and uses HP-TCP.
func (l *life) hurried() bool { return l.slot.config.Bool(faults.HPTCP) }

// opted says whether a registration of that name opts in.
func (l *life) opted(name int) bool { return l.hurried() && name%closedEvery != 0 }

// overHPTCP makes a request one over HP-TCP. To the engine itself it is a copy in the process, without pages: each would
// be leased by itself.
func (o *op) overHPTCP(q faults.Request, request *orbitte.Request) {
	own := o.segment.peer == o.segment.life
	request.Transport, request.Atomic = orbitte.TransportHPTCP, q.Atomic != 0
	o.lined, o.fast, o.direct = !own, q.Length > 0 && !own, q.Atomic == 0
	if q.Page == 0 || own || q.Length/q.Page == 0 || q.Length/q.Page > pagesMax {
		return
	}
	o.page = q.Page
	whole := q.Length / q.Page
	local, remote := make([]uint32, whole), make([]uint32, whole)
	for i := range whole {
		local[i], remote[i] = uint32(i), uint32(whole-1-i)
	}
	if rest := q.Length - whole*q.Page; rest > 0 {
		request.Spans = hptcp.Pages(nil, 0, local, 0, remote, uint64(q.Page))
		request.Spans = append(request.Spans, orbitte.Span{Local: uint64(whole * q.Page), Remote: uint64(whole * q.Page), Length: uint64(rest)})
		return
	}
	request.Pages = &orbitte.Pages{Size: uint64(q.Page), Local: local, Remote: remote}
}

// pagesMax is what an Atomic WRITE can have for sure.
const pagesMax = 200

// arrange is what the destination is to hold, for what the source holds.
func (o *op) arrange(content []byte) []byte {
	if o.page == 0 {
		return content
	}
	moved, whole := slices.Clone(content), o.length/o.page
	for i := range whole {
		copy(moved[i*o.page:][:o.page], content[(whole-1-i)*o.page:])
	}
	return moved
}

// cut decides which ops of a submission may be carried by more than one request on the wire: those leave the source, and
// come to the destination, at different moments, as parts of a batch do.
func (s *submission) cut() {
	together := 0
	for _, o := range s.ops {
		if o.fast && o.direct {
			together++
		}
	}
	for _, o := range s.ops {
		if !o.within() { // it is refused
			continue
		}
		chunk := o.local.life.chunk()
		if c := o.remote.life.chunk(); c > 0 && (chunk == 0 || c < chunk) {
			chunk = c
		}
		o.split = o.fast && (o.direct && together > 1 || (o.direct || !o.write) && chunk > 0 && o.length > chunk) || o.slotted && o.length > o.remote.life.slotBytes() || o.walks()
		if o.split {
			o.seen, o.unseen = make([]bool, o.length), o.length
			o.look()
		}
	}
}

// chunk is the life's largest chunk; 0: more than any request of a script.
func (l *life) chunk() int {
	c, payload := l.slot.config.Int(faults.ChunkBytes), l.slot.config.Int(faults.PayloadBytes)
	if c == 0 {
		c = l.slot.config.Int(faults.CreditBytes)
	}
	if payload > 0 && (c == 0 || payload < c) {
		return payload
	}
	return c
}

// glance notes which bytes of a split op's destination have held what they should.
func (o *op) glance() {
	for i, some := range o.shown.of(o.to.shadow[o.toAt:o.toAt+o.length], o.legal) {
		if some && !o.seen[i] {
			o.seen[i] = true
			o.unseen--
		}
	}
	o.matched = o.unseen == 0
}

// lapped gives a split op the bytes that others covered in the step at hand.
func (o *op) lapped(free []bool) {
	if o.matched || len(o.seen) != len(free) {
		return
	}
	for i, some := range free {
		if some && !o.seen[i] {
			o.seen[i] = true
			o.unseen--
		}
	}
	o.matched = o.unseen == 0
}

// mended says whether a split op explains the open changes: whole, if its destination is placed at once.
func (o *op) mended(m *memory, open, free []bool) bool {
	if o.direct {
		return o.patched(open[o.toAt:])
	}
	return o.pieced(m.data[o.toAt:o.toAt+o.length], free[o.toAt:])
}

// beneath is what a split op left: what stands there, and where a later one of the same step has covered it with what cannot
// be its own, what it would have brought last.
func (o *op) beneath(data []byte, free []bool) []byte {
	content, last := bytes.Clone(data[:o.length]), o.legal[len(o.legal)-1]
	for i, may := range o.mays() {
		if free[i] && !may {
			content[i] = last[i]
		}
	}
	return content
}

// patched says whether every open change is that of some legal content: pieces of a split op come from different moments.
func (o *op) patched(open []bool) bool {
	for i, may := range o.mays() {
		if open[i] && !may {
			return false
		}
	}
	return true
}

// Listen (reactor.Kernel) notes which listener takes data.
func (d *door) Listen(a netip.AddrPort, o reactor.SocketOptions) (reactor.Descriptor, netip.AddrPort, error) {
	descriptor, bound, err := d.Kernel.Listen(a, o)
	if err == nil && a.Port() == dataPort {
		d.life.dataListener, d.life.listens = descriptor, true
	}
	return descriptor, bound, err
}

// patchwork explains what several ops have left of each other that come in pieces: each byte that is still open must be one
// that some of them may have written there. One that ended early may have covered a part of another one, or the reverse.
func (m *memory) patchwork(done []*op, open, free []bool) (found []*op) {
	for _, o := range m.targets {
		if !o.strewn() || !o.direct || slices.Contains(done, o) {
			continue
		}
		wrote := false
		for i, may := range o.mays() {
			if at := o.toAt + i; (open[at] || free[at]) && may {
				wrote = wrote || open[at]
				open[at], free[at] = false, true
			}
		}
		if wrote {
			o.content = slices.Clone(m.data[o.toAt : o.toAt+o.length])
			found = append(found, o)
		}
	}
	return found
}

// retouched finds an op that comes in pieces and has brought its last one, of which another one has covered a part in the
// same step, and left there what stood there before.
func (m *memory) retouched(o *op) {
	if o.matched || o.split || !o.strewn() || !o.direct {
		return
	}
	free := make([]bool, len(m.data))
	m.untraced(o, free)
	if !slices.Contains(free[o.toAt:o.toAt+o.length], true) {
		return
	}
	for _, content := range o.legal {
		if fits(content, m.data[o.toAt:], free[o.toAt:]) {
			m.life.run.count("blind: covered in the same step")
			o.matched = true
			return
		}
	}
}

// spoil notes that a submission has run out of time, or was cancelled: the data streams to its peers may end with it, and
// with them requests of others.
func (s *submission) spoil() {
	s.life.impatient = true
	if s.life.spoiled == nil {
		s.life.spoiled = map[*life]bool{}
	}
	for _, o := range s.ops {
		if o.lined {
			s.life.spoiled[o.segment.peer] = true
		}
	}
}

// beside says whether another submission to the same peer explains that a stream was ended on its behalf.
func (r *run) beside(s *submission, err error) bool {
	o := s.failedOp(err)
	if o == nil || !errors.Is(err, hptcp.ErrBesides) {
		return false
	}
	for _, other := range s.life.open {
		if other.deadline > 0 && r.net.Now() >= other.deadline { // its end may be told later
			other.spoil()
		}
	}
	return s.life.spoiled[o.segment.peer]
}
