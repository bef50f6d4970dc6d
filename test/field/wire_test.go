package field

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/orbitte/orbitte/netproto"
)

// wire is a bare connection that speaks frames, and breaks off when and how its test wants.
type wire struct {
	*net.TCPConn
	t testing.TB
}

func dial(t testing.TB, endpoint string) *wire {
	t.Helper()
	c, err := net.DialTimeout("tcp", endpoint, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{c.(*net.TCPConn), t}
	t.Cleanup(func() { w.Close() }) // closed by its test already, as a rule
	if err := w.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *wire) request(r netproto.Request) {
	w.t.Helper()
	if _, err := w.Write(netproto.AppendRequest(nil, r)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wire) reply() netproto.Reply {
	w.t.Helper()
	var b [netproto.ReplySize]byte
	if _, err := io.ReadFull(w, b[:]); err != nil {
		w.t.Fatal(err)
	}
	r, err := netproto.DecodeReply(b[:])
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// reset closes with a RST instead of a FIN.
func (w *wire) reset() error { return reset(w.TCPConn) }

func reset(c *net.TCPConn) error {
	return errors.Join(c.SetLinger(0), c.Close())
}

// breaker is a source that takes a WRITE's first bytes and then closes, in a different way each time.
type breaker struct {
	listener net.Listener
	epoch    netproto.Epoch
	length   uint64
}

const breakerBase = 1 << 20

func newBreaker(t testing.TB, length uint64) *breaker {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &breaker{listener: l, epoch: netproto.Epoch{1, 2, 3}, length: length}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b.serve(c.(*net.TCPConn), n)
		}
	}()
	t.Cleanup(func() {
		l.Close() // ends Accept; its error says nothing more
		<-done
	})
	return b
}

// serve answers describes, and breaks the first WRITE off. Errors are what the breaking is about.
func (b *breaker) serve(c *net.TCPConn, n int) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	for {
		var frame [netproto.RequestSize]byte
		if _, err := io.ReadFull(c, frame[:]); err != nil {
			return
		}
		r, err := netproto.DecodeRequest(frame[:])
		if err != nil {
			return
		}
		if r.Operation == netproto.OperationDescribe {
			d := netproto.AppendDescriptor(nil, &netproto.Descriptor{
				Capabilities: netproto.Capabilities{Bits: netproto.CapabilityTCP, TransferBytesMax: netproto.PayloadBytesMax},
				Regions:      []netproto.Region{{ID: 1, Base: breakerBase, Length: b.length, Permission: netproto.ReadWrite}},
			})
			head := netproto.AppendReply(nil, netproto.Reply{Status: netproto.StatusSuccess, Epoch: b.epoch, Length: uint64(len(d))})
			if _, err := c.Write(append(head, d...)); err != nil {
				return
			}
			continue
		}
		_, _ = c.Write(netproto.AppendReply(nil, netproto.Reply{Status: netproto.StatusReady, Epoch: b.epoch}))
		_, _ = io.CopyN(io.Discard, c, int64(b.length/4))
		breakOff(c, n)
		return
	}
}

// breakOff closes while the other side sends: by RST, by FIN and then RST (which the sender sees as a broken pipe), or
// by a close with bytes unread.
func breakOff(c *net.TCPConn, n int) {
	switch n % 3 {
	case 0:
		_ = reset(c)
	case 1:
		_ = c.CloseWrite()
		time.Sleep(time.Millisecond) // so that the FIN is seen before the RST
		_ = c.Close()
	case 2:
		_ = c.Close()
	}
}
