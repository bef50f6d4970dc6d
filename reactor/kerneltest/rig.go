package kerneltest

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/orbitte/orbitte/reactor"
)

// rig keeps what one test has open and holds every kernel to the rules that need no test of their
// own: one completion for each operation, never more than asked for, errors are Errno.
type rig struct {
	*testing.T
	Harness
	kernels     []reactor.Kernel
	descriptors []ownedDescriptor
	operations  map[reactor.Ticket]*operation
	last        reactor.Ticket
	out         []reactor.Completion
	lent        [][]byte
	before      []string // descriptors open when the test began
}

type ownedDescriptor struct {
	kernel reactor.Kernel
	reactor.Descriptor
}

type operation struct {
	reactor.Operation
	kernel reactor.Kernel
	ended  bool
	reactor.Completion
}

func newRig(t *testing.T, h Harness) *rig {
	r := &rig{T: t, Harness: h, operations: map[reactor.Ticket]*operation{}, out: make([]reactor.Completion, 16)}
	if h.Descriptors != nil {
		h.Descriptors() // the first look may itself open something that stays
		r.before = h.Descriptors()
	}
	t.Cleanup(r.finish)
	return r
}

// kernel opens and binds a kernel.
func (r *rig) kernel() reactor.Kernel {
	r.Helper()
	k, err := r.Open()
	if err != nil {
		r.Fatalf("open a kernel: %v", err)
	}
	r.kernels = append(r.kernels, k)
	if err := k.Bind(); err != nil {
		r.Fatalf("%s: bind: %v", k.Name(), err)
	}
	return k
}

// memory lends n bytes outside the Go heap.
func (r *rig) memory(n int) []byte {
	r.Helper()
	m, err := syscall.Mmap(-1, 0, max(n, 1), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		r.Fatalf("map %d bytes: %v", n, err)
	}
	r.lent = append(r.lent, m)
	return m[:n]
}

// text lends memory with these bytes.
func (r *rig) text(s string) []byte {
	m := r.memory(len(s))
	copy(m, s)
	return m
}

func (r *rig) own(k reactor.Kernel, d reactor.Descriptor) reactor.Descriptor {
	r.descriptors = append(r.descriptors, ownedDescriptor{k, d})
	return d
}

// close ends a descriptor, which must work.
func (r *rig) close(k reactor.Kernel, d reactor.Descriptor) {
	r.Helper()
	if err := k.Close(d); err != nil {
		r.Fatalf("close descriptor %d: %v", d, err)
	}
	for i, o := range r.descriptors {
		if o.Descriptor == d {
			r.descriptors = append(r.descriptors[:i], r.descriptors[i+1:]...)
			return
		}
	}
}

func (r *rig) submit(k reactor.Kernel, op reactor.Operation) reactor.Ticket {
	r.last++
	op.Ticket = r.last
	r.operations[op.Ticket] = &operation{Operation: op, kernel: k}
	k.Submit(&op)
	op = reactor.Operation{Descriptor: reactor.NoDescriptor} // the kernel must have copied it
	return r.last
}

func (r *rig) receive(k reactor.Kernel, d reactor.Descriptor, buffers ...[]byte) reactor.Ticket {
	op := reactor.Operation{Kind: reactor.Receive, Descriptor: d}
	op.More = buffers[copy(op.Buffers[:], buffers):]
	return r.submit(k, op)
}

func (r *rig) send(k reactor.Kernel, d reactor.Descriptor, buffers ...[]byte) reactor.Ticket {
	op := reactor.Operation{Kind: reactor.Send, Descriptor: d}
	op.More = buffers[copy(op.Buffers[:], buffers):]
	return r.submit(k, op)
}

// poll polls one kernel once, keeps the completions and says how many there were.
func (r *rig) poll(k reactor.Kernel, out []reactor.Completion, until reactor.Instant) int {
	r.Helper()
	n := k.Poll(out, until)
	if n < 0 || n > len(out) {
		r.Fatalf("Poll returned %d completions for a slice of %d", n, len(out))
	}
	for _, c := range out[:n] {
		r.keep(k, c)
	}
	return n
}

func (r *rig) keep(k reactor.Kernel, c reactor.Completion) {
	r.Helper()
	o := r.operations[c.Ticket]
	switch {
	case o == nil:
		r.Fatalf("completion for ticket %d, which was never submitted", c.Ticket)
	case o.ended:
		r.Fatalf("second completion for ticket %d: %+v after %+v", c.Ticket, c, o.Completion)
	case o.kernel != k:
		r.Fatalf("ticket %d was submitted to another kernel", c.Ticket)
	}
	var errno syscall.Errno
	if c.Err != nil && !errors.As(c.Err, &errno) {
		r.Fatalf("ticket %d: error %v (%T) is not an Errno", c.Ticket, c.Err, c.Err)
	}
	if size := o.Size(); c.N < 0 || c.N > size || c.Err != nil && c.N != 0 {
		r.Fatalf("ticket %d: N is %d with error %v for %d bytes", c.Ticket, c.N, c.Err, size)
	}
	o.ended, o.Completion = true, c
}

// turn polls every kernel once without blocking, then waits a moment on one of them.
func (r *rig) turn(wait time.Duration) {
	r.Helper()
	n := 0
	for _, k := range r.kernels {
		n += r.poll(k, r.out, reactor.Past)
	}
	if n > 0 {
		return
	}
	for _, k := range r.kernels {
		if r.poll(k, r.out, k.Now().After(wait)) > 0 {
			return
		}
	}
}

// await polls until the operation has ended.
func (r *rig) await(ticket reactor.Ticket) reactor.Completion {
	r.Helper()
	o := r.operations[ticket]
	end := o.kernel.Now().After(patience)
	for !o.ended {
		if o.kernel.Now() > end {
			r.Fatalf("%s: ticket %d (kind %d on descriptor %d) did not end in %v", o.kernel.Name(), ticket, o.Kind, o.Operation.Descriptor, patience)
		}
		r.turn(time.Millisecond)
	}
	return o.Completion
}

// must awaits a success.
func (r *rig) must(ticket reactor.Ticket) reactor.Completion {
	r.Helper()
	c := r.await(ticket)
	if c.Err != nil {
		r.Fatalf("ticket %d (kind %d): %v", ticket, r.operations[ticket].Kind, c.Err)
	}
	return c
}

// fails awaits a failure with one of these errors.
func (r *rig) fails(ticket reactor.Ticket, wanted ...syscall.Errno) {
	r.Helper()
	c := r.await(ticket)
	for _, w := range wanted {
		if errors.Is(c.Err, w) {
			return
		}
	}
	r.Fatalf("ticket %d (kind %d): N %d, error %v, wanted %v", ticket, r.operations[ticket].Kind, c.N, c.Err, wanted)
}

// pass polls all kernels for about d; nothing need happen.
func (r *rig) pass(d time.Duration) {
	r.Helper()
	k := r.kernels[0]
	for end := k.Now().After(d); k.Now() < end; {
		r.turn(time.Millisecond)
	}
}

// read receives exactly n bytes, in as many operations as it takes.
func (r *rig) read(k reactor.Kernel, d reactor.Descriptor, n int) string {
	r.Helper()
	buffer := r.memory(n)
	for got := 0; got < n; {
		moved := r.must(r.receive(k, d, buffer[got:])).N
		if moved == 0 {
			r.Fatalf("end of stream after %d of %d bytes", got, n)
		}
		got += moved
	}
	return string(buffer)
}

func (r *rig) pending(ticket reactor.Ticket) {
	r.Helper()
	if o := r.operations[ticket]; o.ended {
		r.Fatalf("ticket %d (kind %d) ended early: %+v", ticket, o.Kind, o.Completion)
	}
}

func (r *rig) listen(k reactor.Kernel, address netip.Addr) (reactor.Descriptor, netip.AddrPort) {
	r.Helper()
	d, bound, err := k.Listen(netip.AddrPortFrom(address, 0), reactor.SocketOptions{ReuseAddress: true})
	if err != nil {
		r.Fatalf("listen on %v: %v", address, err)
	}
	return r.own(k, d), bound
}

func (r *rig) open(k reactor.Kernel, peer netip.AddrPort) reactor.Descriptor {
	r.Helper()
	d, err := k.Open(peer, reactor.SocketOptions{})
	if err != nil {
		r.Fatalf("open a socket for %v: %v", peer, err)
	}
	return r.own(k, d)
}

func (r *rig) connect(k reactor.Kernel, d reactor.Descriptor, peer netip.AddrPort) reactor.Ticket {
	return r.submit(k, reactor.Operation{Kind: reactor.Connect, Descriptor: d, Address: peer})
}

// join connects client to a listener and returns both ends.
func (r *rig) join(server reactor.Kernel, listener reactor.Descriptor, bound netip.AddrPort, client reactor.Kernel) (c, s reactor.Descriptor) {
	r.Helper()
	accept := r.submit(server, reactor.Operation{Kind: reactor.Accept, Descriptor: listener})
	c = r.open(client, bound)
	r.must(r.connect(client, c, bound))
	s = r.own(server, r.must(accept).Descriptor)
	return c, s
}

// pair makes one connection over IPv4, with both ends on one new kernel.
func (r *rig) pair() (k reactor.Kernel, c, s reactor.Descriptor) {
	r.Helper()
	k = r.kernel()
	listener, bound := r.listen(k, r.IPv4)
	c, s = r.join(k, listener, bound, k)
	return k, c, s
}

// transfer sends all of data from one end to the other and returns what arrived, reading at most step
// bytes at a time.
func (r *rig) transfer(k reactor.Kernel, from, to reactor.Descriptor, data []byte, step int) []byte {
	r.Helper()
	var got []byte
	buffer := r.memory(step)
	var sending, receiving reactor.Ticket
	sent := 0
	for len(got) < len(data) {
		if sending == 0 && sent < len(data) {
			sending = r.send(k, from, data[sent:])
		}
		if receiving == 0 {
			receiving = r.receive(k, to, buffer)
		}
		r.turn(time.Millisecond)
		if o := r.operations[sending]; o != nil && o.ended {
			sent += r.must(sending).N
			sending = 0
		}
		if r.operations[receiving].ended {
			n := r.must(receiving).N
			if n == 0 {
				r.Fatalf("end of stream after %d of %d bytes", len(got), len(data))
			}
			got = append(got, buffer[:n]...)
			receiving = 0
		}
	}
	if sending != 0 {
		sent += r.must(sending).N
	}
	if sent != len(data) {
		r.Fatalf("sent %d bytes of %d, received %d", sent, len(data), len(got))
	}
	return got
}

// finish ends everything and checks that nothing is left.
func (r *rig) finish() {
	for i := reactor.Ticket(1); i <= r.last; i++ {
		if o := r.operations[i]; !o.ended {
			o.kernel.Cancel(i)
		}
	}
	for i := reactor.Ticket(1); i <= r.last && !r.Failed(); i++ {
		r.await(i)
	}
	for len(r.descriptors) > 0 && !r.Failed() {
		r.close(r.descriptors[0].kernel, r.descriptors[0].Descriptor)
	}
	for _, k := range r.kernels {
		if err := r.shutdown(k); err != nil {
			r.Error(err)
		}
	}
	if h := r.Harness; h.Descriptors != nil && !r.Failed() {
		if after := h.Descriptors(); !slices.Equal(after, r.before) {
			r.Errorf("other descriptors are open after the test, %v, than before it, %v", after, r.before)
		}
	}
	if r.Failed() {
		return // something may still be written to; keep the memory
	}
	for _, m := range r.lent {
		_ = syscall.Munmap(m)
	}
}

func (r *rig) shutdown(k reactor.Kernel) error {
	if c := k.Counters(); !r.Failed() && c.Submitted != c.Completed {
		return fmt.Errorf("%s: %d operations submitted, %d completed", k.Name(), c.Submitted, c.Completed)
	}
	for range 2 {
		if err := k.Shutdown(); err != nil && !r.Failed() {
			return fmt.Errorf("%s: shut down: %w", k.Name(), err)
		}
	}
	k.Wake() // must be harmless
	return nil
}
