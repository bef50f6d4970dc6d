package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// A raw stream is the baseline: one socket, non-blocking calls, epoll or spinning, nothing else.
type rawStream struct {
	fd, epoll int
	spin      bool
}

func newRawStream(fd int, spin bool) (*rawStream, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno") // what the engine takes on one host
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLET&0xffffffff, Fd: int32(fd)}
	return &rawStream{fd, epoll, spin}, unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &event)
}

func (s *rawStream) close() {
	unix.Close(s.epoll)
	unix.Close(s.fd)
}

func (s *rawStream) wait(err error) error {
	if err != unix.EAGAIN && err != unix.EINTR {
		return err
	}
	if s.spin {
		return nil
	}
	var events [4]unix.EpollEvent
	_, err = unix.EpollWait(s.epoll, events[:], -1)
	if err == unix.EINTR {
		err = nil
	}
	return err
}

func (s *rawStream) read(b []byte) error {
	for len(b) > 0 {
		n, _, err := unix.Recvfrom(s.fd, b, unix.MSG_DONTWAIT)
		switch {
		case err != nil:
			if err = s.wait(err); err != nil {
				return err
			}
		case n == 0:
			return fmt.Errorf("raw peer closed the stream")
		default:
			b = b[n:]
		}
	}
	return nil
}

func (s *rawStream) write(b []byte) error {
	for len(b) > 0 {
		n, err := unix.SendmsgN(s.fd, b, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err != nil {
			if err = s.wait(err); err != nil {
				return err
			}
			continue
		}
		b = b[n:]
	}
	return nil
}

// Raw commands: 1 byte what, 1 byte spin, 2 unused, 4 count, 8 size.
const (
	rawPull     = 1 // server sends count blocks of size
	rawPush     = 2 // client sends count blocks of size, server answers one byte
	rawPingPong = 3 // client sends 52 bytes, server answers size bytes; count times
)

type rawCommand struct {
	what, spin byte
	count      uint32
	size       uint64
}

func (c rawCommand) encode() []byte {
	b := append([]byte{c.what, c.spin, 0, 0}, make([]byte, 12)...)
	binary.BigEndian.PutUint32(b[4:], c.count)
	binary.BigEndian.PutUint64(b[8:], c.size)
	return b
}

// rawListen makes the server's socket and says where it is.
func rawListen() (fd int, address string, err error) {
	if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return
	}
	if err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return
	}
	if err = unix.Listen(fd, 16); err != nil {
		return
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return
	}
	return fd, fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port), nil
}

// rawServe serves one connection after the other.
func rawServe(listener int) {
	block := make([]byte, 64<<20)
	for {
		fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		if s, err := newRawStream(fd, false); err == nil {
			for rawAnswer(s, block) == nil {
			}
			s.close()
		}
	}
}

func rawAnswer(s *rawStream, block []byte) error {
	var head [16]byte
	s.spin = false
	if err := s.read(head[:]); err != nil {
		return err
	}
	count, size := binary.BigEndian.Uint32(head[4:]), binary.BigEndian.Uint64(head[8:])
	s.spin = head[1] == 1
	for i := range count {
		var err error
		switch head[0] {
		case rawPull:
			err = s.write(part(block, uint64(i), size))
		case rawPush:
			err = s.read(part(block, uint64(i), size))
		case rawPingPong:
			if err = s.read(block[:52]); err == nil {
				err = s.write(block[:size])
			}
		}
		if err != nil {
			return err
		}
	}
	if head[0] == rawPush {
		return s.write(head[:1])
	}
	return nil
}

func rawConnect(address string) (*rawStream, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err != nil {
		return nil, err
	}
	return newRawStream(fd, false)
}

// workingBytes is how much memory bulk cells go round in, the engine and the raw loop alike: more than a
// core's own cache, less than what cores share.
const workingBytes = 4 << 20

// offset is where block i of a size begins.
func offset(i, size uint64) uint64 { return i * size % (max(workingBytes, size) / size * size) }

func part(block []byte, i, size uint64) []byte { return block[offset(i, size):][:size] }

// bulk moves count blocks and returns the time they took.
func (s *rawStream) bulk(c rawCommand, block []byte) (time.Duration, error) {
	s.spin = c.spin == 1
	start := time.Now()
	if err := s.write(c.encode()); err != nil {
		return 0, err
	}
	for i := range c.count {
		var err error
		if c.what == rawPull {
			err = s.read(part(block, uint64(i), c.size))
		} else {
			err = s.write(part(block, uint64(i), c.size))
		}
		if err != nil {
			return 0, err
		}
	}
	if c.what == rawPush {
		if err := s.read(block[:1]); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

// pingPong returns the time of each round trip.
func (s *rawStream) pingPong(c rawCommand, block []byte, times []time.Duration) error {
	s.spin = c.spin == 1
	if err := s.write(c.encode()); err != nil {
		return err
	}
	for i := range times {
		start := time.Now()
		if err := s.write(block[:52]); err != nil {
			return err
		}
		if err := s.read(block[:c.size]); err != nil {
			return err
		}
		times[i] = time.Since(start)
	}
	return nil
}

// rawLane is a raw ping-pong with the thread structure of an engine that has lanes of its own: a caller
// hands each round trip to a locked thread by eventfd, which waits by epoll, and is told by a channel. It
// says what is left of the engine's latency when that hand-over is taken off.
type rawLane struct {
	stream *rawStream
	event  int
	spin   time.Duration // how long the thread looks before it blocks
	block  []byte
	size   uint64
	err    error
	done   chan struct{}
	quit   bool
}

func newRawLane(s *rawStream, spin time.Duration, block []byte, size uint64) (*rawLane, error) {
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	l := &rawLane{stream: s, event: event, spin: spin, block: block, size: size, done: make(chan struct{}, 1)}
	if err := unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, event, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(event)}); err != nil {
		unix.Close(event)
		return nil, err
	}
	go l.run()
	return l, nil
}

// await blocks until something may be ready, after looking for a while.
func (l *rawLane) await() {
	var events [4]unix.EpollEvent
	for start := time.Now(); l.spin > 0 && time.Since(start) < l.spin; {
		if n, _ := unix.EpollWait(l.stream.epoll, events[:], 0); n > 0 {
			return
		}
	}
	_, _ = unix.EpollWait(l.stream.epoll, events[:], -1) // an interrupted wait looks again
}

func (l *rawLane) run() {
	runtime.LockOSThread()
	var count [8]byte
	for {
		if n, _ := unix.Read(l.event, count[:]); n != len(count) {
			l.await()
			continue
		}
		if l.quit {
			unix.Close(l.event)
			l.done <- struct{}{}
			return
		}
		l.err = l.stream.write(l.block[:52])
		for rest := l.block[:l.size]; l.err == nil && len(rest) > 0; {
			n, _, err := unix.Recvfrom(l.stream.fd, rest, unix.MSG_DONTWAIT)
			switch {
			case err == unix.EAGAIN:
				l.await()
			case err != nil:
				l.err = err
			case n == 0:
				l.err = fmt.Errorf("raw peer closed the stream")
			default:
				rest = rest[n:]
			}
		}
		l.done <- struct{}{}
	}
}

func (l *rawLane) call() error {
	if _, err := unix.Write(l.event, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		return err
	}
	<-l.done
	return l.err
}

func (l *rawLane) close() {
	l.quit = true
	_ = l.call()
}

// pingPongByLane is pingPong through a rawLane.
func (s *rawStream) pingPongByLane(c rawCommand, spin time.Duration, block []byte, times []time.Duration) error {
	s.spin = false
	if err := s.write(c.encode()); err != nil {
		return err
	}
	l, err := newRawLane(s, spin, block, c.size)
	if err != nil {
		return err
	}
	defer l.close()
	for i := range times {
		start := time.Now()
		if err := l.call(); err != nil {
			return err
		}
		times[i] = time.Since(start)
	}
	return nil
}
