package socket

import (
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/reactor"
)

// The calls of this file never block (MSG_DONTWAIT, or a descriptor that is O_NONBLOCK), hence RawSyscall:
// it saves the scheduler's bookkeeping. They retry EINTR, since a caller could do nothing else.

// again reports whether a call must be repeated because a signal came first.
func again(e syscall.Errno) bool { return e == unix.EINTR }

// vector fills iov with at most CallBytes of b and returns how many bytes that is.
func vector(iov *[2]unix.Iovec, b *[2][]byte) int {
	first := min(len(b[0]), CallBytes)
	second := min(len(b[1]), CallBytes-first)
	iov[0].Base = unsafe.SliceData(b[0])
	iov[0].SetLen(first)
	iov[1].Base = unsafe.SliceData(b[1])
	iov[1].SetLen(second)
	return first + second
}

// A list on the stack is filled with zeros first, hence one for few buffers, one for 1 MiB in pages of 4 KiB, and one for
// the most.
const (
	fewParts  = 64
	someParts = 272
)

// receiveInto is receive for however many buffers the operation has.
func receiveInto(fd int, op *reactor.Operation) (n, left int, e syscall.Errno) {
	switch {
	case len(op.More) == 0:
		var iov [2]unix.Iovec
		vector(&iov, &op.Buffers)
		return receive(fd, iov[:])
	case op.Parts() <= fewParts:
		var iov [fewParts]unix.Iovec
		return receive(fd, iov[:list(iov[:], op)])
	case op.Parts() <= someParts:
		return receiveSome(fd, op)
	}
	return receiveMany(fd, op)
}

// receiveSome and receiveMany keep their lists off the stack frames of those who need less.
//
//go:noinline
func receiveSome(fd int, op *reactor.Operation) (n, left int, e syscall.Errno) {
	var iov [someParts]unix.Iovec
	return receive(fd, iov[:list(iov[:], op)])
}

//go:noinline
func receiveMany(fd int, op *reactor.Operation) (n, left int, e syscall.Errno) {
	var iov [reactor.CallBuffers]unix.Iovec
	return receive(fd, iov[:list(iov[:], op)])
}

// sendFrom is send for however many buffers the operation has.
func sendFrom(fd int, op *reactor.Operation) (int, syscall.Errno) {
	switch {
	case len(op.More) == 0:
		return send(fd, &op.Buffers)
	case op.Parts() <= fewParts:
		var iov [fewParts]unix.Iovec
		return sendList(fd, iov[:list(iov[:], op)])
	case op.Parts() <= someParts:
		return sendSome(fd, op)
	}
	return sendMany(fd, op)
}

//go:noinline
func sendSome(fd int, op *reactor.Operation) (int, syscall.Errno) {
	var iov [someParts]unix.Iovec
	return sendList(fd, iov[:list(iov[:], op)])
}

//go:noinline
func sendMany(fd int, op *reactor.Operation) (int, syscall.Errno) {
	var iov [reactor.CallBuffers]unix.Iovec
	return sendList(fd, iov[:list(iov[:], op)])
}

// list fills iov with at most CallBytes of the operation's buffers, empty ones left out, and returns how many
// entries it took.
func list(iov []unix.Iovec, op *reactor.Operation) int {
	n, room := 0, CallBytes
	add := func(b []byte) {
		if len(b) > room {
			b = b[:room]
		}
		if len(b) > 0 && n < len(iov) {
			iov[n].Base = unsafe.SliceData(b)
			iov[n].SetLen(len(b))
			room -= len(b)
			n++
		}
	}
	add(op.Buffers[0])
	add(op.Buffers[1])
	for _, b := range op.More[:op.Parts()-len(op.Buffers)] {
		if room == 0 {
			break
		}
		add(b)
	}
	return n
}

// inquiry is the room for one control message of type TCP_CM_INQ: struct cmsghdr and an int, padded (cmsg(3)).
type inquiry struct {
	unix.Cmsghdr
	left int32
	_    int32
}

// receive is recvmsg(2). left is how many more bytes the socket has, at least 1 if the
// end of the stream is next, and -1 if the socket does not tell (TCP_INQ, Linux 4.18).
func receive(fd int, iov []unix.Iovec) (n, left int, e syscall.Errno) {
	var told inquiry
	message := unix.Msghdr{Iov: &iov[0], Control: (*byte)(unsafe.Pointer(&told))}
	message.SetIovlen(len(iov))
	message.SetControllen(int(unsafe.Sizeof(told)))
	for {
		r, _, e := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&message)), unix.MSG_DONTWAIT)
		if again(e) {
			continue
		}
		if e != 0 || told.Level != unix.SOL_TCP || told.Type != unix.TCP_CM_INQ {
			return int(r), -1, e
		}
		return int(r), int(told.left), 0
	}
}

// receiveOne is recv(2).
func receiveOne(fd int, b []byte) (int, syscall.Errno) {
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))),
			uintptr(min(len(b), CallBytes)), unix.MSG_DONTWAIT, 0, 0)
		if !again(e) {
			return int(n), e
		}
	}
}

// send is send(2) or sendmsg(2); a closed peer is EPIPE, never a signal.
func send(fd int, b *[2][]byte) (int, syscall.Errno) {
	const flags = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
	if one := single(b); one != nil {
		for {
			n, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(one))),
				uintptr(min(len(one), CallBytes)), flags, 0, 0)
			if !again(e) {
				return int(n), e
			}
		}
	}
	var iov [2]unix.Iovec
	vector(&iov, b)
	return sendList(fd, iov[:])
}

// sendList is sendmsg(2).
func sendList(fd int, iov []unix.Iovec) (int, syscall.Errno) {
	const flags = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
	message := unix.Msghdr{Iov: &iov[0]}
	message.SetIovlen(len(iov))
	for {
		n, _, e := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&message)), flags)
		if !again(e) {
			return int(n), e
		}
	}
}

// accept is accept4(2); the new descriptor is non-blocking and closed by exec.
func accept(fd int) (int, netip.AddrPort, syscall.Errno) {
	var peer address
	for {
		peer.length = uint32(len(peer.bytes))
		n, _, e := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), uintptr(unsafe.Pointer(&peer.bytes)),
			uintptr(unsafe.Pointer(&peer.length)), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
		if again(e) {
			continue
		}
		if e != 0 {
			return -1, netip.AddrPort{}, e
		}
		return int(n), peer.decode(), 0
	}
}

// connect is connect(2). EINTR is not retried: the attempt goes on in the background, like EINPROGRESS.
func connect(fd int, to *address) syscall.Errno {
	_, _, e := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&to.bytes)), uintptr(to.length))
	return e
}

// bind is bind(2).
func bind(fd int, to *address) syscall.Errno {
	_, _, e := unix.RawSyscall(unix.SYS_BIND, uintptr(fd), uintptr(unsafe.Pointer(&to.bytes)), uintptr(to.length))
	return e
}

// localName is getsockname(2), peerName is getpeername(2).
func localName(fd int) (netip.AddrPort, syscall.Errno) { return name(unix.SYS_GETSOCKNAME, fd) }
func peerName(fd int) (netip.AddrPort, syscall.Errno)  { return name(unix.SYS_GETPEERNAME, fd) }

func name(trap uintptr, fd int) (netip.AddrPort, syscall.Errno) {
	var a address
	a.length = uint32(len(a.bytes))
	_, _, e := unix.RawSyscall(trap, uintptr(fd), uintptr(unsafe.Pointer(&a.bytes)), uintptr(unsafe.Pointer(&a.length)))
	if e != 0 {
		return netip.AddrPort{}, e
	}
	return a.decode(), 0
}

// poll is ppoll(2) of one descriptor without waiting; it returns what is true of it now.
func poll(fd int, events int16) (int16, syscall.Errno) {
	var zero unix.Timespec
	one := unix.PollFd{Fd: int32(fd), Events: events}
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&one)), 1, uintptr(unsafe.Pointer(&zero)), 0, 0, 0)
		switch {
		case again(e):
			continue
		case e != 0 || n == 0:
			return 0, e
		}
		return one.Revents, 0
	}
}

// raise adds one to an eventfd (eventfd(2)).
func raise(fd int) {
	one := uint64(1)
	for {
		_, _, e := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one)), unsafe.Sizeof(one))
		if !again(e) {
			return
		}
	}
}

// drain sets an eventfd back to zero.
func drain(fd int) {
	var count uint64
	for {
		_, _, e := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&count)), unsafe.Sizeof(count))
		if !again(e) {
			return
		}
	}
}
