package rdma

import "github.com/orbitte/orbitte/verbs"

// line is what transfers and grants do on one pair.
type line struct {
	asked     int     // requester: slices that hold a receive of the other side, until it says that they are ended
	blocked   uint64  // of the connection's first line: the last sweep in which somebody waited for its receives
	reserved  int     // source: slices that a receive is kept for
	listening int     // source: receives with the device
	hungry    *hunger // the last of those that wait for a place in the send queue
	hungriest *hunger // the first
	starved   bool    // true exactly while among those that wait for places in the send completion queue
}

// hunger is one slice's place among those that wait to post on a pair.
type hunger struct {
	eater  eater
	slice  int
	line   *line
	next   *hunger
	queued bool
}

// eater posts the work of its slices when the pair has a place for it.
type eater interface {
	// work is the next work of a slice; it counts as posted from here on. False: it has none any more.
	work(c *Connection, slice int) (verbs.Work, bool)
	// spilled takes back work that was certainly not posted.
	spilled(c *Connection, slice int, w *verbs.Work, err error)
	// more is true exactly when the slice has still more to post.
	more(slice int) bool
}

func (c *Connection) line(pair int) *line {
	if c.lines == nil {
		c.lines = make([]line, len(c.pairs))
	}
	return &c.lines[pair]
}

// queue puts a slice among those that wait on a pair; Pump lets them post.
func (c *Connection) queue(pair int, h *hunger, e eater, slice int) {
	if h.queued {
		return
	}
	l := c.line(pair)
	h.eater, h.slice, h.line, h.next, h.queued = e, slice, l, nil, true
	if l.hungry == nil {
		l.hungriest = h
	} else {
		l.hungry.next = h
	}
	l.hungry = h
}

// leave takes a slice out.
func (h *hunger) leave() {
	if !h.queued {
		return
	}
	h.queued = false
	l := h.line
	var before *hunger
	for at := l.hungriest; at != h; at = at.next {
		before = at
	}
	if before == nil {
		l.hungriest = h.next
	} else {
		before.next = h.next
	}
	if l.hungry == h {
		l.hungry = before
	}
}

// pumpBatch is how much one crossing posts at most.
const pumpBatch = 32

// count changes how many receives a source keeps and has posted on a pair. What it keeps and has not posted is promised
// places in the receive completion queue.
func (c *Connection) count(pair, reserved, listening int) {
	l := c.line(pair)
	before := max(0, l.reserved-l.listening)
	l.reserved += reserved
	l.listening += listening
	c.rail.promised += max(0, l.reserved-l.listening) - before
}

// pump posts for those who wait on a pair, in order, as far as its send queue and the completion queue have places. When
// the latter has none, pairs get them in the order in which they asked.
func (c *Connection) pump(pair int) {
	r := c.rail
	if len(r.starved) > 0 && !r.relieving {
		r.starve(c, pair)
		r.relieve()
		return
	}
	c.post(pair)
	if c.state == connectionOpen && c.line(pair).hungriest != nil && r.sends.Room() == 0 {
		r.starve(c, pair)
	}
}

// starve puts a pair behind those that wait for places in the send completion queue.
func (r *Rail) starve(c *Connection, pair int) {
	if l := c.line(pair); !l.starved && l.hungriest != nil {
		l.starved = true
		r.starved = append(r.starved, starved{c, pair})
	}
}

// relieve lets those post who wait for places that have come back: a completion was reaped, or its pair destroyed.
func (r *Rail) relieve() {
	if r.relieving {
		return
	}
	r.relieving = true
	for n := len(r.starved); n > 0 && r.sends.Room() > 0; n-- {
		s := r.starved[0]
		last := copy(r.starved, r.starved[1:])
		r.starved[last] = starved{}
		r.starved = r.starved[:last]
		s.c.line(s.pair).starved = false
		s.c.pump(s.pair)
	}
	r.relieving = false
}

// post posts what there is room for.
func (c *Connection) post(pair int) {
	u := &c.rails.upper
	works, eaters := u.works, u.eaters
	u.works, u.eaters = nil, nil
	if works == nil {
		works, eaters = make([]verbs.Work, 0, pumpBatch), make([]*hunger, 0, pumpBatch)
	}
	l := c.line(pair)
	for c.state == connectionOpen && l.hungriest != nil {
		room, _ := c.pairs[pair].Free()
		room = min(room, c.rail.sends.Room())
		works, eaters = works[:0], eaters[:0]
		for len(works) < min(room, pumpBatch) && l.hungriest != nil {
			h := l.hungriest
			h.leave()
			if w, ok := h.eater.work(c, h.slice); ok {
				works, eaters = append(works, w), append(eaters, h)
			}
			if h.eater.more(h.slice) {
				c.queue(pair, h, h.eater, h.slice)
			}
		}
		if len(works) == 0 {
			break
		}
		if err := c.PostSend(pair, works); err != nil {
			for i := posted(err); i < len(works); i++ {
				eaters[i].eater.spilled(c, eaters[i].slice, &works[i], err)
			}
		}
	}
	for i := range works[:cap(works)] {
		works[:cap(works)][i].Window = nil
	}
	u.works, u.eaters = works, eaters
}
