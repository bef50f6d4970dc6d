package control

import (
	"sync/atomic"

	"github.com/orbitte/orbitte/budgets"
)

// Message is one notification in the inbox.
type Message struct {
	Name, Text string
	count      budgets.Charge
	bytes      budgets.Charge
	next       *Message
}

// Inbox is an engine's bounded queue of notifications (SPEC N-2, N-4). Room is reserved before a
// body is taken. Any goroutine may use it; nothing blocks.
type Inbox struct {
	count, bytes *budgets.Budget
	newest       atomic.Pointer[Message]
	arrived      chan struct{}
}

// NewInbox makes an inbox whose messages, and bodies under way, are charged to the two budgets.
func NewInbox(count, bytes *budgets.Budget) *Inbox {
	return &Inbox{count: count, bytes: bytes, arrived: make(chan struct{}, 1)}
}

// Reserve charges room for one message of n bytes; nil when there is none.
func (b *Inbox) Reserve(n uint64) (*Message, error) {
	count, err := b.count.Take(1)
	if err != nil {
		return nil, err
	}
	bytes, err := b.bytes.Take(int64(n))
	if err != nil {
		count.Repay()
		return nil, err
	}
	return &Message{count: count, bytes: bytes}, nil
}

// Release gives the room of a message back whose body never came.
func (m *Message) Release() {
	m.count.Repay()
	m.bytes.Repay()
}

// Put makes a reserved, complete message visible.
func (b *Inbox) Put(m *Message) {
	for {
		m.next = b.newest.Load()
		if b.newest.CompareAndSwap(m.next, m) {
			break
		}
	}
	select {
	case b.arrived <- struct{}{}:
	default:
	}
}

// Drain takes everything in one step, in the order of Put, and gives its room back: concurrent
// callers get disjoint messages.
func (b *Inbox) Drain() []Message {
	var n int
	var oldest *Message
	for m := b.newest.Swap(nil); m != nil; n++ {
		next := m.next
		m.next, oldest = oldest, m
		m = next
	}
	if n == 0 {
		return nil
	}
	drained := make([]Message, 0, n)
	for m := oldest; m != nil; m = m.next {
		drained = append(drained, Message{Name: m.Name, Text: m.Text})
		m.Release()
	}
	return drained
}

// Arrived is told after a Put that the inbox is not empty; it holds at most one word.
func (b *Inbox) Arrived() <-chan struct{} { return b.arrived }
