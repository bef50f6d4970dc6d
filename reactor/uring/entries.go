package uring

import (
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/socket"
)

// polling is the lowest bit of a record's Note: true exactly when its entry waits for readiness and transfers
// nothing. The other bits are the entry's sequence number, so that a Note in the ring is never zero.
const polling = 1

// number gives the operation's next entry its identity.
func (k *Kernel) number(slot int32, r *socket.Record, kind uint32) uint64 {
	k.sequence += 2
	if k.sequence == 0 {
		k.sequence = 2
	}
	r.Note = k.sequence | kind
	return userData(slot, r.Note)
}

// await leaves an operation to the ring until its descriptor is ready. walk has seen to it that there is room.
func (k *Kernel) await(slot int32, r *socket.Record, events uint32) {
	fd := int32(r.Descriptor)
	if r.Kind == reactor.Accept {
		if gate, ok := k.gates[r.Descriptor]; ok {
			fd = gate
		}
	}
	entry := k.ring.GetSQE()
	entry.PreparePollAdd(fd, events)
	entry.UserData = k.number(slot, r, polling)
}

// transferEntry leaves a Receive or Send to the ring; blocked says that trying before waiting is in vain.
func (k *Kernel) transferEntry(slot int32, r *socket.Record, blocked bool) syscall.Errno {
	first := r.Buffers[0][:min(len(r.Buffers[0]), socket.CallBytes)]
	second := r.Buffers[1][:min(len(r.Buffers[1]), socket.CallBytes-len(first))]
	if len(first) == 0 {
		first, second = second, nil
	}
	var b *block
	if len(second) > 0 {
		var err error
		if b, err = k.blocks.at(slot); err != nil {
			return unix.ENOMEM
		}
		b.point(first, second)
	}
	entry, fd := k.ring.GetSQE(), int32(r.Descriptor)
	switch {
	case r.Kind == reactor.Receive && b == nil:
		entry.PrepareRecv(fd, first, 0)
	case r.Kind == reactor.Receive:
		entry.PrepareRecvMsg(fd, b, 0)
	case b == nil:
		entry.PrepareSend(fd, first, unix.MSG_NOSIGNAL)
	default:
		entry.PrepareSendMsg(fd, b, unix.MSG_NOSIGNAL)
	}
	if blocked && k.pollFirst {
		entry.Priority = recvSendPollFirst
	} else if !blocked {
		k.eager++
	}
	entry.UserData = k.number(slot, r, 0)
	return 0
}

// reap turns completion events into completions, without a system call. An event makes one completion at most, so
// that no more are taken than out has room for.
func (k *Kernel) reap(out []reactor.Completion) int {
	n := 0
	for n < len(out) {
		events := k.events[:min(len(k.events), len(out)-n)]
		events = events[:k.ring.PeekBatchCQE(events)]
		if len(events) == 0 {
			break
		}
		for i := range events {
			if k.settle(&events[i], &out[n]) {
				n++
			}
		}
	}
	return n
}

// settle handles one completion event; true when it ends an operation and c is filled.
func (k *Kernel) settle(event *CompletionEvent, c *reactor.Completion) bool {
	switch event.UserData {
	case wakeData:
		k.wakerAnswered(event)
		return false
	case cancelData:
		return false // the entry that it ended, or not, answers for itself
	}
	slot, sequence := int32(uint32(event.UserData)), uint32(event.UserData>>32)
	if !k.operations.Valid(slot) || k.operations.At(slot).Note != sequence {
		k.counters.Unwatched++
		return false
	}
	r := k.operations.At(slot)
	r.Note = 0
	if !k.result(slot, r, event, c) {
		return false
	}
	k.finish(slot, r)
	return true
}

// result judges an entry's answer; true when it ends the operation, otherwise it is queued again.
func (k *Kernel) result(slot int32, r *socket.Record, event *CompletionEvent, c *reactor.Completion) bool {
	polled := event.UserData>>32&polling != 0
	*c = reactor.Completion{Ticket: r.Ticket, Descriptor: r.Descriptor}
	e := syscall.Errno(0)
	if event.Result < 0 {
		e = syscall.Errno(-event.Result)
	}
	switch {
	case e == 0 && !polled:
		c.N = int(event.Result)
		k.load += c.N / bytesPerLoad
		k.endpoints.At(r.Descriptor).Learn(socket.SeatOf(r.Kind), c.N, r.Asked, k.left(r, event))
		return true
	case r.Cancelled && (e == unix.ECANCELED || e == unix.EAGAIN || e == unix.EINTR):
		c.Err = unix.ECANCELED
		return true
	case e == 0 && r.Kind == reactor.Watch:
		return true
	case e == 0, e == unix.EAGAIN, e == unix.EINTR, e == unix.ECANCELED:
		// Ready to be tried; or the system gave the entry back: signals, old kernels, and the end of the
		// thread that submitted it do that.
		r.Ready = e == 0 || e == unix.EAGAIN
		k.operations.Push(slot)
		return false
	}
	c.Err = e
	return true
}

// left is what an entry's answer tells about bytes still to be received. SOCK_NONEMPTY is as old as POLL_FIRST.
func (k *Kernel) left(r *socket.Record, event *CompletionEvent) int {
	switch {
	case r.Kind != reactor.Receive || !k.pollFirst:
		return socket.Unknown
	case event.Flags&cqeSocketNonempty != 0:
		return 1
	}
	return 0
}

// wakerAnswered notes whether the eventfd is still watched. Whether there was a Wake, Take tells.
func (k *Kernel) wakerAnswered(event *CompletionEvent) {
	if event.Flags&cqeMore != 0 {
		return
	}
	k.watched = false
	if event.Result == -int32(unix.EINVAL) {
		k.multishot = false // Linux before 5.13
	}
}
