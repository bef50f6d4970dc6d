package baselines

import (
	"context"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Reno gives a socket, and what a listening one accepts, the congestion control that every side of a comparison has: the
// bbr that is many systems' default costs loopback up to five times, and the engine takes reno on one host, too.
func Reno(fd int) error {
	return unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
}

// control is Reno for the net package; a system without reno keeps its default.
func control(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { _ = Reno(int(fd)) })
}

// ListenNet makes a listener of plain Go on loopback, whose connections have Reno.
func ListenNet() (net.Listener, error) {
	return (&net.ListenConfig{Control: control}).Listen(context.Background(), "tcp", "127.0.0.1:0")
}

// Dial is net.Dial with Reno.
func Dial(ctx context.Context, address string) (net.Conn, error) {
	return (&net.Dialer{Control: control}).DialContext(ctx, "tcp", address)
}

// ServeNet serves each connection on a goroutine, until the listener is closed.
func ServeNet(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go serveNetConn(c)
	}
}

func serveNetConn(conn net.Conn) {
	defer conn.Close()
	var memory Memory
	defer memory.Close()
	var head [CommandBytes]byte
	for {
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return
		}
		c, err := Decode(head[:])
		if err != nil {
			return
		}
		if answerNet(conn, c, memory.Hold(MemoryBytes(c.Size))) != nil {
			return
		}
	}
}

func answerNet(conn net.Conn, c Command, block []byte) (err error) {
	for i := range uint64(c.Count) {
		switch c.What {
		case Pull:
			_, err = conn.Write(Part(block, i, c.Size))
		case Push:
			_, err = io.ReadFull(conn, Part(block, i, c.Size))
		case PingPong:
			if _, err = io.ReadFull(conn, block[:AskBytes]); err == nil {
				_, err = conn.Write(block[:c.Size])
			}
		}
		if err != nil {
			return err
		}
	}
	if c.What == Push {
		_, err = conn.Write([]byte{1})
	}
	return err
}

// NetConn is plain Go's client: one net.Conn.
type NetConn struct{ conn net.Conn }

// DialNet opens one.
func DialNet(address string) (*NetConn, error) {
	conn, err := Dial(context.Background(), address)
	if err != nil {
		return nil, err
	}
	return &NetConn{conn}, nil
}

// Close ends it.
func (n *NetConn) Close() { n.conn.Close() }

// Bulk is Stream.Bulk.
func (n *NetConn) Bulk(c Command, block []byte) (time.Duration, error) {
	start := time.Now()
	if _, err := n.conn.Write(c.Encode()); err != nil {
		return 0, err
	}
	for i := range uint64(c.Count) {
		var err error
		if c.What == Push {
			_, err = n.conn.Write(Part(block, i, c.Size))
		} else {
			_, err = io.ReadFull(n.conn, Part(block, i, c.Size))
		}
		if err != nil {
			return 0, err
		}
	}
	if c.What == Push {
		var done [1]byte
		if _, err := io.ReadFull(n.conn, done[:]); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

// PingPong is Stream.PingPong.
func (n *NetConn) PingPong(c Command, block []byte, told func(time.Duration)) error {
	if _, err := n.conn.Write(c.Encode()); err != nil {
		return err
	}
	for range c.Count {
		start := time.Now()
		if _, err := n.conn.Write(block[:AskBytes]); err != nil {
			return err
		}
		if _, err := io.ReadFull(n.conn, block[:c.Size]); err != nil {
			return err
		}
		told(time.Since(start))
	}
	return nil
}
