package field

import (
	"context"
	"errors"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/orbitte/orbitte"
)

// burst opens Count segments at once, Workers at a time, and reads Length bytes over each. The peers are one source
// under many addresses of 127/8: different endpoints, so different peers.
type burst struct {
	Engine         int
	Net            byte // of 127.Net.x.y
	Port           uint16
	Epoch          orbitte.Epoch
	First, Count   int
	Workers        int
	Local, Remote  uint64
	Length         uint64
	Keep           bool // leave the segments open
	Timeout        time.Duration
	Opened, Read   int // results
	PeakSockets    int // own sockets seen at once, from /proc/self/net/tcp
	ErrorTexts     []string
	Again          int // submissions after a lost connection
	mu             sync.Mutex
	ErrorsByClass  map[string]int
	SegmentsOpened []int
}

// manyAddress is the n-th peer's endpoint.
func manyAddress(net byte, n int, port uint16) string {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, net, byte(n/200 + 1), byte(n%200 + 1)}), port).String()
}

func (h *host) burst(b *burst) (*burst, error) {
	b.ErrorsByClass = map[string]int{}
	stop, sampled := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(sampled)
		for {
			sum := 0
			for state, n := range ownSockets() {
				if state != "listen" {
					sum += n
				}
			}
			b.PeakSockets = max(b.PeakSockets, sum)
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	work := make(chan int)
	var workers sync.WaitGroup
	for range b.Workers {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for n := range work {
				h.burstOne(b, n)
			}
		}()
	}
	for n := range b.Count {
		work <- b.First + n
	}
	close(work)
	workers.Wait()
	close(stop)
	<-sampled
	return b, nil
}

func (h *host) burstOne(b *burst, n int) {
	e := h.engine(b.Engine)
	// A source at its own limit may end an idle stream just when a request is on its way. Nothing is replayed by
	// the transport; a READ may be submitted again.
	var s, again int
	var err error
	for ; again < 5; again++ {
		s, err = h.segment(peerOf{b.Engine, manyAddress(b.Net, n, b.Port), b.Epoch, b.Timeout})
		if err == nil {
			_, err = submit(e, b.Timeout, orbitte.Request{Operation: orbitte.Read, Segment: h.segmentAt(s), Local: b.Local, Remote: b.Remote, Length: b.Length})
		}
		if !errors.Is(err, orbitte.ErrDisconnected) {
			break
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Again += again
	if err != nil {
		b.ErrorsByClass[classOf(err)]++
		if len(b.ErrorTexts) < 3 {
			b.ErrorTexts = append(b.ErrorTexts, err.Error())
		}
		return
	}
	b.Read++
	if b.Keep {
		b.SegmentsOpened = append(b.SegmentsOpened, s)
		return
	}
	if err := within(b.Timeout, func(ctx context.Context) error { return e.CloseSegment(ctx, h.segmentAt(s)) }); err != nil {
		b.ErrorTexts = append(b.ErrorTexts, err.Error())
	}
}

// manyPeers are a source and a requester, each in its own process, for bursts.
type manyPeers struct {
	*source
	requester *child
	own       opened
	local     placed
	net       byte
}

func spawnManyPeers(t *testing.T, net byte, at, from settings, environment ...string) *manyPeers {
	t.Helper()
	at.Bind, at.Advertise = "0.0.0.0:0", "127.0.0.1:0"
	m := &manyPeers{source: spawnSource(t, at, pageBytes), requester: spawn(t, "requester", environment...), net: net}
	m.own = ask[opened](m.requester, "open", from)
	m.local = ask[placed](m.requester, "place", place{Engine: m.own.Engine, Bytes: pageBytes})
	return m
}

func (m *manyPeers) burst(first, count, workers int, keep bool) *burst {
	m.t.Helper()
	port, err := strconv.Atoi(m.Endpoint[len("127.0.0.1:"):])
	if err != nil {
		m.t.Fatal(err)
	}
	return ask[*burst](m.requester, "burst", &burst{
		Engine: m.own.Engine, Net: m.net, Port: uint16(port), Epoch: m.Epoch, First: first, Count: count, Workers: workers,
		Local: m.local.Address, Remote: m.Address, Length: 64, Keep: keep, Timeout: 30 * time.Second,
	})
}

// streams is how many connections a process has, its listener apart.
func streams(c *child) int {
	c.t.Helper()
	n := 0
	for state, count := range ask[usage](c, "usage", nil).Sockets {
		if state != "listen" {
			n += count
		}
	}
	return n
}

// field case F-27
func TestBurstsOfAThousandPeersStayUnderTheCapAndIdleStreamsAreReaped(t *testing.T) {
	t.Parallel()
	peers, limit := scaled(1000), 64
	if peers < 1000 {
		limit = 16
	}
	workers := limit * 3 / 8 // fewer than one lane's share, so that all may meet on one lane
	onKernels(t, func(t *testing.T, kernel orbitte.KernelChoice) {
		t.Parallel()
		for _, c := range []struct {
			name     string
			at, from time.Duration // idle timeouts of source and requester
		}{
			{"requester reaps", time.Hour, time.Second},
			{"source reaps", time.Second, time.Hour},
		} {
			t.Run(c.name, func(t *testing.T) {
				limits := orbitte.Limits{PeerSegments: limit}
				m := spawnManyPeers(t, byte(27+kernel), settings{Kernel: kernel, Limits: limits, IdleTimeout: c.at, SourceTimeout: time.Minute},
					settings{Kernel: kernel, Limits: limits, IdleTimeout: c.from})
				peak, again := 0, 0
				for first := 0; first < peers; first += peers / 4 {
					b := m.burst(first, peers/4, workers, true)
					if b.Read != peers/4 {
						t.Errorf("burst at %d: %d of %d peers were read: %v %q", first, b.Read, peers/4, b.ErrorsByClass, b.ErrorTexts)
					}
					again += b.Again
					peak = max(peak, b.PeakSockets, streams(m.requester))
					if n := streams(m.child); n > limit {
						t.Errorf("%d connections at the source, limit %d", n, limit)
					}
				}
				at, from := ask[counters](m.child, "stats", engineOf{}), ask[counters](m.requester, "stats", engineOf{})
				if peak > limit {
					t.Errorf("%d connections at once, limit %d", peak, limit)
				}
				if from.Totals.Evicted == 0 {
					t.Error("no stream was evicted: the bursts never met the limit")
				}
				if !eventually(10*time.Second, func() bool { return streams(m.child) == 0 && streams(m.requester) == 0 }) {
					t.Errorf("idle connections are left: %d at the source, %d at the requester", streams(m.child), streams(m.requester))
				}
				at, from = ask[counters](m.child, "stats", engineOf{}), ask[counters](m.requester, "stats", engineOf{})
				closer, other := from.Totals.IdleClosed, at.Totals.IdleClosed
				if c.at < c.from {
					closer, other = other, closer
				}
				if closer == 0 || other != 0 {
					t.Errorf("the idle end closed %d streams, the patient one %d", closer, other)
				}
				t.Logf("%d peers, at most %d connections at once; %d evicted by the requester, %d by the source; %d reaped; %d READs again", peers, peak, from.Totals.Evicted, at.Totals.Evicted, closer, again)
				for c, e := range map[*child]int{m.child: m.Engine, m.requester: m.own.Engine} {
					if left := ask[[]string](c, "close", engineOf{e}); len(left) > 0 {
						t.Errorf("%s: left after Close: %v", c.name, left)
					}
				}
			})
		}
	})
}

// field case F-51
func TestAThousandIdlePeersCostNoProcessor(t *testing.T) {
	t.Parallel()
	onKernels(t, func(t *testing.T, kernel orbitte.KernelChoice) {
		t.Parallel()
		limits := orbitte.Limits{PeerSegments: 4096}
		s := settings{Kernel: kernel, Limits: limits, IdleTimeout: time.Hour}
		m := spawnManyPeers(t, byte(51+kernel), s, s)
		m.burst(0, 1, 1, true) // so that the difference is about peers alone
		peers := scaled(1000)
		before := []usage{ask[usage](m.child, "usage", nil), ask[usage](m.requester, "usage", nil)}
		b := m.burst(1, peers, 24, true)
		if b.Read != peers {
			t.Fatalf("%d of %d peers were read: %v %q", b.Read, peers, b.ErrorsByClass, b.ErrorTexts)
		}
		after := []usage{ask[usage](m.child, "usage", nil), ask[usage](m.requester, "usage", nil)}
		for i, name := range []string{"source", "requester"} {
			if n := after[i].Sockets["established"]; n < peers*99/100 || n > peers+1 { // the list may skip some while others come and go
				t.Errorf("the %s has %d connections, not %d", name, n, peers+1)
			}
			perPeer := func(a, b uint64) int64 { return (int64(a) - int64(b)) / int64(peers) }
			t.Logf("%s: %d bytes of heap and %d bytes resident per idle peer", name,
				perPeer(after[i].Heap, before[i].Heap), perPeer(after[i].RSS, before[i].RSS))
		}
		const watched, share = 3 * time.Second, 0.01
		for _, c := range []*child{m.child, m.requester} {
			used := make([]time.Duration, 2)
			for j := range used {
				if j == 1 {
					time.Sleep(watched)
				}
				used[j] = ask[time.Duration](c, "cpu", nil)
			}
			if got := used[1] - used[0]; got > time.Duration(share*float64(watched)) {
				t.Errorf("%s with %d idle peers used %v of processor time in %v, more than %v of one", c.name, peers, got, watched, share)
			} else {
				t.Logf("%s: %v of processor time in %v", c.name, got, watched)
			}
		}
	})
}
