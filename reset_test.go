package orbitte

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// cutter is a TCP proxy on another address of this host, for the control port and the data port of a source. When told to
// it passes so many more bytes in one direction, over any of its connections, and then resets both ends of that one.
type cutter struct {
	mu    sync.Mutex
	armed bool
	way   int // 0: to the source
	left  int // bytes
	live  map[*splice]bool
	wait  sync.WaitGroup
	doors []net.Listener
}

// splice is one connection through the proxy; ends are those to the requester and to the source.
type splice struct {
	cutter *cutter
	ends   [2]*net.TCPConn
}

// newCutter listens at host for every port of the source.
func newCutter(t *testing.T, host, source string, ports ...string) *cutter {
	t.Helper()
	c := &cutter{live: map[*splice]bool{}}
	for _, port := range ports {
		door, err := net.Listen("tcp", net.JoinHostPort(host, port))
		must(t, err)
		c.doors = append(c.doors, door)
		c.wait.Go(func() { c.serve(door, net.JoinHostPort(source, port)) })
	}
	t.Cleanup(func() {
		for _, door := range c.doors {
			door.Close()
		}
		c.mu.Lock()
		for s := range c.live {
			s.reset()
		}
		c.mu.Unlock()
		c.wait.Wait()
	})
	return c
}

func (c *cutter) serve(door net.Listener, source string) {
	for {
		from, err := door.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", source)
		if err != nil {
			from.Close()
			continue
		}
		s := &splice{c, [2]*net.TCPConn{from.(*net.TCPConn), to.(*net.TCPConn)}}
		c.mu.Lock()
		c.live[s] = true
		c.mu.Unlock()
		for way := range 2 {
			c.wait.Go(func() { s.pass(way) })
		}
	}
}

// pass carries one direction until its end.
func (s *splice) pass(way int) {
	buffer := make([]byte, 16<<10)
	from, to := s.ends[way], s.ends[1-way]
	for {
		n, err := from.Read(buffer)
		allowed, cut := s.cutter.allow(way, n)
		if _, failed := to.Write(buffer[:allowed]); failed != nil && err == nil {
			err = failed
		}
		switch {
		case cut:
			s.end(true)
			return
		case err != nil:
			s.end(err != io.EOF)
			return
		}
	}
}

// allow says how many of n bytes may pass, and whether the connection is cut behind them.
func (c *cutter) allow(way, n int) (int, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.armed || c.way != way || n == 0 {
		return n, false
	}
	allowed := min(n, c.left)
	if c.left -= allowed; c.left > 0 {
		return allowed, false
	}
	c.armed = false
	return allowed, true
}

func (s *splice) end(reset bool) {
	s.cutter.mu.Lock()
	defer s.cutter.mu.Unlock()
	delete(s.cutter.live, s)
	if reset {
		s.reset()
	}
	for _, end := range s.ends {
		end.Close()
	}
}

// reset lets both ends answer with RST from now on.
func (s *splice) reset() {
	for _, end := range s.ends {
		_ = end.SetLinger(0) // fails for one that is closed
		end.Close()
	}
}

// cut arms the proxy; it answers how many connections there are.
func (c *cutter) cut(way, left int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed, c.way, c.left = true, way, left
}

// calm disarms the proxy, and says whether it had cut and how many connections there are.
func (c *cutter) calm() (cut bool, live int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cut, c.armed = !c.armed, false
	return cut, len(c.live)
}

// resetWorld is two engines with a cutter between them.
type resetWorld struct {
	*pair
	t      *testing.T
	cutter *cutter
	staged bool // true exactly when payload over TCP is staged at both ends
	random *rand.Rand
}

func newResetWorld(t *testing.T, c Config, staged bool, random *rand.Rand) *resetWorld {
	if c.TCPHostMemory = Direct; staged {
		c.TCPHostMemory = Staged
	}
	c.HPTCP = &HPTCPConfig{ChunkBytes: 32 << 10}
	const size = 130_000
	w := &resetWorld{t: t, staged: staged, random: random}
	w.pair = &pair{source: newEngine(t, c), requester: newEngine(t, c), remote: allocated(t, size), local: allocated(t, size)}
	registered(t, w.source, w.remote, ReadWrite, OverHPTCP)
	registered(t, w.requester, w.local, LocalOnly)
	_, control, err := net.SplitHostPort(w.source.Endpoint())
	must(t, err)
	_, data, err := net.SplitHostPort(w.source.Stats().HPTCP.Address)
	must(t, err)
	w.cutter = newCutter(t, "127.0.0.3", "127.0.0.1", control, data)
	w.segment, err = w.requester.OpenSegment(soon(t), net.JoinHostPort("127.0.0.3", control), w.source.Epoch())
	must(t, err)
	t.Cleanup(func() { must(t, w.requester.CloseSegment(soon(t), w.segment)) })
	return w
}

// quiet waits until the source has no streams but those that the proxy still has: what was cut has ended there too.
func (w *resetWorld) quiet(live int) {
	w.t.Helper()
	for range 5000 {
		streams := 0
		for _, g := range w.source.Stats().Gauges {
			if g.Name == "accepted streams, lane 0" || g.Name == "HP-TCP accepted streams, lane 0" {
				streams += int(g.Used)
			}
		}
		if streams <= live {
			return
		}
		time.Sleep(time.Millisecond)
	}
	w.t.Fatalf("the source keeps streams that were cut")
}

// round is one request whose connection is cut somewhere; what really happened to both ranges is held against what is said.
func (w *resetWorld) round(i int) (cut bool) {
	sizes := [...]int{1, 64, 5000, 40_000, 130_000}
	r := w.request([]Operation{Read, Write}[i&1], 0, sizes[w.random.IntN(len(sizes))])
	r.Transport = []Transport{TransportTCP, TransportHPTCP}[i>>1&1]
	r.Atomic = r.Transport == TransportHPTCP && w.random.IntN(3) == 0
	pattern(w.remote, 2*i+1)
	pattern(w.local, 2*i)
	old := [2][]byte{bytes.Clone(w.local.Bytes()), bytes.Clone(w.remote.Bytes())}
	way, left := 1-i&1, 1+w.random.IntN(int(r.Length)+100) // where the payload goes
	if w.random.IntN(3) == 0 {                             // within frames
		way, left = w.random.IntN(2), 1+w.random.IntN(100)
	}
	w.cutter.cut(way, left)
	report, err := w.requester.SubmitAndWait(soon(w.t), []Request{r})
	cut, live := w.cutter.calm()
	w.quiet(live)
	what := fmt.Sprintf("round %d: %v over %v, atomic %v, of %d bytes, cut %v after %d on way %d: %+v, %v", i, r.Operation, r.Transport, r.Atomic, r.Length, cut, left, way, report, err)
	if !report.LocallyDrained || err == nil != (report.Completed == 1) {
		w.t.Error(what)
	}
	to, from, now, effect, other := 1, 0, w.remote.Bytes(), report.Remote, report.Local
	if r.Operation == Read {
		to, from, now, effect, other = 0, 1, w.local.Bytes(), report.Local, report.Remote
	}
	if source := [2]*Memory{w.local, w.remote}[from]; !bytes.Equal(source.Bytes(), old[from]) || other != EffectNone {
		w.t.Errorf("%s: the range that is only read changed", what)
	}
	whole := w.staged && r.Transport == TransportTCP || r.Atomic // all or nothing
	w.judge(what, effect, err, whole, r.Operation, [3][]byte{old[to][:r.Length], old[from][:r.Length], now[:r.Length]})
	if !bytes.Equal(now[r.Length:], old[to][r.Length:]) {
		w.t.Errorf("%s: bytes behind the range changed", what)
	}
	return cut
}

// judge holds an effect against the bytes as they were, as they should become, and as they are.
func (w *resetWorld) judge(what string, effect Effect, err error, whole bool, op Operation, b [3][]byte) {
	w.t.Helper()
	untouched, complete := bytes.Equal(b[2], b[0]), bytes.Equal(b[2], b[1])
	switch {
	case err == nil && !complete:
		w.t.Errorf("%s: success without the bytes", what)
	case err != nil && (effect == EffectComplete && !complete || effect == EffectNone && !untouched):
		w.t.Errorf("%s: untouched %v, complete %v", what, untouched, complete)
	case err != nil && whole && !untouched && !complete:
		w.t.Errorf("%s: a mixture", what)
	case err != nil && whole && op == Read && (!untouched || effect != EffectNone):
		w.t.Errorf("%s: a failed READ that keeps the range changed it, or does not know", what)
	}
	for i := range b[2] {
		if b[2][i] != b[0][i] && b[2][i] != b[1][i] {
			w.t.Errorf("%s: byte %d is neither old nor new", what, i)
			return
		}
	}
}

// Connections of real kernels that are reset anywhere, in both directions: what the report says of both ranges is what
// happened to them. An effect of none changed nothing, whole transfers are whole, a failed READ that is staged leaves the local
// range as it was.
//
// proves T-1, T-2, T-5, T-10, H-5
func TestEffectsAfterResetsAreWhatHappened(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		must(t, err)
	}
	t.Logf("SEED=%d; replay (the kernel's timing apart): SEED=%d go test -run EffectsAfterResets .", seed, seed)
	eachKernel(t, func(t *testing.T, c Config) {
		for _, staged := range []bool{true, false} {
			t.Run(map[bool]string{true: "staged", false: "direct"}[staged], func(t *testing.T) {
				w := newResetWorld(t, c, staged, rand.New(rand.NewPCG(seed, uint64(slices.Index([]bool{true, false}, staged)))))
				const rounds = 160
				cut := 0
				for i := range rounds {
					if w.round(i) {
						cut++
					}
					if t.Failed() {
						return
					}
				}
				if cut < rounds/3 {
					t.Errorf("%d of %d rounds met their cut", cut, rounds)
				}
			})
		}
	})
}
