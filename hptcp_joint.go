package orbitte

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/lanes/hptcp"
	"github.com/orbitte/orbitte/segments"
)

// joint is a run of neighbouring tasks that one transfer carries.
type joint struct {
	first, count int
	from, to     int // of the group's spans; none: the one task is one range
	size         uint64
	set          segments.Set  // of their local ranges
	pieces       []hptcp.Piece // that lanes share out among themselves; none: one lane carries all
}

// carrier carries out a group's tasks over HP-TCP. Everything is planned when the group is admitted, on the caller's
// goroutine, since sorting many ranges is no work for a lane; its memory is kept for the next group.
type carrier struct {
	group    *group
	transfer hptcp.Transfer
	team     team
	joints   []*joint
	used     int // of joints
	at       int // the joint at hand
	spans    []Span
	claims   []claim
	ranges   []segments.Range
	bits     []uint64
	own      ownCopy
	outcome  lanes.Outcome    // of the joint at hand, once it has ended,
	prefix   uint64           // what is in place of it whatever failed,
	begun    uint64           // and what was asked for (hptcp.Transfer)
	question *control.Inquiry // under way only after a data address that did not answer
}

// claim is a range that one task changes.
type claim struct {
	segments.Range
	task int
}

func newCarrier(g *group) *carrier {
	c := &carrier{group: g}
	c.transfer.Done = func(x *hptcp.Transfer) {
		if x.Share != nil {
			c.team.leaderEnded()
			return
		}
		c.ended(x.Outcome, x.Prefix, x.Begun)
	}
	c.team.carrier = c
	c.own.init(c)
	return c
}

// plan makes the joints of a group whose tasks are resolved.
func (c *carrier) plan(requests []Request) error {
	c.used, c.at, c.spans = 0, 0, c.spans[:0]
	tasks := c.group.tasks
	for i := 0; i < len(tasks); {
		if tasks[i].transport != TransportHPTCP {
			i++
			continue
		}
		k := i + 1
		for k < len(tasks) && joins(&tasks[i], &tasks[k]) {
			k++
		}
		j, err := c.join(requests, i, k)
		if err != nil {
			return err
		}
		c.divide(j)
		i += j.count
	}
	return nil
}

// joins is true exactly when a task may share the first one's transfer, as far as each can be seen alone.
func joins(first, t *task) bool {
	return t.transport == TransportHPTCP && t.segment == first.segment && t.segment.peer != nil && t.direction == first.direction &&
		t.local == first.local && t.region == first.region && !t.atomic && !first.atomic && t.size > 0 && first.size > 0
}

// join makes a joint of as many of the tasks from first to end as change different bytes: whatever order their pieces
// come in, it is as if the tasks had run one after the other.
func (c *carrier) join(requests []Request, first, end int) (*joint, error) {
	j := c.next(first)
	base := len(c.spans)
	for {
		if err := c.list(requests, first, end); err != nil {
			return nil, err
		}
		clash := c.clash(first, end)
		if clash == end {
			break
		}
		end, c.spans = clash, c.spans[:base]
	}
	j.count, j.from, j.to, j.size = end-first, base, len(c.spans), 0
	for i := first; i < end; i++ {
		j.size += c.group.tasks[i].size
	}
	t := &c.group.tasks[first]
	if j.count == 1 && !t.scattered || j.to == j.from { // without a list
		j.to, c.spans = j.from, c.spans[:j.from]
		return j, nil
	}
	if t.segment.peer == nil {
		return j, nil // a copy in this process leases each range by itself
	}
	if t.atomic && t.direction == lanes.Write {
		if err := hptcp.AtomicWriteFits(c.spans[j.from:j.to]); err != nil {
			return nil, requestError(first, &requests[first], err)
		}
	}
	c.localRanges(&requests[first], j)
	return j, j.set.Fill(t.local, c.ranges)
}

// divide cuts a joint into pieces for several lanes, if it is large enough for that. Ranges that overlap are none of theirs:
// two lanes would write the same bytes at the same time.
func (c *carrier) divide(j *joint) {
	e, t := c.group.engine, &c.group.tasks[j.first]
	j.pieces = j.pieces[:0]
	each := e.hptcp.endpoint.ChunkBytesMax
	if len(e.runners) == 1 || t.segment.peer == nil || t.atomic || j.size < piecesMin*each || j.from < j.to && j.set.Bytes() < j.size {
		return
	}
	spans := c.spans[j.from:j.to]
	if j.from == j.to {
		spans = nil
	}
	j.pieces = hptcp.Cut(j.pieces, spans, j.size, each)
}

// next is a joint that begins with this task.
func (c *carrier) next(first int) *joint {
	if c.used == len(c.joints) {
		c.joints = append(c.joints, &joint{})
	}
	j := c.joints[c.used]
	c.used++
	j.first = first
	return j
}

// list appends the ranges of the tasks.
func (c *carrier) list(requests []Request, first, end int) error {
	part := c.spans[len(c.spans):] // so that nothing joins what another joint has
	for i := first; i < end; i++ {
		t, r := &c.group.tasks[i], &requests[i]
		switch {
		case !t.scattered && t.size > 0:
			part = hptcp.Join(part, Span{Local: t.localOffset, Remote: t.offset, Length: t.size})
		case t.scattered:
			if n := len(c.spans) + len(part) + r.ranges(); n > requestRangesMax {
				return requestError(i, r, tooManyRanges(r.ranges(), n-r.ranges()))
			}
			part = r.expand(part, r.Local-t.local.Address(), t.offset-(t.remote-r.Remote))
		}
	}
	if len(c.spans) == 0 {
		c.spans = part
	} else {
		c.spans = append(c.spans, part...)
	}
	return nil
}

// ranges is how many ranges a request names.
func (r *Request) ranges() int {
	switch {
	case r.Pages != nil:
		return len(r.Pages.Local)
	case r.Strides != nil:
		return int(min(r.Strides.Count, requestRangesMax+1))
	}
	return len(r.Spans)
}

// clash is the first task that must not run beside one before it: both change a byte, or the one may read, in memory
// that two engines of this process share, what the other one changes (SPEC M-9). end: there is none.
func (c *carrier) clash(first, end int) int {
	if end-first < 2 {
		return end
	}
	c.claims = c.claims[:0]
	var local, remote segments.Range
	for i := first; i < end; i++ {
		t := &c.group.tasks[i]
		l, r := t.localRange(), t.remoteRange()
		if local, remote = hull(local, l), hull(remote, r); local.Overlaps(remote) {
			return max(i, first+1)
		}
		if t.direction == lanes.Read {
			r = l
		}
		c.claims = append(c.claims, claim{r, i})
	}
	order := func(a, b claim) int { return cmp.Or(cmp.Compare(a.Start, b.Start), a.task-b.task) }
	if !slices.IsSortedFunc(c.claims, order) {
		slices.SortFunc(c.claims, order)
	}
	reach, who := c.claims[0].End(), c.claims[0].task
	for _, x := range c.claims[1:] {
		if x.Start < reach {
			end = min(end, max(x.task, who))
		}
		if x.End() > reach {
			reach, who = x.End(), x.task
		}
	}
	return end
}

// hull is the smallest range that has both in it; an empty one has nothing.
func hull(a, b segments.Range) segments.Range {
	switch {
	case a.Empty():
		return b
	case b.Empty():
		return a
	}
	start := min(a.Start, b.Start)
	return segments.Range{Start: start, Length: max(a.End(), b.End()) - start}
}

// localRanges lists the joint's local ranges for its set, in rising order where that is cheap.
func (c *carrier) localRanges(r *Request, j *joint) {
	c.ranges = c.ranges[:0]
	if j.count == 1 && r.Pages != nil && c.mark(r.Pages, r.Local-c.group.tasks[j.first].local.Address()) {
		return
	}
	c.ranges = slices.Grow(c.ranges, j.to-j.from)
	for i := j.from; i < j.to; i++ {
		s := &c.spans[i]
		c.ranges = append(c.ranges, segments.Range{Start: s.Local, Length: s.Length})
	}
}

// mark sorts pages by a bit for each: far cheaper than comparing them, unless they lie thinly. False: they do, or are in
// order already.
func (c *carrier) mark(p *Pages, base uint64) bool {
	low, high := slices.Min(p.Local), slices.Max(p.Local)
	words := int(high-low)/64 + 1
	if words > 4*len(p.Local) || slices.IsSorted(p.Local) {
		return false
	}
	c.bits = append(c.bits[:0], make([]uint64, words)...)
	for _, n := range p.Local {
		c.bits[(n-low)/64] |= 1 << ((n - low) % 64)
	}
	for n := 0; n < words*64; {
		n = c.run(p.Size, base+uint64(low)*p.Size, n)
	}
	return true
}

// run lists the next pages without a gap from number n on, where start is page 0, and says where they end.
func (c *carrier) run(size, start uint64, n int) int {
	first := c.find(n, 0)
	after := c.find(first, ^uint64(0))
	if first < after {
		c.ranges = append(c.ranges, segments.Range{Start: start + uint64(first)*size, Length: uint64(after-first) * size})
	}
	return after
}

// find is the next bit from n on that differs from those of invert.
func (c *carrier) find(n int, invert uint64) int {
	for ; n < len(c.bits)*64; n = (n/64 + 1) * 64 {
		if w := (c.bits[n/64] ^ invert) >> (n % 64); w != 0 {
			return n + bits.TrailingZeros64(w)
		}
	}
	return n
}
