package verbs

import (
	"fmt"
	"sync/atomic"
)

// CompletionQueue is a completion queue that cannot overflow: a queue pair reserves a place for each work request that it
// may have outstanding, before it is made, or, of a queue whose places are shared (Share), for each one that it posts. It
// belongs to the one lane that polls it; only reservations come from other loops.
type CompletionQueue struct {
	context *Context
	channel *Channel // nil: only polled
	handle  QueueHandle
	entries int

	shared   int          // pairs that may share the places: one place is kept for the flush barrier of each; 0: none may
	sharers  atomic.Int64 // pairs that do
	reserved atomic.Int64 // places promised to pairs, or to their work
	refs     family       // pairs that complete here, once for each of their two queues
	pairs    map[PairNumber]*QueuePair
	sequence uint64 // generation of the newest work request that completes here
	armed    bool   // true exactly when an Arm succeeded and its event was not taken yet
	fenced   string // why its completions cannot be trusted; empty: they can
	counts   QueueCounts
	life     life
}

// QueueCounts says what a queue delivered. What is not Paid paid nobody.
type QueueCounts struct {
	Paid      uint64 // completions that ended the work they name
	Barriers  uint64 // flush barriers of draining pairs
	Malformed uint64 // an identity that was never given out, or of another kind of queue
	Foreign   uint64 // a queue pair that does not complete here
	Stale     uint64 // late or double: the work they name has ended before
	Mismatch  uint64 // success of another operation than the one that was posted
}

// CreateQueue makes a queue for entries completions, woken through a channel or, when that is nil, polled only.
func (c *Context) CreateQueue(entries int, h *Channel) (*CompletionQueue, error) {
	c.life.mustBeOpen(c.String(), "CreateQueue")
	if entries < 1 {
		panic(fmt.Sprintf("verbs: CreateQueue of %s with %d entries, want 1 or more", c, entries))
	}
	if limit := c.limits.QueueDepth; limit > 0 && entries > limit {
		return nil, &CreditError{Queue: "completion queue of " + c.info.Name, Asked: entries, Limit: limit}
	}
	var channel ChannelHandle
	if h != nil {
		channel = h.handle
	}
	handle, err := c.calls.CreateQueue(c.handle, entries, channel)
	if err != nil {
		return nil, err
	}
	q := &CompletionQueue{context: c, channel: h, handle: handle, entries: entries, pairs: map[PairNumber]*QueuePair{}}
	c.queues.live.Add(1)
	if h != nil {
		h.queues.live.Add(1)
		h.attached[handle] = q
	}
	return q, nil
}

func (q *CompletionQueue) String() string {
	return fmt.Sprintf("completion queue %#x of %s", uint64(q.handle), q.context.info.Name)
}

// Counts returns what the queue delivered so far.
func (q *CompletionQueue) Counts() QueueCounts { return q.counts }

// Reserved is how many places are promised, and of how many; any loop may ask.
func (q *CompletionQueue) Reserved() (used, limit int) {
	return int(q.reserved.Load() + q.sharers.Load()), q.entries
}

// Share lets pairs that are made with PairPlan.Shared share the places of the queue, as many pairs as this at most: each
// piece of work takes a place when it is posted and gives it back with its completion. One place is kept for the flush
// barrier of each pair, so that it can always be drained. It is called before the first pair is made.
func (q *CompletionQueue) Share(pairs int) {
	if pairs < 1 || pairs >= q.entries || q.shared != 0 || q.reserved.Load() != 0 {
		panic(fmt.Sprintf("verbs: Share of %s among %d pairs, want 1 to %d, once, before its first pair", q, pairs, q.entries-1))
	}
	q.shared = pairs
}

// Room is how many more pieces of work may be posted by the pairs that share the queue.
func (q *CompletionQueue) Room() int { return q.entries - q.shared - int(q.reserved.Load()) }

// reserve promises n places for work, from any loop.
func (q *CompletionQueue) reserve(n int) error {
	return promise(&q.reserved, n, q.entries-q.shared, q)
}

// admit promises the places of a pair before it is made.
func (q *CompletionQueue) admit(shared bool, depth int) error {
	if shared {
		return promise(&q.sharers, 1, q.shared, q)
	}
	return q.reserve(depth + 1)
}

// dismiss takes that back.
func (q *CompletionQueue) dismiss(shared bool, depth int) {
	if shared {
		q.sharers.Add(-1)
		return
	}
	q.reserved.Add(-int64(depth + 1))
}

func promise(used *atomic.Int64, n, limit int, q *CompletionQueue) error {
	for {
		now := used.Load()
		if now+int64(n) > int64(limit) {
			return &CreditError{Queue: q.String(), Asked: n, Used: int(now), Limit: limit}
		}
		if used.CompareAndSwap(now, now+int64(n)) {
			return nil
		}
	}
}

// Fence stops every pair that completes here: after an error of the queue, completions may be lost (SPEC R-17).
func (q *CompletionQueue) Fence(why string) {
	if q.fenced == "" {
		q.fenced = why
	}
	for _, p := range q.pairs {
		p.Fence(q.String() + ": " + why)
	}
}

// Fenced is why the queue is not trusted; empty: it is.
func (q *CompletionQueue) Fenced() string { return q.fenced }

// Touch fences what an asynchronous event names, if that is this queue or one of its pairs.
func (q *CompletionQueue) Touch(e AsyncEvent) bool {
	switch e.Kind.Reach() {
	case ReachQueue:
		if e.Queue == q.handle {
			q.Fence(e.Kind.String())
			return true
		}
	case ReachPair:
		for _, p := range q.pairs {
			if p.handle == e.Pair {
				p.Fence(e.Kind.String())
				return true
			}
		}
	}
	return false
}

// Arm asks for one event at the next completion. Completions that are there already raise none: poll until empty after
// arming, before blocking. It does nothing while the queue is armed, so that it costs a call only after an event.
func (q *CompletionQueue) Arm() error {
	if q.channel == nil {
		panic(fmt.Sprintf("verbs: Arm of %s which has no channel, want one", q))
	}
	if q.armed {
		return nil
	}
	if err := q.context.calls.Arm(q.handle); err != nil {
		return err
	}
	q.armed = true
	return nil
}

// Armed is true exactly when the next completion raises an event.
func (q *CompletionQueue) Armed() bool { return q.armed }

// Destroy ends the queue after its pairs: *BusyError while one is left; a refusal of the library is final. All events
// of the queue were taken by Channel.NextEvent, which acknowledges them, so that this does not wait.
func (q *CompletionQueue) Destroy() error {
	if done, err := q.life.ended(); done {
		return err
	}
	parents := []*family{&q.context.queues}
	if q.channel != nil {
		parents = append(parents, &q.channel.queues)
	}
	if left := busy(q.String(), q.refs.allKept(), Debt{"queues of pairs that complete here", q.refs.live.Load()}); left != nil {
		return q.life.wait(&q.context.book, left, parents...)
	}
	err := q.life.end(&q.context.book, q.String(), "ibv_destroy_cq", func() error { return q.context.calls.DestroyQueue(q.handle) }, parents...)
	if err == nil && q.channel != nil {
		delete(q.channel.attached, q.handle)
	}
	return err
}

// Retained is true exactly when the library refused to destroy it.
func (q *CompletionQueue) Retained() bool { return q.life.stage() == retained }
