package field

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/netproto"
)

// A hole is a TCP proxy that swallows what exceeds its allowances: the connections stay, the bytes are gone.
type hole struct {
	listener net.Listener
	target   string
	up, down atomic.Int64 // bytes still let through, towards the source and back; negative: all
	lost     atomic.Int64 // bytes that vanished
	mu       sync.Mutex
	open     []net.Conn
	wait     sync.WaitGroup
}

func newHole(t testing.TB, target string) *hole {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &hole{listener: l, target: target}
	h.allow(-1, -1)
	h.wait.Add(1)
	go h.accept()
	t.Cleanup(func() {
		l.Close() // ends accept
		h.mu.Lock()
		for _, c := range h.open {
			c.Close() // ends its pump
		}
		h.mu.Unlock()
		h.wait.Wait()
	})
	return h
}

func (h *hole) endpoint() string { return h.listener.Addr().String() }

func (h *hole) allow(up, down int64) {
	h.up.Store(up)
	h.down.Store(down)
}

func (h *hole) accept() {
	defer h.wait.Done()
	for {
		near, err := h.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", h.target)
		if err != nil {
			near.Close() // the requester sees a broken peer, and its test fails
			continue
		}
		h.mu.Lock()
		h.open = append(h.open, near, far)
		h.mu.Unlock()
		h.wait.Add(2)
		go h.pump(near, far, &h.up)
		go h.pump(far, near, &h.down)
	}
}

// pump forwards until either end closes; then both are closed.
func (h *hole) pump(from, to net.Conn, left *atomic.Int64) {
	defer h.wait.Done()
	defer to.Close()
	var b [32 << 10]byte
	for {
		n, err := from.Read(b[:])
		if err != nil {
			return
		}
		if allowed := left.Load(); allowed >= 0 {
			through := min(n, int(allowed))
			left.Store(allowed - int64(through))
			h.lost.Add(int64(n - through))
			n = through
		}
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}

const holePayload = 256 << 10

// swallowed is one protocol step at which everything vanishes.
type swallowed struct {
	name     string
	up, down int64
	do       string // "describe", "read", "write", "notify"
	remote   orbitte.Effect
}

var swallowedSteps = []swallowed{
	{"describe: no request", 0, -1, "describe", 0},
	{"describe: half a request", netproto.RequestSize / 2, -1, "describe", 0},
	{"describe: no reply", -1, 0, "describe", 0},
	{"describe: half a reply", -1, netproto.ReplySize / 2, "describe", 0},
	{"describe: no descriptor", -1, netproto.ReplySize, "describe", 0},
	{"describe: half a descriptor", -1, netproto.ReplySize + 40, "describe", 0},
	{"read: no request", 0, -1, "read", 0},
	{"read: half a request", netproto.RequestSize / 2, -1, "read", 0},
	{"read: no reply", -1, 0, "read", 0},
	{"read: half a reply", -1, netproto.ReplySize / 2, "read", 0},
	{"read: no payload", -1, netproto.ReplySize, "read", 0},
	{"read: half a payload", -1, netproto.ReplySize + holePayload/2, "read", 0},
	{"read: all but one byte", -1, netproto.ReplySize + holePayload - 1, "read", 0},
	{"write: no request", 0, -1, "write", orbitte.EffectNone},
	{"write: half a request", netproto.RequestSize / 2, -1, "write", orbitte.EffectNone},
	{"write: no ready", -1, 0, "write", orbitte.EffectNone},
	{"write: half a ready", -1, netproto.ReplySize / 2, "write", orbitte.EffectNone},
	{"write: no payload", netproto.RequestSize, -1, "write", orbitte.EffectUnknown},
	{"write: half a payload", netproto.RequestSize + holePayload/2, -1, "write", orbitte.EffectUnknown},
	{"write: no receipt", -1, netproto.ReplySize, "write", orbitte.EffectUnknown},
	{"write: half a receipt", -1, netproto.ReplySize + netproto.ReplySize/2, "write", orbitte.EffectUnknown},
	{"notify: no request", 0, -1, "notify", orbitte.EffectNone},
	{"notify: no ready", -1, 0, "notify", orbitte.EffectNone},
	{"notify: no body", netproto.RequestSize, -1, "notify", orbitte.EffectUnknown},
	{"notify: half a body", netproto.RequestSize + 4, -1, "notify", orbitte.EffectUnknown},
	{"notify: no receipt", -1, netproto.ReplySize, "notify", orbitte.EffectUnknown},
}

const (
	holeDeadline = 400 * time.Millisecond
	holeGrace    = 5 * time.Second // the machine is shared; the point is that it is bounded
)

// field case F-16
func TestABlackHoleAtAnyProtocolStepEndsByTheDeadline(t *testing.T) {
	t.Parallel()
	onKernels(t, func(t *testing.T, kernel orbitte.KernelChoice) {
		src := spawnSource(t, settings{
			Kernel: kernel, SourceTimeout: 10 * holeDeadline, // it must not give up first
			Limits: orbitte.Limits{SourceHandlers: 64, SourceQueue: 64},
		}, 2*holePayload)
		e := openEngine(t, orbitte.Config{Kernel: kernel, Limits: orbitte.Limits{Submissions: 64}})
		t.Run("steps", func(t *testing.T) {
			for _, step := range swallowedSteps {
				t.Run(step.name, func(t *testing.T) {
					t.Parallel()
					(&holeCase{t, e, src, newHole(t, src.Endpoint), buffer(t, e, holePayload), nil}).run(step)
				})
			}
		})
		src.closeClean()
	})
}

type holeCase struct {
	t       *testing.T
	e       *orbitte.Engine
	src     *source
	hole    *hole
	local   *orbitte.Memory
	segment *orbitte.Segment
}

// run attempts a step until something of it has vanished: on a busy machine the deadline may come before. That attempt
// ends by its deadline as well, and how far it came is not known; the next one has a hole of its own.
func (c *holeCase) run(step swallowed) {
	for n := 0; !c.vanishes(step); n++ {
		if n == 20 {
			c.t.Fatal("the step was never reached before its deadline")
		}
		c.closeSegment()
		c.hole = newHole(c.t, c.src.Endpoint)
	}
	c.hole.allow(-1, -1)
	if _, err := c.attempt(step.do, 20*time.Second); err != nil {
		c.t.Errorf("after the hole: %v", err)
	}
	if step.do == "read" && !stamped(c.local.Bytes(), c.src.Epoch) {
		c.t.Error("after the hole: the page read is not the source's")
	}
	c.closeSegment()
}

// vanishes says whether the hole had something of the step. The attempt ends by its deadline either way.
func (c *holeCase) vanishes(step swallowed) bool {
	c.segment = openSegment(c.t, c.e, c.hole.endpoint(), c.src.Epoch)
	stamp(c.local.Bytes(), orbitte.Epoch{7: 1})
	c.hole.allow(step.up, step.down)
	began := time.Now()
	remote, err := c.attempt(step.do, holeDeadline)
	if took := time.Since(began); took > holeDeadline+holeGrace {
		c.t.Errorf("ended after %v, %v behind the deadline", took, took-holeDeadline)
	}
	if !errors.Is(err, orbitte.ErrDeadline) {
		c.t.Errorf("got %v, want %v", err, orbitte.ErrDeadline)
	}
	if !stamped(c.local.Bytes(), orbitte.Epoch{7: 1}) {
		c.t.Error("the local range was changed")
	}
	if c.hole.lost.Load() == 0 {
		return false
	}
	if remote != step.remote {
		c.t.Errorf("remote effect %v, want %v", remote, step.remote)
	}
	return true
}

func (c *holeCase) closeSegment() {
	if err := within(20*time.Second, func(ctx context.Context) error { return c.e.CloseSegment(ctx, c.segment) }); err != nil {
		c.t.Error(err)
	}
}

func (c *holeCase) attempt(do string, d time.Duration) (remote orbitte.Effect, err error) {
	err = within(d, func(ctx context.Context) error {
		switch do {
		case "describe":
			return c.segment.Refresh(ctx)
		case "notify":
			report, err := c.e.SendNotification(ctx, c.segment, orbitte.Notification{Name: "name", Message: "message"})
			remote = report.Effect
			return err
		}
		r := orbitte.Request{Operation: orbitte.Read, Segment: c.segment, Local: c.local.Address(), Remote: c.src.Address, Length: holePayload}
		if do == "write" {
			r.Operation = orbitte.Write
			r.Remote += holePayload // what the others read stays as it is
		}
		report, err := c.e.SubmitAndWait(ctx, []orbitte.Request{r})
		remote = report.Remote
		return err
	})
	return remote, err
}

// field case F-16
func TestAConnectThatNobodyAnswersEndsByTheDeadline(t *testing.T) {
	t.Parallel()
	onKernels(t, func(t *testing.T, kernel orbitte.KernelChoice) {
		t.Parallel()
		endpoint := deafListener(t)
		e := openEngine(t, orbitte.Config{Kernel: kernel})
		began := time.Now()
		err := within(holeDeadline, func(ctx context.Context) error {
			_, err := e.OpenSegment(ctx, endpoint, orbitte.Epoch{1})
			return err
		})
		if took := time.Since(began); took > holeDeadline+holeGrace {
			t.Errorf("ended after %v", took)
		}
		if !errors.Is(err, orbitte.ErrDeadline) {
			t.Errorf("got %v, want %v", err, orbitte.ErrDeadline)
		}
	})
}

// deafListener has a full backlog, so that the system drops every further SYN.
func deafListener(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) }) // nothing depends on it
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	endpoint := net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: name.(*unix.SockaddrInet4).Port}
	for {
		c, err := net.DialTimeout("tcp", endpoint.String(), 200*time.Millisecond)
		if err != nil {
			return endpoint.String()
		}
		t.Cleanup(func() { c.Close() }) // nothing depends on it
	}
}
