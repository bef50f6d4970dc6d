package baselines

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Stream is one socket with non-blocking calls and epoll or spinning, nothing else. One goroutine at a time.
type Stream struct {
	fd, epoll int
	spin      bool
	events    [4]unix.EpollEvent // here, so that a wait allocates nothing
}

var errPeerClosed = errors.New("the baseline's peer closed the stream")

func newStream(fd int) (*Stream, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	_ = Reno(fd)
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLET&0xffffffff, Fd: int32(fd)}
	return &Stream{fd: fd, epoll: epoll}, unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &event)
}

// Connect opens a stream to a server.
func Connect(address string) (*Stream, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("connect %s: %w", address, err)
	}
	return newStream(fd)
}

// Close ends the stream.
func (s *Stream) Close() {
	unix.Close(s.epoll)
	unix.Close(s.fd)
}

func (s *Stream) wait(err error) error {
	if err != unix.EAGAIN && err != unix.EINTR {
		return err
	}
	if s.spin {
		return nil
	}
	_, err = unix.EpollWait(s.epoll, s.events[:], -1)
	if err == unix.EINTR {
		err = nil
	}
	return err
}

func (s *Stream) read(b []byte) error {
	for len(b) > 0 {
		n, err := read(s.fd, b)
		switch {
		case err != nil:
			if err = s.wait(err); err != nil {
				return err
			}
		case n == 0:
			return errPeerClosed
		default:
			b = b[n:]
		}
	}
	return nil
}

func (s *Stream) write(b []byte) error {
	for len(b) > 0 {
		n, err := write(s.fd, b)
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

// Bulk moves the command's blocks through memory that goes round, and returns the time it took.
func (s *Stream) Bulk(c Command, block []byte) (time.Duration, error) {
	s.spin = c.Spin
	start := time.Now()
	if err := s.write(c.Encode()); err != nil {
		return 0, err
	}
	if c.Scattered {
		err := s.scattered(c, block, NearStep, unix.Readv)
		return time.Since(start), err
	}
	for i := range c.Count {
		move := s.read
		if c.What == Push {
			move = s.write
		}
		if err := move(Part(block, uint64(i), c.Size)); err != nil {
			return 0, err
		}
	}
	if c.What == Push {
		var done [1]byte
		if err := s.read(done[:]); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

// PingPong makes the command's round trips and tells the time of each.
func (s *Stream) PingPong(c Command, block []byte, told func(time.Duration)) error {
	s.spin = c.Spin
	if err := s.write(c.Encode()); err != nil {
		return err
	}
	for range c.Count {
		start := time.Now()
		if err := s.write(block[:AskBytes]); err != nil {
			return err
		}
		if err := s.read(block[:c.Size]); err != nil {
			return err
		}
		told(time.Since(start))
	}
	return nil
}

// PullAsked is Bulk for a Pull that asks for each piece of a block, which divides it, by a command of its own, ahead pieces
// before it is needed. It is for servers that are not told when their output has left, and so must not be asked for
// everything at once.
func (s *Stream) PullAsked(c Command, piece uint64, ahead uint32, block []byte) (time.Duration, error) {
	s.spin = false
	one := Command{What: Pull, Count: 1, Size: piece}.Encode()
	start := time.Now()
	each := c.Size / piece
	pieces := uint64(c.Count) * each
	for range min(uint64(ahead), pieces) {
		if err := s.write(one); err != nil {
			return 0, err
		}
	}
	for i := range pieces {
		if err := s.read(Part(block, i/each, c.Size)[i%each*piece:][:piece]); err != nil {
			return 0, err
		}
		if i+uint64(ahead) < pieces {
			if err := s.write(one); err != nil {
				return 0, err
			}
		}
	}
	return time.Since(start), nil
}
