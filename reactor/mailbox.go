package reactor

import (
	"errors"
	"sync/atomic"
)

// ErrStopped is returned by Post after the loop was closed: nobody will receive the letter.
var ErrStopped = errors.New("reactor: the loop is closed and takes no more letters; the letter was not accepted and has had no effect")

// Recipient is whom a letter is for. Receive runs on the loop's thread, inside Turn (or on the
// goroutine that calls Close). From its start on the letter may be posted again.
type Recipient interface {
	Receive(*Letter, Instant)
}

// Letter is one piece of posted work. It is embedded in what is posted, so that the mailbox never
// refuses and never allocates. Its zero value is ready; it must not be copied after its first use
// and must stay alive until it was received. What the letter speaks about is the poster's: write it
// before Post, and guard what is written while the letter may be waiting.
type Letter struct {
	next      *Letter
	recipient Recipient
	waiting   atomic.Bool // true exactly from the Post that takes it until Receive starts
}

// Waiting says whether the letter was posted and not yet received. Any goroutine may ask.
func (m *Letter) Waiting() bool { return m.waiting.Load() }

// sealed takes the place of the newest letter once the mailbox accepts no more.
var sealed = new(Letter)

// mailbox is a stack that any goroutine pushes on and the loop takes as a whole. The loop turns what
// it took round, so letters arrive in the order they were pushed.
type mailbox struct {
	newest atomic.Pointer[Letter]
	oldest *Letter // taken and turned round, not yet received; the loop's own
}

// push adds a letter. It says whether the letter was added (false without an error: it was already
// waiting).
func (b *mailbox) push(m *Letter, r Recipient) (bool, error) {
	if r == nil {
		panic("reactor: Post needs a recipient")
	}
	if !m.waiting.CompareAndSwap(false, true) {
		return false, nil
	}
	m.recipient = r
	for {
		head := b.newest.Load()
		if head == sealed {
			m.recipient = nil
			m.waiting.Store(false)
			return false, ErrStopped
		}
		m.next = head
		if b.newest.CompareAndSwap(head, m) {
			return true, nil
		}
	}
}

// pending says whether a letter can be received.
func (b *mailbox) pending() bool {
	if b.oldest != nil {
		return true
	}
	head := b.newest.Load()
	return head != nil && head != sealed
}

// empty is true exactly when no letter waits and the mailbox is not sealed.
func (b *mailbox) empty() bool { return b.oldest == nil && b.newest.Load() == nil }

// collect takes what was pushed when nothing taken earlier is left. It is called once a turn, so a
// letter that is posted again while it is received waits for the next turn.
func (b *mailbox) collect() {
	if b.oldest != nil {
		return
	}
	head := b.newest.Load()
	if head == nil || head == sealed {
		return
	}
	b.append(b.newest.Swap(nil))
}

// seal refuses all later letters and keeps those that were accepted before.
func (b *mailbox) seal() {
	if head := b.newest.Swap(sealed); head != sealed {
		b.append(head)
	}
}

// append puts a taken stack, newest first, behind the letters that are still to be received.
func (b *mailbox) append(stack *Letter) {
	var list *Letter
	for stack != nil {
		following := stack.next
		stack.next = list
		list, stack = stack, following
	}
	end := &b.oldest
	for *end != nil {
		end = &(*end).next
	}
	*end = list
}

// next removes the oldest letter; nil when there is none. The letter may be posted again from here
// on.
func (b *mailbox) next() (*Letter, Recipient) {
	m := b.oldest
	if m == nil {
		return nil, nil
	}
	b.oldest = m.next
	r := m.recipient
	m.next, m.recipient = nil, nil
	m.waiting.Store(false)
	return m, r
}
