package orbitte

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes/hptcp"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/segments"
)

// A request that is cancelled, or whose deadline passes, in the middle comes back with its memory quiet and its effects
// told, and the next one works.
//
// proves G-8, H-5
func TestHPTCPRequestsEndEarlyWithTheirEffects(t *testing.T) {
	for _, op := range []Operation{Read, Write} {
		for _, atomic := range []bool{false, true} {
			for _, class := range []error{ErrCancelled, ErrDeadline} {
				s := newFastSim(t, 6, simkernel.WorldOptions{}, Config{}, Config{}, 1<<20)
				pattern(s.local, 77)
				before := bytes.Clone(s.local.Bytes())
				s.Link(hostA, hostB).Delay(100*time.Microsecond, 200*time.Microsecond)
				s.Link(hostB, hostA).Delay(100*time.Microsecond, 200*time.Microsecond)
				r := hurried(s.request(op, 0, 1<<20))
				r.Atomic = atomic
				ctx := s.within(time.Second)
				if class == ErrDeadline {
					ctx = s.within(1200 * time.Microsecond)
				}
				b, err := s.requester.Submit(ctx, []Request{r})
				must(t, err)
				if class == ErrCancelled {
					s.Later(1200*time.Microsecond, b.Cancel)
				}
				report, err := b.Wait(s.within(2 * time.Second))
				wants(t, err, class)
				want := [2]Effect{EffectPartial, EffectNone}
				if op == Write {
					want = [2]Effect{EffectNone, EffectUnknown}
				} else if atomic {
					want[0] = EffectNone
				}
				if !report.LocallyDrained || [2]Effect{report.Local, report.Remote} != want {
					t.Errorf("%v, atomic %v, %v: %+v", op, atomic, class, report)
				}
				if atomic && op == Read && !bytes.Equal(s.local.Bytes(), before) {
					t.Errorf("an Atomic READ has changed the local range")
				}
				must(t, b.Free())
				s.until(10*time.Second, func() bool { return s.source.admission.Gate.Inside() == 0 }) // what the source still had
				_, err = s.requester.SubmitAndWait(s.within(time.Second), []Request{r})
				must(t, err)
			}
		}
	}
}

// A process that comes to the same addresses in the place of the source inherits nothing.
//
// proves G-1, H-2
func TestRestartOnTheSameDataPortInheritsNothing(t *testing.T) {
	s := newSim(t, 7, simkernel.WorldOptions{})
	requester, _ := s.engine("requester", hostB, fast(Config{}))
	memory, local := allocated(t, 4096), allocated(t, 4096)
	registered(t, requester, local, LocalOnly)
	start := func(name string) *Engine {
		p := s.Process(name, hostA)
		c := s.config(p, Config{HPTCP: &HPTCPConfig{Bind: "10.0.0.1:7001"}}, "10.0.0.1:7000")
		e, err := Open(c)
		must(t, err)
		s.drive(e)
		return e
	}
	first := start("first")
	export, err := first.Register(memory, 0, 4096, ReadWrite, OverHPTCP)
	must(t, err)
	old := opened(t, requester, first)
	request := Request{Operation: Read, Transport: TransportHPTCP, Segment: old, Local: local.Address(), Remote: memory.Address(), Length: 4096}
	_, err = requester.SubmitAndWait(soon(t), []Request{request})
	must(t, err)
	must(t, first.Unregister(soon(t), export))
	closeEngine(t, first)
	second := start("second")
	defer drain(t, second)
	export, err = second.Register(memory, 0, 4096, ReadWrite, OverHPTCP) // the same address: only the life tells them apart
	must(t, err)
	defer func() { must(t, second.Unregister(soon(t), export)) }()
	for range 2 {
		_, err = requester.SubmitAndWait(soon(t), []Request{request})
		if err != nil && !errors.Is(err, ErrStaleEpoch) { // the first attempt may find its old stream reset
			wants(t, err, ErrDisconnected)
			continue
		}
		wants(t, err, ErrStaleEpoch)
	}
	if n := second.Stats().HPTCP.HellosRefused; n == 0 || second.Stats().Totals.ReadsServed != 0 {
		t.Errorf("%d hellos refused, %d READs served", n, second.Stats().Totals.ReadsServed)
	}
	fresh := opened(t, requester, second)
	request.Segment = fresh
	_, err = requester.SubmitAndWait(soon(t), []Request{request})
	must(t, err)
}

// A source that comes back on its endpoint with another data port is known for what it is: nobody listens on the old one
// any more, so the control stream is asked. Where nobody is there at all that is said; a data port that alone does not answer
// is named as such.
//
// proves G-1, H-2
func TestRestartOnAnotherDataPortIsAStaleEpoch(t *testing.T) {
	s := newSim(t, 7, simkernel.WorldOptions{})
	requester, _ := s.engine("requester", hostB, fast(Config{}))
	memory, local := allocated(t, 4096), allocated(t, 4096)
	registered(t, requester, local, LocalOnly)
	start := func(name, data string) *Engine {
		e, err := Open(s.config(s.Process(name, hostA), Config{HPTCP: &HPTCPConfig{Bind: data}}, "10.0.0.1:7000"))
		must(t, err)
		s.drive(e)
		return e
	}
	first := start("first", "10.0.0.1:7001")
	export, err := first.Register(memory, 0, 4096, ReadWrite, OverHPTCP)
	must(t, err)
	old := opened(t, requester, first)
	request := Request{Operation: Read, Transport: TransportHPTCP, Segment: old, Local: local.Address(), Remote: memory.Address(), Length: 4096}
	must(t, first.Unregister(soon(t), export))
	closeEngine(t, first)
	_, err = requester.SubmitAndWait(soon(t), []Request{request}) // nobody is there at all
	own := wants(t, err, ErrUnreachable)
	if text := own.Error(); !strings.Contains(text, "10.0.0.1:7001") || !strings.Contains(text, "nor does the control port") || own.Remedy() != advices[ErrUnreachable].remedy {
		t.Errorf("not both ports are named: %v", err)
	}
	second := start("second", "10.0.0.1:7002")
	defer drain(t, second)
	for range 2 {
		report, err := requester.SubmitAndWait(soon(t), []Request{request, request})
		if wants(t, err, ErrStaleEpoch); report.Failed != 0 || !report.LocallyDrained {
			t.Errorf("%+v", report)
		}
	}
	second.hptcp.endpoint.Port = 7003 // as if what leads there had been shut
	export, err = second.Register(memory, 0, 4096, ReadWrite, OverHPTCP)
	must(t, err)
	request.Segment = opened(t, requester, second)
	_, err = requester.SubmitAndWait(soon(t), []Request{request})
	own = wants(t, err, ErrUnreachable)
	if text := own.Error(); !strings.Contains(text, "10.0.0.1:7003") || strings.Contains(text, "nor does") || !strings.Contains(own.Remedy(), "HPTCP.Bind") {
		t.Errorf("the data port alone is not named: %v", err)
	}
	must(t, second.Unregister(soon(t), export))
}

// A data port behind a firewall that answers nothing ends the request at its deadline, with the address that was tried, and
// with what that certainly did not do. field case F-24
func TestADataPortThatAnswersNothingIsNamed(t *testing.T) {
	s := newFastSim(t, 8, simkernel.WorldOptions{}, Config{}, Config{}, 2*hptcp.SmallBytes)
	s.Link(hostB, hostA).BlackHole(true)
	for _, size := range []int{4096, hptcp.SmallBytes + 1} {
		for class, remedy := range map[error]string{ErrDeadline: "HPTCP.Bind", ErrCancelled: "nothing, it was asked for"} {
			b, err := s.requester.Submit(s.within(time.Second), []Request{hurried(s.request(Write, 0, size))})
			must(t, err)
			if class == ErrCancelled {
				s.Later(500*time.Millisecond, b.Cancel)
			}
			report, err := b.Wait(s.within(2 * time.Second))
			own := wants(t, err, class)
			if report.Remote != EffectNone || !report.LocallyDrained {
				t.Errorf("%+v", report)
			}
			mentions(t, own.Error(), "data address 10.0.0.1:", "no stream could be opened in time")
			mentions(t, own.Known(), "nothing was posted", "the data port of HP-TCP")
			mentions(t, own.Remedy(), remedy)
			if class == ErrDeadline {
				mentions(t, own.Remedy(), "later deadline", "firewall")
			}
			must(t, b.Free())
		}
	}
	s.Link(hostB, hostA).BlackHole(false)
	_, err := s.requester.SubmitAndWait(soon(t), []Request{hurried(s.request(Read, 0, 4096))})
	must(t, err)
}

// The source checks every request, whatever the requester's view says: region, permission, opt-in and its own end.
//
// proves H-6, T-11
func TestASourceChecksEveryHPTCPRequest(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, s *simPair)
		class  error
	}{
		"region gone": {func(t *testing.T, s *simPair) { must(t, s.source.Unregister(soon(t), s.export)) }, ErrUnknownRegion},
		"no permission": {func(t *testing.T, s *simPair) {
			must(t, s.source.Unregister(soon(t), s.export))
			registered(t, s.source, s.remote, RemoteRead, OverHPTCP)
			believe(t, s, func(r *netproto.Region) { r.Permission = ReadWrite })
		}, ErrPermission},
		"not opted in": {func(t *testing.T, s *simPair) {
			must(t, s.source.Unregister(soon(t), s.export))
			registered(t, s.source, s.remote, ReadWrite)
			believe(t, s, func(r *netproto.Region) { r.Flags = netproto.RegionHPTCP })
		}, ErrUnavailable},
		"source closed": {func(t *testing.T, s *simPair) { must(t, s.source.CloseSource(soon(t))) }, ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFastSim(t, 8, simkernel.WorldOptions{}, Config{}, Config{}, 64<<10)
			pattern(s.local, 5)
			was := bytes.Clone(s.remote.Bytes())
			c.change(t, s)
			report, err := s.requester.SubmitAndWait(soon(t), []Request{hurried(s.request(Write, 0, 64<<10))})
			wants(t, err, c.class)
			if report.Completed != 0 || !bytes.Equal(s.remote.Bytes(), was) {
				t.Errorf("%+v, or the source's bytes have changed", report)
			}
		})
	}
}

// believe makes the requester take the source's last region for something else.
func believe(t *testing.T, s *simPair, change func(*netproto.Region)) {
	t.Helper()
	d := netproto.Descriptor{Capabilities: s.source.capabilities(), Regions: append([]netproto.Region(nil), s.source.tracker.Mirror().Regions()...), HPTCP: s.source.hptcp.endpoint}
	change(&d.Regions[len(d.Regions)-1])
	remote, err := segments.NewRemote(s.segment.endpoint, s.segment.epoch, d)
	must(t, err)
	s.segment.remote.Store(remote)
}

// Whoever connects to the data port and talks nonsense is thrown out, and nobody else notices; what has only begun to talk
// does not hold Close up.
//
// proves H-2, H-7, G-6, W-15
func TestStrangersAtTheDataPortHurtNobody(t *testing.T) {
	eachKernel(t, func(t *testing.T, c Config) {
		p := newFastPair(t, c, c, 1<<20)
		at := p.source.Stats().HPTCP.Address
		random := rand.New(rand.NewPCG(1, 1))
		var open []net.Conn
		defer func() {
			for _, s := range open {
				s.Close()
			}
		}()
		for i := range 20 {
			s, err := net.Dial("tcp", at)
			must(t, err)
			open = append(open, s)
			b := make([]byte, 1+random.IntN(200))
			for k := range b {
				b[k] = byte(random.Uint32())
			}
			hello := netproto.AppendHPTCPHello(nil, netproto.HPTCPHello{Expected: p.source.Epoch(), Requester: Epoch{9}, Chunk: 4096, InFlight: 4096})
			switch i % 4 {
			case 0:
				b = hello[:17]
			case 1:
				b = append(hello, b...)
			case 2:
				b = netproto.AppendRequest(nil, netproto.Request{Operation: netproto.OperationDescribe, Epoch: p.source.Epoch()})
			}
			_, err = s.Write(b)
			must(t, err)
			_, err = p.requester.SubmitAndWait(soon(t), []Request{hurried(p.request(Read, 0, 1<<20))})
			must(t, err)
		}
		control, err := net.Dial("tcp", p.source.Endpoint())
		must(t, err)
		defer control.Close()
		must(t, control.SetDeadline(time.Now().Add(5*time.Second)))
		_, err = control.Write(netproto.AppendHPTCPHello(nil, netproto.HPTCPHello{Expected: p.source.Epoch(), Requester: Epoch{9}, Chunk: 1, InFlight: 1}))
		must(t, err)
		_, _ = io.ReadAll(control) // refused and closed
		half, err := net.Dial("tcp", at)
		must(t, err)
		defer half.Close()
		_, err = half.Write(netproto.AppendHPTCPHello(nil, netproto.HPTCPHello{Expected: p.source.Epoch(), Requester: Epoch{8}, Chunk: 4096, InFlight: 4096}))
		must(t, err)
		_, err = io.ReadFull(half, make([]byte, netproto.HPTCPHelloSize))
		must(t, err)
		_, err = half.Write(make([]byte, 20)) // half a frame
		must(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second) // less than the source's patience with a frame
		defer cancel()
		must(t, p.requester.CloseSegment(ctx, p.segment))
		must(t, p.source.Close(ctx))
	})
}

// Segments, source, requester and engine close in the middle of transfers, and leave nothing.
//
// proves G-5, G-6, U-2
func TestClosesInTheMiddleOfHPTCPTransfersLeaveNothing(t *testing.T) {
	eachKernel(t, func(t *testing.T, c Config) {
		for name, end := range map[string]func(p *pair) error{
			"segment":   func(p *pair) error { return p.requester.CloseSegment(soon(t), p.segment) },
			"source":    func(p *pair) error { return p.source.CloseSource(soon(t)) },
			"requester": func(p *pair) error { return p.requester.CloseRequester(soon(t)) },
			"engine":    func(p *pair) error { return p.requester.Close(soon(t)) },
			"other end": func(p *pair) error { return p.source.Close(soon(t)) },
		} {
			t.Run(name, func(t *testing.T) {
				p := newFastPair(t, c, c, 4<<20)
				var wait sync.WaitGroup
				began := make(chan struct{}, 100)
				for i := range 4 {
					wait.Go(func() {
						for {
							r := hurried(p.request([]Operation{Read, Write}[i%2], i<<20, 1<<20))
							report, err := p.requester.SubmitAndWait(soon(t), []Request{r})
							if err != nil {
								if !report.LocallyDrained || errors.Is(err, ErrUnquiesced) {
									t.Errorf("%v, %+v", err, report)
								}
								return
							}
							select {
							case began <- struct{}{}:
							default:
							}
						}
					})
				}
				for range 20 {
					<-began
				}
				must(t, end(p))
				wait.Wait()
			})
		}
	})
}

// More peers than slots take turns: an idle stream gives its slot up.
//
// proves U-3, T-4
func TestDataStreamsAreABudgetAndIdleOnesMakeRoom(t *testing.T) {
	s := newSim(t, 9, simkernel.WorldOptions{})
	requester, _ := s.engine("requester", hostB, fast(Config{HPTCP: &HPTCPConfig{Limits: HPTCPLimits{Streams: 2}}}))
	local := allocated(t, 64<<10)
	registered(t, requester, local, LocalOnly)
	var requests []Request
	for i := range 4 {
		source, _ := s.engine(fmt.Sprint("source", i), hostA, fast(Config{}))
		memory := allocated(t, 64<<10)
		pattern(memory, i)
		registered(t, source, memory, RemoteRead, OverHPTCP)
		requests = append(requests, Request{Operation: Read, Transport: TransportHPTCP, Segment: opened(t, requester, source), Local: local.Address(), Remote: memory.Address(), Length: 64 << 10})
	}
	for range 3 {
		report, err := requester.SubmitAndWait(soon(t), requests)
		if err != nil || report.Completed != 4 {
			t.Fatalf("%+v, %v", report, err)
		}
	}
	if g := gauge(t, requester, "HP-TCP peer streams, lane 0"); g.Limit != 2 || g.Used > 2 || g.Peak != 2 {
		t.Errorf("%+v", g)
	}
	if requester.Stats().Totals.Evicted == 0 {
		t.Error("nobody made room")
	}
}

// A source publishes no more streams than it accepts: a peer that opens as many as it is told loses none.
//
// proves H-1, U-3
func TestASourcePublishesNoMoreStreamsThanItAccepts(t *testing.T) {
	s := newFastSim(t, 3, simkernel.WorldOptions{}, Config{HPTCP: &HPTCPConfig{ChunkBytes: 4096, Limits: HPTCPLimits{Streams: 1}}}, wide(2), 1<<20)
	if d := s.segment.view().Descriptor().HPTCP; d.StreamsMax != 1 || s.source.Stats().HPTCP.Streams != 1 {
		t.Errorf("published is %+v", d)
	}
	for range 5 {
		_, err := s.requester.SubmitAndWait(soon(t), []Request{hurried(s.request(Read, 0, 1<<20)), hurried(s.request(Read, 0, 10))})
		must(t, err)
	}
	if n := s.requester.Stats().Totals.Connects; n != 2 {
		t.Errorf("%d connects, want one for control and one for data", n)
	}
}

// A byte that changes on the way is found by the checksum, in either direction, and named with its offset.
//
// proves H-9
func TestAByteThatChangesOnTheWayIsFound(t *testing.T) {
	const size, spoiled = 1 << 20, 300_000
	c := Config{Kernel: Epoll, Lanes: 1, HPTCP: &HPTCPConfig{ChunkBytes: 64 << 10, Checksums: true, Streams: 1}}
	p := newFastPair(t, c, c, size)
	must(t, p.requester.CloseSegment(soon(t), p.segment))
	data := p.source.Stats().HPTCP.Address
	for _, op := range []Operation{Read, Write} {
		endpoint := detour(t, p.source.Endpoint(), data, op, spoiled)
		segment, err := p.requester.OpenSegment(soon(t), endpoint, p.source.Epoch())
		must(t, err)
		r := hurried(p.request(op, 0, size))
		r.Segment = segment
		report, err := p.requester.SubmitAndWait(soon(t), []Request{r})
		wants(t, err, ErrProtocol)
		var mismatch *hptcp.MismatchError
		if !errors.As(err, &mismatch) || mismatch.Region != p.export.ID() || mismatch.Offset > spoiled || mismatch.Offset+64<<10 < spoiled-8000 || mismatch.Source != (op == Write) {
			t.Errorf("%v: %v, %+v", op, err, mismatch)
		}
		if report.Completed != 0 || max(report.Local, report.Remote) == EffectNone || report.Path != "hptcp, crc32c" {
			t.Errorf("%v: %+v", op, report)
		}
		must(t, p.requester.CloseSegment(soon(t), segment))
	}
	if p.requester.Stats().HPTCP.Mismatches != 2 {
		t.Errorf("%+v", p.requester.Stats().HPTCP)
	}
}

// detour forwards control and data to a source under another address of this host, and turns one bit around after so many
// bytes of data in the direction of the payload.
func detour(t *testing.T, control, data string, op Operation, spoil int) string {
	t.Helper()
	host := "127.0.0.2"
	if op == Write {
		host = "127.0.0.3"
	}
	for i, to := range []string{control, data} {
		at := netip.MustParseAddrPort(to)
		l, err := net.Listen("tcp", netip.AddrPortFrom(netip.MustParseAddr(host), at.Port()).String())
		if err != nil {
			t.Skip("no-address: " + err.Error())
		}
		var wait sync.WaitGroup
		wait.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				far, err := net.Dial("tcp", to)
				if err != nil {
					c.Close()
					continue
				}
				there, back := 0, 0
				if i == 1 && op == Write {
					there = spoil
				} else if i == 1 {
					back = spoil
				}
				wait.Go(func() { forward(far, c, there) })
				wait.Go(func() { forward(c, far, back) })
			}
		})
		t.Cleanup(func() {
			l.Close()
			wait.Wait()
		})
	}
	_, port, _ := net.SplitHostPort(control)
	return net.JoinHostPort(host, port)
}

func forward(to, from net.Conn, spoil int) {
	defer to.Close()
	defer from.Close()
	b, passed := make([]byte, 16<<10), 0
	for {
		n, err := from.Read(b)
		if spoil >= passed && spoil < passed+n && spoil > 0 {
			b[spoil-passed] ^= 0x10
		}
		passed += n
		if _, failed := to.Write(b[:n]); failed != nil || err != nil {
			return
		}
	}
}

// Endpoints of IPv6 and names work as for the control stream.
//
// proves H-1, T-8
func TestHPTCPReachesEndpointsOfEveryKind(t *testing.T) {
	both := func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")}, nil
	}
	c := fast(Config{Kernel: Epoll, Lanes: 2, Resolver: both})
	requester := newEngine(t, c)
	memory, local := allocated(t, 4096), allocated(t, 4096)
	registered(t, requester, local, LocalOnly)
	for _, bind := range []string{"[::1]:0", "127.0.0.1:0"} {
		renewed := c
		renewed.Bind = bind
		source, err := Open(renewed)
		if err != nil {
			t.Skip("no-ipv6: " + err.Error())
		}
		t.Cleanup(func() { drain(t, source) })
		registered(t, source, memory, RemoteRead, OverHPTCP)
		_, port, _ := net.SplitHostPort(source.Endpoint())
		for _, endpoint := range []string{source.Endpoint(), "model.example:" + port} {
			segment, err := requester.OpenSegment(soon(t), endpoint, source.Epoch())
			must(t, err)
			_, err = requester.SubmitAndWait(soon(t), []Request{{Operation: Read, Transport: TransportHPTCP, Segment: segment, Local: local.Address(), Remote: memory.Address(), Length: 4096}})
			must(t, err)
			must(t, requester.CloseSegment(soon(t), segment))
		}
	}
}

// proves H-1
func TestHPTCPConfigurationIsCheckedBeforeAnythingIsMade(t *testing.T) {
	leavesNothing(t)
	for what, c := range map[string]HPTCPConfig{
		"streams": {Streams: 65}, "negative": {Streams: -1}, "chunk": {ChunkBytes: 8<<20 + 1}, "small chunk": {ChunkBytes: 4<<10 - 1}, "credit": {ChunkBytes: 4096, InFlightBytes: 4095},
		"slots": {Limits: HPTCPLimits{Streams: -1}}, "lanes": {Limits: HPTCPLimits{Streams: 1}}, "bind": {Bind: "nowhere:port"},
	} {
		_, err := Open(Config{Kernel: Epoll, Lanes: 2, HPTCP: &c})
		if own := wants(t, err, ErrInvalid); !bytes.Contains([]byte(own.Error()), []byte("HPTCP")) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, c := range []struct {
		payload, chunk uint64
		limits         string
	}{{0, 1, "4096 to 8388608"}, {1 << 20, 4095, "4096 to 1048576"}, {1000, 999, "1000 to 1000"}, {0, 4096, ""}, {1000, 1000, ""}, {1000, 0, ""}} {
		e, err := Open(Config{Kernel: Epoll, Lanes: 1, Limits: Limits{PayloadBytes: c.payload}, HPTCP: &HPTCPConfig{ChunkBytes: c.chunk}})
		if c.limits == "" {
			must(t, err)
			closeEngine(t, e)
		} else if own := wants(t, err, ErrInvalid); !strings.Contains(own.Error(), fmt.Sprintf("ChunkBytes is %d; it must be %s,", c.chunk, c.limits)) {
			t.Errorf("%v", err)
		}
	}
	for _, c := range []Config{ // peers look for the data port under the host of the endpoint
		{HPTCP: &HPTCPConfig{Bind: "127.0.0.2:0"}}, {Bind: "[::1]:0", HPTCP: &HPTCPConfig{Bind: "0.0.0.0:0"}},
	} {
		c.Kernel, c.Lanes = Epoll, 1
		_, err := Open(c)
		if own := wants(t, err, ErrInvalid); !strings.Contains(own.Error(), "Config.HPTCP.Bind") {
			t.Errorf("%v", err)
		}
	}
	elsewhere, err := Open(Config{Kernel: Epoll, Lanes: 1, Advertise: "source.example:7000", HPTCP: &HPTCPConfig{Bind: "127.0.0.2:0"}})
	must(t, err) // the name may lead to both
	closeEngine(t, elsewhere)
	e := newEngine(t, Config{Kernel: Epoll, Lanes: 1, HPTCP: &HPTCPConfig{}})
	_, err = Open(Config{Kernel: Epoll, Lanes: 1, HPTCP: &HPTCPConfig{Bind: e.Stats().HPTCP.Address}})
	wants(t, err, ErrSystem) // the port is taken
}

// What a peer takes counts, also where it is less than an engine may have for itself: its payload limit may be small.
//
// proves H-1
func TestAPeersSmallPayloadLimitIsKeptPieceByPiece(t *testing.T) {
	p := newFastPair(t, Config{Lanes: 1, Limits: Limits{PayloadBytes: 100}}, Config{Lanes: 1}, 1000)
	for _, op := range []Operation{Read, Write} {
		before := p.requester.Stats().HPTCP.Requests
		_, err := p.requester.SubmitAndWait(soon(t), []Request{{Operation: op, Transport: TransportHPTCP, Segment: p.segment,
			Local: p.local.Address(), Remote: p.remote.Address(), Length: 1000}})
		must(t, err)
		if n := p.requester.Stats().HPTCP.Requests - before; n != 10 {
			t.Errorf("%v: %d pieces", op, n)
		}
	}
}

// Two engines write to each other's memory what the other one writes from: neither holds its range for longer than the
// system takes to copy it, so that they do not wait for each other.
//
// proves H-5, M-9
func TestCrossingAtomicWritesDoNotWaitForEachOther(t *testing.T) {
	crossWrites(newSim(t, 11, simkernel.WorldOptions{}), fast(Config{}), 64<<10, true, 1)
}

// crossWrites lets two engines write to each other from the ranges that the other one writes to, so many times.
func crossWrites(s *sim, c Config, size uint64, atomic bool, times int) {
	t := s.t
	t.Helper()
	var engines [2]*Engine
	var memories [2]*Memory
	for i, host := range []netip.Addr{hostA, hostB} {
		engines[i], _ = s.engine(fmt.Sprint("engine", i), host, c)
		memories[i] = allocated(t, int(size))
		registered(t, engines[i], memories[i], ReadWrite, OverHPTCP)
	}
	segments := [2]*Segment{opened(t, engines[0], engines[1]), opened(t, engines[1], engines[0])}
	for range times {
		var batches [2]*Batch
		for i, e := range engines {
			r := hurried(Request{Operation: Write, Atomic: atomic, Segment: segments[i], Local: memories[i].Address(), Remote: memories[1-i].Address(), Length: size})
			var err error
			batches[i], err = e.Submit(s.within(time.Second), []Request{r})
			must(t, err)
		}
		for _, b := range batches {
			_, err := b.Wait(soon(t))
			must(t, err)
			must(t, b.Free())
		}
	}
}

// A request that shared its stream with one that ran out of time is not told that its own time is over.
//
// proves G-8, T-5
func TestNeighbourOfADeadlineHasNoneOfItsOwn(t *testing.T) {
	c := Config{Kernel: Epoll, Lanes: 1, HPTCP: &HPTCPConfig{Streams: 1}}
	source, requester := newEngine(t, c), newEngine(t, c)
	far, near := allocated(t, 16384), allocated(t, 16384)
	registered(t, source, far, ReadWrite, OverHPTCP)
	registered(t, requester, near, LocalOnly)
	segment := opened(t, requester, source)
	lease, err := far.backing.Lend(0, 4096, segments.Exclusive) // the source's stream waits for it
	must(t, err)
	defer lease.Return()
	read := func(ctx context.Context, at uint64) error {
		_, err := requester.SubmitAndWait(ctx, []Request{{Operation: Read, Transport: TransportHPTCP, Segment: segment, Local: near.Address() + at, Remote: far.Address() + at, Length: 4096}})
		return err
	}
	first := make(chan error, 1)
	go func() { first <- read(within(t, 300*time.Millisecond), 0) }()
	for requester.Stats().HPTCP.Requests == 0 {
		time.Sleep(time.Millisecond)
	}
	err = read(context.Background(), 8192)
	wants(t, <-first, ErrDeadline)
	wants(t, err, ErrDisconnected)
	if errors.Is(err, context.DeadlineExceeded) {
		t.Error("the neighbour is told of a deadline:", err)
	}
}
