package baselines

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// lane is a raw ping-pong with the thread structure of an engine that has lanes of its own: a caller hands each round
// trip to a locked thread by eventfd, which waits by epoll, and is told by a channel. It says what is left of the
// engine's latency when that hand-over is taken off.
type lane struct {
	stream *Stream
	event  int
	look   time.Duration // how long the thread looks before it blocks
	block  []byte
	size   uint64
	err    error
	done   chan struct{}
	quit   bool
}

func newLane(s *Stream, look time.Duration, block []byte, size uint64) (*lane, error) {
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	l := &lane{stream: s, event: event, look: look, block: block, size: size, done: make(chan struct{}, 1)}
	if err := unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, event, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(event)}); err != nil {
		unix.Close(event)
		return nil, err
	}
	go l.run()
	return l, nil
}

// await blocks until something may be ready, after looking for a while.
func (l *lane) await() {
	for start := time.Now(); l.look > 0 && time.Since(start) < l.look; {
		if n, _ := unix.EpollWait(l.stream.epoll, l.stream.events[:], 0); n > 0 {
			return
		}
	}
	_, _ = unix.EpollWait(l.stream.epoll, l.stream.events[:], -1) // an interrupted wait looks again
}

func (l *lane) run() {
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
		l.err = l.roundTrip()
		l.done <- struct{}{}
	}
}

func (l *lane) roundTrip() error {
	if err := l.stream.write(l.block[:AskBytes]); err != nil {
		return err
	}
	for rest := l.block[:l.size]; len(rest) > 0; {
		n, err := read(l.stream.fd, rest)
		switch {
		case err == unix.EAGAIN || err == unix.EINTR:
			l.await()
		case err != nil:
			return err
		case n == 0:
			return errPeerClosed
		default:
			rest = rest[n:]
		}
	}
	return nil
}

func (l *lane) call() error {
	if _, err := unix.Write(l.event, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		return err
	}
	<-l.done
	return l.err
}

func (l *lane) close() {
	l.quit = true
	_ = l.call()
}

// PingPongByLane is PingPong through a thread of its own, which looks for a while before it blocks.
func (s *Stream) PingPongByLane(c Command, look time.Duration, block []byte, told func(time.Duration)) error {
	s.spin = false
	if err := s.write(c.Encode()); err != nil {
		return err
	}
	l, err := newLane(s, look, block, c.Size)
	if err != nil {
		return err
	}
	defer l.close()
	for range c.Count {
		start := time.Now()
		if err := l.call(); err != nil {
			return err
		}
		told(time.Since(start))
	}
	return nil
}
