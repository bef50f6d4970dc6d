package baselines

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// ListenRaw makes the raw server's socket on loopback and says where it is.
func ListenRaw() (fd int, address string, err error) {
	if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return
	}
	if err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return
	}
	if err = unix.Listen(fd, 64); err != nil {
		return
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return
	}
	return fd, fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port), nil
}

// ServeRaw serves each connection on a thread of its own, until the listener is gone.
func ServeRaw(listener int) {
	for {
		fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
		if err == unix.EINTR || err == unix.ECONNABORTED {
			continue
		}
		if err != nil {
			return
		}
		go serveRawStream(fd)
	}
}

func serveRawStream(fd int) {
	runtime.LockOSThread() // never unlocked: the thread ends with its stream
	s, err := newStream(fd)
	if err != nil {
		unix.Close(fd)
		return
	}
	defer s.Close()
	var memory Memory
	defer memory.Close()
	for {
		s.spin = false
		var head [CommandBytes]byte
		if s.read(head[:]) != nil {
			return
		}
		c, err := Decode(head[:])
		if err != nil {
			return
		}
		if s.answer(c, memory.Hold(c.memoryBytes())) != nil {
			return
		}
	}
}

func (s *Stream) answer(c Command, block []byte) error {
	s.spin = c.Spin
	if c.Scattered {
		return s.scattered(c, block, FarStep, unix.Writev)
	}
	for i := range uint64(c.Count) {
		var err error
		switch c.What {
		case Pull:
			err = s.write(Part(block, i, c.Size))
		case Push:
			err = s.read(Part(block, i, c.Size))
		case PingPong:
			if err = s.read(block[:AskBytes]); err == nil {
				err = s.write(block[:c.Size])
			}
		}
		if err != nil {
			return err
		}
	}
	if c.What == Push {
		return s.write([]byte{1})
	}
	return nil
}
