package epoll

import (
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/socket"
)

// What socket.Endpoint.Armed says of a descriptor's place in the epoll set.
const (
	// edgeInput and edgeOutput: registered edge-triggered for that direction, once, for the rest of its
	// life. Output is added only when a Send or Connect had to wait for the first time; asked for earlier,
	// it would be reported along with every input, and wake us for bytes already taken.
	edgeInput = 1 << iota
	edgeOutput
	// once: registered for one event, level-triggered, and perhaps used up. It suits descriptors of which
	// this kernel performs nothing but Watch: it asks for the level, so it needs no memory of past edges.
	once
)

// Events carry the descriptor and its generation. wakeGeneration is outside of generationMask.
const (
	generationMask = 1<<31 - 1
	wakeGeneration = -1
)

func edgeOf(s socket.Seat) uint8 {
	if s == socket.Output {
		return edgeOutput
	}
	return edgeInput
}

// arm makes sure that the descriptor's next event is reported. If it is ready now, that is an event. The table
// may be wrong about the set, since descriptor numbers are used again and may be closed by others: each
// answer of the system that says so is taken as the truth.
func (k *Kernel) arm(d reactor.Descriptor, endpoint *socket.Endpoint, want uint8) syscall.Errno {
	if want != once && endpoint.Armed&want != 0 {
		return 0
	}
	armed := endpoint.Armed | want
	if armed&^once != 0 {
		armed &^= once
	}
	if want == edgeInput && !endpoint.Blocked[socket.Output] {
		armed &^= edgeOutput // left from connecting
	}
	event := unix.EpollEvent{Events: mask(armed), Fd: int32(d), Pad: int32(endpoint.Generation & generationMask)}
	operation := unix.EPOLL_CTL_ADD
	if endpoint.Armed != 0 {
		operation = unix.EPOLL_CTL_MOD
	}
	k.counters.Crossings++
	e := k.control(operation, int(d), &event)
	switch e {
	case unix.EEXIST:
		k.counters.Crossings++
		e = k.control(unix.EPOLL_CTL_MOD, int(d), &event)
	case unix.ENOENT:
		k.counters.Crossings++
		e = k.control(unix.EPOLL_CTL_ADD, int(d), &event)
	}
	if e == 0 {
		endpoint.Armed = armed
	}
	return e
}

func mask(armed uint8) uint32 {
	if armed == once {
		return unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLONESHOT
	}
	events := uint32(unix.EPOLLET & 0xffffffff)
	if armed&edgeInput != 0 {
		events |= unix.EPOLLIN | unix.EPOLLRDHUP
	}
	if armed&edgeOutput != 0 {
		events |= unix.EPOLLOUT
	}
	return events
}
