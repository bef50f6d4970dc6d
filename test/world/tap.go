package world

import (
	"net/netip"
	"syscall"

	"github.com/orbitte/orbitte/reactor"
)

// tap listens at one lane's kernel. It knows what is outstanding, and shows every byte to the life's streams.
type tap struct {
	life *life
	open []pending
	late []*stream // whose end the last poll told behind other completions: spent from the next one on
}

// pending is one operation that has not ended.
type pending struct {
	ticket     reactor.Ticket
	kind       reactor.Kind
	descriptor reactor.Descriptor
	buffers    [][]byte // a copy of the list: its owner goes on with its own
}

func (t *tap) submitted(o *reactor.Operation) {
	var buffers [][]byte
	if o.Kind == reactor.Send || o.Kind == reactor.Receive {
		buffers = append(append(buffers, o.Buffers[:]...), o.More...)
	}
	t.open = append(t.open, pending{o.Ticket, o.Kind, o.Descriptor, buffers})
	if s := t.life.streams[o.Descriptor]; s != nil && o.Kind == reactor.Send {
		s.posted()
	}
}

// completed sees what a poll has returned. The engine handles it in order: behind a completion that comes first, of whatever
// stream, a stream's end is not known yet, and what is sent in between is no mistake: the end of one request begins the next.
func (t *tap) completed(list []reactor.Completion) {
	for _, s := range t.late {
		s.spent = true
	}
	t.late = t.late[:0]
	for i := range list {
		for k := range t.open {
			if t.open[k].ticket == list[i].Ticket {
				t.show(t.open[k], list[i], i > 0)
				t.open = append(t.open[:k], t.open[k+1:]...)
				break
			}
		}
	}
}

// show lets a stream see what one of its operations has done; behind: other completions came before.
func (t *tap) show(p pending, c reactor.Completion, behind bool) {
	if p.kind == reactor.Accept {
		if c.Err == nil {
			t.life.opened(c.Descriptor, false, t.life.listens && p.descriptor == t.life.dataListener)
		}
		return
	}
	s := t.life.streams[p.descriptor]
	if s == nil || p.kind == reactor.Watch {
		return
	}
	if s.data && p.kind == reactor.Receive && c.Err == syscall.ECANCELED {
		return // it dozes, or its payload goes elsewhere from here on
	}
	if c.Err != nil || p.kind == reactor.Receive && c.N == 0 {
		if behind {
			t.late = append(t.late, s)
			return
		}
		s.spent = true
		return
	}
	left := c.N
	for _, b := range p.buffers {
		b = b[:min(len(b), left)]
		left -= len(b)
		if p.kind == reactor.Send {
			s.sent(b)
		} else {
			s.received(b)
		}
	}
}

// fail ends what is outstanding.
func (t *tap) fail(out []reactor.Completion) int {
	n := min(len(out), len(t.open))
	for i := range n {
		out[i] = reactor.Completion{Ticket: t.open[i].ticket}
		if t.open[i].kind != reactor.Watch || t.life.tomb.watched(t.open[i].descriptor) { // who watches a stream looks, and finds the failure
			out[i].Err = syscall.ECONNRESET
		}
	}
	t.open = append(t.open[:0], t.open[n:]...)
	return n
}

// Open (reactor.Kernel) is the beginning of a requester's stream.
func (d *door) Open(a netip.AddrPort, o reactor.SocketOptions) (reactor.Descriptor, error) {
	descriptor, err := d.Kernel.Open(a, o)
	if err == nil {
		d.life.opened(descriptor, true, a.Port() == dataPort)
	}
	return descriptor, err
}

// Close (reactor.Kernel).
func (d *door) Close(descriptor reactor.Descriptor) error {
	if d.ghost {
		return nil
	}
	err := d.Kernel.Close(descriptor)
	if err == nil {
		delete(d.life.streams, descriptor)
	}
	return err
}
