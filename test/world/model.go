package world

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/reactor"
)

// memory is one memory object of one life, and what the model says it holds.
type memory struct {
	name    int
	life    *life
	object  *orbitte.Memory
	data    []byte // the object itself, or what look has copied of it
	shadow  []byte // as it was when last looked at
	targets []*op  // that may change it: in flight, or of unknown effect
	sources []*op  // in flight, whose bytes come from it
	closed  bool
	vault   *vault // a driver whose devices reach it; nil: none
	gpu     bool   // it is on one of them
	ordinal int    // which
	seen    []byte // what is visible of it, where writes of network devices need a flush for that; nil: all
}

// op is one request of a submission in flight, or one whose effect is not known.
type op struct {
	number     uint64
	submission *submission
	segment    *segment
	index      int
	write      bool
	local      *memory
	remote     *memory
	from, to   *memory // source and destination of the bytes
	fromAt     int
	toAt       int
	length     int
	direct     bool            // the destination is placed directly: it may change in parts
	rdma       bool            // it is carried by devices: parts come in any order
	lined      bool            // its request goes over a data stream of HP-TCP, also if it asks for no byte
	fast       bool            // it is carried by HP-TCP: the same
	slotted    bool            // it goes through slots of the peer's: the same
	ended      reactor.Instant // once it is over
	split      bool            // by several requests on the wire, each a matter of its own
	page       int             // its pages of that size arrive in reverse order; 0: none
	seen       []bool          // of a split one: the bytes of the destination that have held what they should
	unseen     int             // how many have not
	shown      known           // of a split one, in the shadow of its destination
	could      known           // in its destination
	legal      [][]byte
	matched    bool    // the destination held one of the legal contents whole at some moment since submission
	touched    bool    // a change was seen that nothing but this op explains
	certain    bool    // touched, and the others alone do not explain all changes of that step
	content    []byte  // and is this content
	loose      bool    // its source changed too often in one step: each byte may come from another one of the legal contents
	many       bool    // there are more than legalMax of them
	over       bool    // its end was told
	frames     *stream // on which its frame went out; nil: not yet
	rank       uint64  // of that frame
	alike      bool    // a frame went out that may be its own or that of another op in flight
}

// String tells which request of which line of the history it is: that of a batch, or of the transfer of an engine that
// was carried out at that time.
func (o *op) String() string {
	what, s := "read", o.submission
	if o.write {
		what = "write"
	}
	if s.name != 0 {
		return fmt.Sprintf("%s %d of batch %d", what, o.index, s.name)
	}
	return fmt.Sprintf("%s %d of the transfer of %v at %v", what, o.index, s.life, time.Duration(s.started-s.life.run.begin))
}

// submission is one call that moves bytes, synchronous or not.
type submission struct {
	life     *life
	batch    *orbitte.Batch // nil: synchronous
	name     int            // of the batch
	ops      []*op
	note     *note
	deadline reactor.Instant
	within   reactor.Instant // when it must have succeeded; 0: no such promise
	started  reactor.Instant
	bytes    uint64
	ended    bool
	freed    bool
	kept     bool // it ended without a proof that its memory is quiet
	steps    int  // of its engine since the deadline
	rests    int  // rounds in which its engine rested since then
}

// start takes the content of the sources and looks at the destinations.
func (o *op) start() {
	o.from.sources = append(o.from.sources, o)
	o.to.targets = append(o.to.targets, o)
	o.observe()
}

// observe adds what the source holds now to the legal contents.
func (o *op) observe() {
	now := o.from.shadow[o.fromAt : o.fromAt+o.length]
	o.admit(now)
}

// legalMax bounds how many contents of a source are remembered for one request. Only crowds at the same few bytes of a
// memory object that copies onto itself come near it.
const legalMax = 512

func (o *op) admit(content []byte) {
	if o.many {
		return
	}
	content = o.arrange(content)
	for _, known := range o.legal {
		if bytes.Equal(known, content) {
			return
		}
	}
	if len(o.legal) == legalMax { // the model has lost count; what the op does is not looked at any more
		o.submission.life.run.count("blind: too many contents")
		o.many, o.matched = true, true
	}
	if o.many {
		return
	}
	o.legal = append(o.legal, bytes.Clone(content))
	o.lookFor(o.legal[len(o.legal)-1])
}

// look notes whether the destination holds a legal content.
func (o *op) look() { o.lookFor(o.legal...) }

// lookFor does so for some of them: it was looked for the others when the destination last changed.
func (o *op) lookFor(contents ...[]byte) {
	if o.matched {
		return
	}
	if o.split {
		o.glance()
		return
	}
	held := o.to.shadow[o.toAt : o.toAt+o.length]
	for _, content := range contents {
		if bytes.Equal(held, content) {
			o.matched = true
			return
		}
	}
	if o.loose && o.touched && o.pieced(held, make([]bool, o.length)) { // what explains its changes must do for the whole of them
		o.submission.life.run.count("blind: many changes at the source")
		o.matched = true
	}
}

// leave ends what the op may do. One of unknown effect goes on as a target with what was legal until now.
func (o *op) leave(unknown bool) {
	o.over, o.ended = true, o.submission.life.run.net.Now()
	o.from.sources = without(o.from.sources, o)
	if !unknown {
		o.to.targets = without(o.to.targets, o)
	}
}

func without(list []*op, o *op) []*op {
	if i := slices.Index(list, o); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}

// pieces says whether the destination may be seen with a part of the payload: placed directly, or copied in several turns.
func (o *op) pieces() bool { return o.direct || o.length > lanes.SliceBytes }

// apart says whether the op goes another way than the control stream.
func (o *op) apart() bool { return o.rdma || o.fast || o.slotted }

func (o *op) overlaps(first, end int) bool { return o.toAt < end && first < o.toAt+o.length }

// change compares a memory with the model and explains what is different. The answer is the first byte that
// nothing explains, or -1.
func (m *memory) change() int {
	if bytes.Equal(m.data, m.shadow) {
		return -1
	}
	open := make([]bool, len(m.data)) // changed and not explained yet
	first, end := len(m.data), 0
	for i := range m.data {
		if m.data[i] != m.shadow[i] {
			open[i] = true
			first, end = min(first, i), i+1
		}
	}
	changed := slices.Clone(open)
	done, free := m.takeApart(nil, open)
	for i := first; i < end; i++ {
		if open[i] {
			return i
		}
	}
	changes := make([]change, len(done))
	for i, o := range done {
		changes[i] = change{o, o.content}
	}
	for _, o := range done {
		o.touched, o.certain = true, o.certain || m.needs(o, changed)
		m.retouched(o)
	}
	m.settle(append(changes, m.hidden(done, free)...))
	return -1
}

// change is what one op did, or may have done, in a step.
type change struct {
	op      *op
	content []byte
}

// hidden finds those whose content a later change of the same step has covered, in part or whole, so that nobody can
// have seen it: what is left of it must be theirs. They have the benefit.
func (m *memory) hidden(done []*op, free []bool) (found []change) {
	for _, o := range m.targets {
		if o.over || slices.Contains(done, o) || !slices.Contains(free[o.toAt:o.toAt+o.length], true) {
			continue
		}
		if o.split && o.begun() { // one of its requests may have come right before: of each nobody sees more than that
			o.lapped(free[o.toAt : o.toAt+o.length])
		}
		for _, content := range o.legal {
			if fits(content, m.data[o.toAt:], free[o.toAt:]) {
				o.matched = true
				found = append(found, change{o, content})
				if len(found) > tangledMin { // one of each must do: they multiply
					break
				}
			}
		}
	}
	return found
}

// fits says whether content stands in data, except where that is free.
func fits(content, data []byte, free []bool) bool {
	for i := range content {
		if content[i] != data[i] && !free[i] {
			return false
		}
	}
	return true
}

// show lets the readers of a memory see what it holds now, before anybody has explained it.
func (m *memory) show() {
	if m.closed || len(m.sources) == 0 || bytes.Equal(m.data, m.shadow) {
		return
	}
	for _, o := range m.sources {
		o.admit(m.data[o.fromAt : o.fromAt+o.length])
	}
}

// hiddenBy says whether later ones may have covered what the op left, in the step in which it ended.
func (o *op) hiddenBy() bool {
	if o.length > 0 && !o.to.closed && o.local.life == o.remote.life && o.local.life.copies >= tangledMin {
		o.submission.life.run.count("blind: tangled copies") // what stood there between two of them, nobody saw
		return true
	}
	return o.overlaid()
}

// explains says by which legal content an open change is the op's, nil when it is not: its range holds a legal content, whole if the range is placed
// at once, and up to the last change if it is placed directly or copied in several turns, in the order in which the
// pages travel.
func (o *op) explains(m *memory, open, free []bool) []byte {
	last := -1
	for i := o.toAt; i < o.toAt+o.length; i++ {
		if open[i] {
			last = i - o.toAt
		}
	}
	if last < 0 {
		return nil
	}
	end := o.length
	if o.pieces() {
		end = last + 1
	}
	for _, content := range o.legal {
		if fits(content[:end], m.data[o.toAt:], free[o.toAt:]) {
			return content
		}
		if o.strewn() && o.pieces() && scattered(content, m.data[o.toAt:], open[o.toAt:]) {
			return content
		}
	}
	if o.split && o.mended(m, open, free) {
		return o.beneath(m.data[o.toAt:], free[o.toAt:])
	}
	if o.many || o.loose && o.pieced(m.data[o.toAt:o.toAt+end], free[o.toAt:]) {
		m.life.run.count("blind: many changes at the source")
		return bytes.Clone(m.data[o.toAt : o.toAt+o.length])
	}
	return nil
}

// pieced says whether each byte that is not free stands in some legal content.
func (o *op) pieced(data []byte, free []bool) bool {
	for i := range data {
		if !free[i] && !slices.ContainsFunc(o.legal, func(content []byte) bool { return content[i] == data[i] }) {
			return false
		}
	}
	return true
}

// settle makes the new content the model's. Several changes of one step may have been seen one by one by those
// who read from this memory in the same step.
func (m *memory) settle(done []change) {
	if len(done) > 1 {
		m.between(done)
	}
	copy(m.shadow, m.data)
	for _, o := range m.targets {
		o.look()
	}
	for _, o := range m.sources {
		o.observe()
	}
}

// between shows the readers of a memory what it may have held inside the step: after each change alone, and after
// the changes in their order.
func (m *memory) between(done []change) {
	before := bytes.Clone(m.shadow)
	forward := bytes.Clone(m.shadow)
	show := func(whole []byte) {
		copy(m.shadow, whole)
		for _, o := range m.sources {
			o.observe()
		}
		for _, o := range m.targets {
			o.look()
		}
	}
	for _, o := range m.sources { // there are more orders than anybody can try
		o.loose = o.loose || len(done) >= tangledMin
	}
	for _, c := range slices.Backward(done) {
		alone := bytes.Clone(before)
		copy(alone[c.op.toAt:], c.content)
		show(alone)
		copy(forward[c.op.toAt:], c.content)
		show(forward)
	}
	copy(m.shadow, before)
}

// imagine shows the readers of a memory what it would hold if one of those who may change it, or two after each other,
// had done so in this step.
func (m *memory) imagine() {
	before := bytes.Clone(m.shadow)
	show := func(whole []byte) {
		for _, reader := range m.sources {
			reader.admit(whole[reader.fromAt : reader.fromAt+reader.length])
		}
	}
	for _, o := range m.targets {
		if len(o.legal) > imagineMax {
			continue
		}
		for _, content := range slices.Clone(o.legal) {
			one := bytes.Clone(before)
			copy(one[o.toAt:], content)
			show(one)
			for _, p := range m.targets {
				if p == o || len(m.targets) > imagineMax || len(p.legal) > imagineMax {
					continue
				}
				for _, other := range slices.Clone(p.legal) {
					two := bytes.Clone(one)
					copy(two[p.toAt:], other)
					show(two)
				}
			}
		}
	}
}

// imagineMax bounds how many ops, and contents of each, are tried.
const imagineMax = 8

// tangledMin is from how many copies on a step may leave what the model cannot take apart.
const tangledMin = 3

// tangled accepts what several copies of an engine to itself have left in one step: an engine that was stopped may
// have many in line, each of which reads what others wrote before it, and nobody saw what stood there in between. All that
// the model can still say is that every changed byte lies where one of them may write. How often that was so is
// counted ("blind: tangled copies").
func (m *memory) tangled() bool {
	copies := m.life.ownCopies()
	if len(copies) < tangledMin {
		return false
	}
	for i := range m.data {
		if m.data[i] != m.shadow[i] && !slices.ContainsFunc(copies, func(o *op) bool { return o.to == m && o.overlaps(i, i+1) }) {
			return false
		}
	}
	m.settle(nil)
	for _, o := range copies {
		o.matched, o.touched = true, true
	}
	return true
}

// ownCopies are the requests of the engine to itself that are in flight.
func (l *life) ownCopies() (copies []*op) {
	for _, m := range l.memories {
		for _, o := range m.targets {
			if !o.over && o.local.life == o.remote.life {
				copies = append(copies, o)
			}
		}
	}
	return copies
}

// busy is true exactly when an op in flight reads or writes a part of the range.
func (m *memory) busy(at, length int, reads bool) bool {
	for _, o := range m.targets {
		if o.overlaps(at, at+length) {
			return true
		}
	}
	if !reads {
		return false
	}
	for _, o := range m.sources {
		if o.fromAt < at+length && at < o.fromAt+o.length {
			return true
		}
	}
	return false
}

// write is the program's own access: model and memory change together.
func (m *memory) write(at, length int, stamp uint64) {
	fill(m.data[at:at+length], stamp)
	m.store(at, length)
	m.settle(nil)
}

// fill writes bytes that depend on the stamp and on their place, so that a part of them tells whose they are.
func fill(b []byte, stamp uint64) {
	state := stamp*0x9e3779b97f4a7c15 + 0x6a09e667f3bcc909
	for i := range b {
		if i%8 == 0 {
			state ^= state >> 30
			state *= 0xbf58476d1ce4e5b9
			state ^= state >> 27
			state *= 0x94d049bb133111eb
			state ^= state >> 31
		}
		b[i] = byte(state >> (i % 8 * 8))
	}
}

// note is one notification and its fate.
type note struct {
	name       int
	from       *life
	to         []*life
	text       orbitte.Notification
	submission *submission // whose data it follows; nil: none
	started    int         // place in the run's order of starts and ends
	delivered  int         // the same, of the receipt; 0: none
	status     orbitte.NotificationStatus
	effect     orbitte.Effect
	ended      bool
	wasNone    bool // the first attempt had no effect
	received   map[*life]int
}

// held is what the submission certainly has charged: while a notification is under way its requests may have ended.
func (s *submission) held() uint64 {
	if s.note != nil {
		return uint64(len(s.note.text.Name) + len(s.note.text.Message))
	}
	return s.bytes
}

// difference says which bytes changed, and who might have done it.
func (m *memory) difference() string {
	first, last, count := -1, 0, 0
	for i := range m.data {
		if m.data[i] != m.shadow[i] {
			if first < 0 {
				first = i
			}
			last, count = i, count+1
		}
	}
	text := fmt.Sprintf("%d bytes from %d to %d", count, first, last)
	for _, o := range m.targets {
		text += fmt.Sprintf("; %v may change %d bytes at %d", o, o.length, o.toAt)
	}
	return text
}
