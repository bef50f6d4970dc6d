package world

import (
	"syscall"

	"github.com/orbitte/orbitte/reactor"
)

// tap listens at one lane's kernel. It knows what is outstanding.
type tap struct {
	life *life
	open []pending
}

// pending is one operation that has not ended.
type pending struct {
	ticket     reactor.Ticket
	kind       reactor.Kind
	descriptor reactor.Descriptor
	buffers    [2][]byte
}

func (t *tap) submitted(o *reactor.Operation) {
	t.open = append(t.open, pending{o.Ticket, o.Kind, o.Descriptor, o.Buffers})
}

func (t *tap) completed(list []reactor.Completion) {
	for i := range list {
		for k := range t.open {
			if t.open[k].ticket == list[i].Ticket {
				t.open = append(t.open[:k], t.open[k+1:]...)
				break
			}
		}
	}
}

// fail ends what is outstanding.
func (t *tap) fail(out []reactor.Completion) int {
	n := min(len(out), len(t.open))
	for i := range n {
		out[i] = reactor.Completion{Ticket: t.open[i].ticket}
		if t.open[i].kind != reactor.Watch { // who watches looks, and finds the failure
			out[i].Err = syscall.ECONNRESET
		}
	}
	t.open = append(t.open[:0], t.open[n:]...)
	return n
}
