package control

import (
	"bytes"
	"testing"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// loan is a work that lends what it sends, and keeps what the system left of it only when it is told to.
type loan struct {
	question
	lent  []byte
	short []int // bytes that Short said
	sent  []int
}

func (l *loan) start(c *Channel) {
	l.channel = c
	c.Run(&l.exchange, l, reactor.Forever)
}

func (l *loan) Begin(c *Channel) {
	l.begun++
	c.SendLent(l.lent, l)
}

func (l *loan) Short(n int) { l.short = append(l.short, n) }

func (l *loan) Sent(n int) {
	l.sent = append(l.sent, n)
	l.question.Sent(n)
}

// keep copies the rest, spoils what was lent, and goes on.
func (l *loan) keep() {
	kept := bytes.Clone(l.lent)
	clear(l.lent)
	l.channel.Instead(kept)
}

func text(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(1 + i%250)
	}
	return b
}

// What is lent is the system's only while it takes at once. The rest is sent from another place, once it is said, and meanwhile the
// stream is nobody else's. The sender is told of all bytes at the end, once.
//
// proves T-1, T-3
func TestLentMemoryIsTheStreamsOnlyAtOnce(t *testing.T) {
	const size = 1000
	for _, room := range []int{1, size - 1, size, size + 1} {
		r := rigWith(t, 1, simkernel.WorldOptions{Buffer: room})
		n := r.node(nodeHost, 1)
		p := r.listen()
		c := n.channel(p.address)
		l := &loan{lent: text(size)}
		l.start(c)
		w := p.accept()
		r.pass(soon)
		if room >= size {
			clear(l.lent) // it is told already
		} else {
			if len(l.short) != 1 || l.short[0] != room || len(l.sent) != 0 {
				t.Fatalf("room for %d: told of short loans %v, sent %v", room, l.short, l.sent)
			}
			var follower loan
			if c.Follow(&follower.exchange, &followingLoan{&follower}, n.soon()) {
				t.Errorf("room for %d: somebody follows in the middle of a Send", room)
			}
			l.keep()
		}
		if b, err := w.receive(size); err != nil || !bytes.Equal(b, text(size)) {
			t.Fatalf("room for %d: other bytes: %v", room, err)
		}
		must(t, w.send(replyBytes(netproto.StatusSuccess, 0)))
		r.wait(&l.question)
		if l.failure != nil || len(l.sent) != 1 || l.sent[0] != size || len(l.short) > 1 {
			t.Errorf("room for %d: %+v, told of short loans %v, sent %v", room, l.failure, l.short, l.sent)
		}
		r.finish()
	}
}

type followingLoan struct{ *loan }

func (f *followingLoan) Posted() {}

// A Send that is stopped ends with its stream at once, with the bytes that went, and cannot go on afterwards.
//
// proves T-10, G-8
func TestStoppedLoanEndsWithItsStream(t *testing.T) {
	r := rigWith(t, 1, simkernel.WorldOptions{Buffer: 10})
	defer r.finish()
	n := r.node(nodeHost, 1)
	p := r.listen()
	l := &loan{lent: text(100)}
	l.start(n.channel(p.address))
	w := p.accept()
	r.until("a short loan", func() bool { return len(l.short) > 0 })
	l.exchange.Cancel()
	l.keep()
	r.pass(soon)
	if kept := n.lane.Counts.RetainedDescriptors.Load(); kept != 0 {
		t.Error("the stream was ended twice")
	}
	if l.cause() != lanes.Cancelled || l.failure.Sent != 10 || l.ended != 1 {
		t.Errorf("ended %d times with %+v", l.ended, l.failure)
	}
	if b, err := w.receive(100); err == nil || !bytes.Equal(b, text(10)) {
		t.Errorf("%d bytes arrived: %v", len(b), err)
	}
}
