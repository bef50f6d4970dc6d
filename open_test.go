package orbitte

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/epoll"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/reactor/uring"
)

// spoiled is a kernel that fails where a test wants it to.
type spoiled struct {
	reactor.Kernel
	bind, listen error
}

func (k *spoiled) Bind() error {
	if k.bind != nil {
		return k.bind
	}
	return k.Kernel.Bind()
}

func (k *spoiled) Listen(a netip.AddrPort, o reactor.SocketOptions) (reactor.Descriptor, netip.AddrPort, error) {
	if k.listen != nil {
		return reactor.NoDescriptor, netip.AddrPort{}, k.listen
	}
	return k.Kernel.Listen(a, o)
}

func realKernel(c Config) (reactor.Kernel, error) {
	if c.Kernel == IOUring {
		return uring.New(uring.Options{AnyThread: c.Progress == Manual})
	}
	return epoll.New(epoll.Options{AnyThread: c.Progress == Manual, Guests: c.Progress <= EventDriven})
}

// field case F-2
func TestFailedOpenLeavesNothingAndTheNextOneSucceeds(t *testing.T) {
	eachMode(t, func(t *testing.T, c Config) {
		leavesNothing(t)
		c.Lanes = 2
		reason := &reactor.AffinityError{Loop: "spoiled", CPUs: []int{4000}, Err: unix.EINVAL}
		loops := []int{0, 1}
		if c.Progress != Manual {
			loops = append(loops, -1)
		}
		for _, bad := range loops {
			for _, step := range []string{"kernel", "bind"} {
				broken := c
				broken.OpenKernel = func(lane int) (reactor.Kernel, error) {
					if lane == bad && step == "kernel" {
						return nil, reason
					}
					kernel, err := realKernel(c)
					if lane == bad && step == "bind" && err == nil {
						return &spoiled{Kernel: kernel, bind: reason}, nil
					}
					return kernel, err
				}
				opens(t, broken, ErrSystem, reason)
			}
		}
		broken := c
		broken.OpenKernel = func(int) (reactor.Kernel, error) {
			kernel, err := realKernel(c)
			return &spoiled{Kernel: kernel, listen: unix.EADDRNOTAVAIL}, err
		}
		opens(t, broken, ErrSystem, unix.EADDRNOTAVAIL)
		broken = c
		broken.Advertise = "nowhere"
		opens(t, broken, ErrInvalid, nil)
		newEngine(t, c)
	})
}

// opens expects Open to fail and to leave nothing.
func opens(t *testing.T, c Config, class, cause error) {
	t.Helper()
	before, ringsBefore := descriptors(), rings()
	e, err := Open(c)
	if e != nil {
		t.Fatal("a failed Open returned an engine")
	}
	wants(t, err, class)
	if cause != nil && !errors.Is(err, cause) {
		t.Fatalf("%v does not wrap %v", err, cause)
	}
	if left := openedSince(before); len(left) > 0 || rings() != ringsBefore {
		t.Fatalf("%d rings left, and %v", rings()-ringsBefore, left)
	}
}

// field case F-67
func TestUsedPortIsAnErrorOfTheConstructor(t *testing.T) {
	eachKernel(t, func(t *testing.T, c Config) {
		e := newEngine(t, c)
		c.Bind = e.Endpoint()
		before := descriptors()
		_, err := Open(c)
		wants(t, err, ErrSystem)
		if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), e.Endpoint()) {
			t.Fatalf("the error names neither reason nor port: %v", err)
		}
		if own := wants(t, err, ErrSystem); !strings.Contains(own.Error(), "Config.Bind: listen on") || !strings.Contains(own.Remedy(), "another port") {
			t.Fatalf("the error does not name field and remedy: %v", err)
		}
		if left := openedSince(before); len(left) > 0 {
			t.Fatalf("the failed Open left %v", left)
		}
	})
}

// Two listeners on one port are a mistake of the configuration, and another's port is not.
//
// field case F-67
func TestTheDataListenersPortIsNamedWithItsField(t *testing.T) {
	eachKernel(t, func(t *testing.T, c Config) {
		leavesNothing(t)
		taken := newEngine(t, c)
		own := c
		own.HPTCP = &HPTCPConfig{Bind: taken.Endpoint()}
		_, err := Open(own)
		mentions(t, wants(t, err, ErrSystem).Error(), "Config.HPTCP.Bind: listen on "+taken.Endpoint(), "remedy: name another port there")
		closeEngine(t, taken)
		for _, hosts := range [][2]string{{"127.0.0.1", "127.0.0.1"}, {"127.0.0.1", "0.0.0.0"}} {
			_, port, _ := strings.Cut(taken.Endpoint(), ":")
			own.Bind, own.HPTCP = hosts[0]+":"+port, &HPTCPConfig{Bind: hosts[1] + ":" + port}
			_, err = Open(own)
			mentions(t, wants(t, err, ErrInvalid).Error(), "Config.HPTCP.Bind is \""+own.HPTCP.Bind, "Config.Bind listens on that port already ("+own.Bind+")")
		}
		own.Advertise, own.HPTCP = "source.example:7000", &HPTCPConfig{Bind: "127.0.0.2" + strings.TrimPrefix(own.Bind, "127.0.0.1")}
		e, err := Open(own) // of another address
		must(t, err)
		closeEngine(t, e)
	})
}

// The inbox takes the largest notification, whichever of the two limits is set.
func TestTheInboxTakesTheLargestNotification(t *testing.T) {
	for _, c := range []struct{ queue, one, wantQueue, wantOne uint64 }{{0, 0, 1 << 20, 64 << 10}, {1000, 0, 1000, 1000}, {0, 2 << 20, 2 << 20, 2 << 20}, {1000, 1000, 1000, 1000}, {2 << 20, 0, 2 << 20, 64 << 10}} {
		l := Limits{NotificationQueue: c.queue, NotificationBytes: c.one}
		must(t, l.complete())
		if l.NotificationQueue != c.wantQueue || l.NotificationBytes != c.wantOne {
			t.Errorf("%+v: %d, %d", c, l.NotificationQueue, l.NotificationBytes)
		}
	}
	own := wants(t, second(Open(Config{Limits: Limits{NotificationBytes: 1001, NotificationQueue: 1000}})), ErrInvalid)
	mentions(t, own.Error(), "Config.Limits.NotificationBytes is 1001", "Limits.NotificationQueue only 1000")
}

func TestConfigurationIsCheckedBeforeAnythingIsMade(t *testing.T) {
	for name, c := range map[string]Config{
		"bind":            {Bind: "nonsense"},
		"bind port":       {Bind: "127.0.0.1:70000"},
		"lanes":           {Lanes: -1},
		"too many lanes":  {Lanes: 65},
		"lanes, streams":  {Lanes: 2, Limits: Limits{PeerSegments: 1}},
		"cpu":             {CPUs: []int{1 << 20}},
		"timeout":         {RequestTimeout: -1},
		"spin":            {Spin: -1},
		"endless spin":    {Spin: time.Minute + 1},
		"keepalive time":  {KeepaliveIdle: 32768 * time.Second},
		"many keepalives": {KeepaliveCount: 128},
		"user timeout":    {UserTimeout: 1 << 31 * time.Millisecond},
		"source timeout":  {SourceTimeout: 301 * time.Second},
		"keepalive":       {KeepaliveCount: -1},
		"progress":        {Progress: 9},
		"kernel":          {Kernel: 9},
		"placement":       {TCPHostMemory: 9},
		"switch":          {TCPNotifications: 9},
		"limit":           {Limits: Limits{Batches: -1}},
		"payload":         {Limits: Limits{PayloadBytes: 64<<20 + 1}},
		"notification":    {Limits: Limits{NotificationBytes: 1 << 40}},
		"inbox":           {Limits: Limits{NotificationBytes: 1001, NotificationQueue: 1000}},
		"absurd bytes":    {Limits: Limits{RegisteredBytes: 1 << 63}},
		"advertise":       {Advertise: "0.0.0.0:1"},
		"advertised port": {Advertise: "host:port"},
	} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			own := wants(t, second(Open(c)), ErrInvalid)
			if own.Index != -1 || own.Op != "Open" {
				t.Fatalf("%#v", own)
			}
		})
	}
}

func second[T any](_ T, err error) error { return err }

// proves L-1
func TestKernelChoiceAndItsReasonAreInStats(t *testing.T) {
	eachKernel(t, func(t *testing.T, c Config) {
		e := newEngine(t, c)
		want := map[KernelChoice]string{Epoll: "epoll", IOUring: "io_uring"}[c.Kernel]
		s := e.Stats()
		if s.Kernel != want || s.KernelReason == "" || s.Lanes[0].Loop.Kernel != want {
			t.Fatalf("kernel %q because %q, loop %q", s.Kernel, s.KernelReason, s.Lanes[0].Loop.Kernel)
		}
	})
	for _, progress := range []Progress{Adaptive, EventDriven} { // callers turn the lanes themselves, unless those are bound
		if s := newEngine(t, Config{Progress: progress}).Stats(); s.Kernel != "epoll" || !strings.Contains(s.KernelReason, "themselves") {
			t.Fatalf("%v: kernel %q because %q", progress, s.Kernel, s.KernelReason)
		}
	}
	s := newEngine(t, Config{CPUs: allowedCPUs()}).Stats()
	var refused *uring.Unavailable
	if err := uring.Probe(); errors.As(err, &refused) {
		if s.Kernel != "epoll" || s.KernelReason != err.Error() {
			t.Fatalf("kernel %q because %q, want the probe's %v", s.Kernel, s.KernelReason, err)
		}
	} else if s.Kernel != "io_uring" {
		t.Fatalf("kernel %q because %q", s.Kernel, s.KernelReason)
	}
}

// proves L-4
func TestProgressModesAreTheLoopsModes(t *testing.T) {
	eachMode(t, func(t *testing.T, c Config) {
		c.Lanes = 2
		e := newEngine(t, c)
		want := map[Progress]reactor.Mode{Adaptive: reactor.Adaptive, EventDriven: reactor.EventDriven, Busy: reactor.Busy, Manual: reactor.Manual}[c.Progress]
		for _, l := range e.Stats().Lanes {
			if l.Loop.Mode != want {
				t.Fatalf("lane %d has mode %v, want %v", l.Index, l.Loop.Mode, want)
			}
		}
		if c.Progress == Manual {
			e.Progress(0)
			return
		}
		defer func() {
			if text := fmt.Sprint(recover()); !strings.Contains(text, "Progress") {
				t.Fatalf("Progress on an engine with threads: %s", text)
			}
		}()
		e.Progress(0)
	})
}

// proves L-5: lanes run on the CPUs that the configuration names, and on no others
func TestLanesRunOnTheConfiguredCPUs(t *testing.T) {
	allowed := allowedCPUs()
	cpu := allowed[len(allowed)-1]
	e := newEngine(t, Config{CPUs: []int{cpu}, Lanes: 2, Kernel: Epoll})
	for _, l := range e.Stats().Lanes {
		if len(l.Loop.CPUs) != 1 || l.Loop.CPUs[0] != cpu {
			t.Fatalf("lane %d is placed on %v", l.Index, l.Loop.CPUs)
		}
	}
	for _, r := range e.runners {
		var set unix.CPUSet
		var failed error
		must(t, r.call(soon(t), e, func() { failed = unix.SchedGetaffinity(0, &set) }))
		if failed != nil || set.Count() != 1 || !set.IsSet(cpu) {
			t.Fatalf("%s's thread may run on %d CPUs, %v", r.name(), set.Count(), failed)
		}
	}
}

// proves L-5: a restricted cpuset
// field case F-52
func TestRestrictedCPUSetLimitsLanes(t *testing.T) {
	if len(allowedCPUs()) < 2 {
		t.Skip("no-cpus: one CPU cannot be restricted further")
	}
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), "ORBITTE_TEST_CHILD=cpuset")
	if text, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

func init() { children["cpuset"] = restrictedChild }

// restrictedChild gives itself one CPU, the last, and opens engines.
func restrictedChild() error {
	all := allowedCPUs()
	last := all[len(all)-1]
	if err := restrict(last); err != nil {
		return err
	}
	e, err := Open(Config{})
	if err != nil {
		return err
	}
	if n := len(e.runners); n != 1 {
		return fmt.Errorf("%d lanes on one CPU", n)
	}
	if err := e.Close(context.Background()); err != nil {
		return err
	}
	if _, err = Open(Config{CPUs: []int{all[0]}}); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), fmt.Sprint(last)) {
		return fmt.Errorf("a CPU outside the cpuset: %v", err)
	}
	e, err = Open(Config{CPUs: []int{last}})
	if err != nil {
		return err
	}
	return e.Close(context.Background())
}

// restrict sets the affinity of every thread, as taskset -a does.
func restrict(cpu int) error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	var set unix.CPUSet
	set.Set(cpu)
	for _, thread := range threads {
		var id int
		if _, err := fmt.Sscan(thread.Name(), &id); err != nil {
			return err
		}
		if err := unix.SchedSetaffinity(id, &set); err != nil {
			return err
		}
	}
	return nil
}

// proves T-8
func TestEndpointsOfEveryKindWork(t *testing.T) {
	eachKernel(t, func(t *testing.T, c Config) {
		asked := make(chan string, 8)
		c.Resolver = func(_ context.Context, host string) ([]netip.Addr, error) {
			asked <- host
			return []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")}, nil
		}
		requester := newEngine(t, c)
		for _, bind := range []string{"127.0.0.1:0", "[::1]:0", "localhost:0"} {
			renewed := c
			renewed.Bind = bind
			source, err := Open(renewed)
			if err != nil && strings.Contains(bind, "::1") {
				t.Skip("no-ipv6: " + err.Error())
			}
			must(t, err)
			t.Cleanup(func() { drain(t, source) })
			s := opened(t, requester, source)
			must(t, requester.CloseSegment(soon(t), s))
			_, port, err := net.SplitHostPort(source.Endpoint())
			must(t, err)
			s, err = requester.OpenSegment(soon(t), "model.example:"+port, source.Epoch()) // tries one address after the other
			must(t, err)
			if host := <-asked; host != "model.example" {
				t.Fatalf("looked up %q", host)
			}
			must(t, requester.CloseSegment(soon(t), s))
		}
	})
}

func TestSystemResolverKnowsLocalhost(t *testing.T) {
	source, requester := newEngine(t, Config{Kernel: Epoll}), newEngine(t, Config{Kernel: Epoll})
	_, port, err := net.SplitHostPort(source.Endpoint())
	must(t, err)
	s, err := requester.OpenSegment(soon(t), "localhost:"+port, source.Epoch())
	must(t, err)
	must(t, requester.CloseSegment(soon(t), s))
}

func TestEndpointsThatCannotBeAreRefused(t *testing.T) {
	e := newEngine(t, Config{Kernel: Epoll, Resolver: func(context.Context, string) ([]netip.Addr, error) { return nil, nil }})
	for endpoint, class := range map[string]error{
		"": ErrInvalid, "host": ErrInvalid, "127.0.0.1:0": ErrInvalid, ":1": ErrInvalid, "host:0": ErrInvalid, "host:65536": ErrInvalid,
		"host:http": ErrInvalid, "no.address:1": ErrUnreachable, "127.0.0.1:1": ErrUnreachable,
	} {
		_, err := e.OpenSegment(soon(t), endpoint, Epoch{1})
		own := wants(t, err, class)
		if own.Endpoint != endpoint || own.Op != "OpenSegment" {
			t.Errorf("%q: %#v", endpoint, own)
		}
	}
	_, err := e.OpenSegment(soon(t), "127.0.0.1:1", Epoch{})
	wants(t, err, ErrInvalid)
}

// field case F-55
func TestBlockedLookupsTakeOneThreadAndEndByTheirContexts(t *testing.T) {
	const many = 1000
	release, first := make(chan struct{}), make(chan struct{})
	var calls atomic.Int64
	blocked := func(context.Context, string) ([]netip.Addr, error) {
		if calls.Add(1) == 1 {
			close(first)
		}
		<-release // like a native call, deaf to its context
		return nil, errors.New("released")
	}
	source := newEngine(t, Config{Kernel: Epoll, Lanes: 1})
	e := newEngine(t, Config{Kernel: Epoll, Lanes: 1, Resolver: blocked, Limits: Limits{Lookups: many, Submissions: many + 8}})
	threads := threadCount(t)
	ends := make(chan error, many)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for i := range many {
		go func() {
			own := ctx
			if i%2 == 0 {
				limited, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
				defer cancel()
				own = limited
			}
			_, err := e.OpenSegment(own, fmt.Sprintf("host%d.example:1", i), Epoch{1})
			ends <- err
		}()
	}
	<-first
	for range many / 2 { // those with a deadline
		wants(t, <-ends, ErrDeadline)
	}
	s := opened(t, e, source) // addresses go on meanwhile
	must(t, s.Refresh(soon(t)))
	if now := threadCount(t); now > threads+8 {
		t.Fatalf("%d threads, %d before the look-ups", now, threads)
	}
	cancel()
	for range many / 2 {
		wants(t, <-ends, ErrCancelled)
	}
	must(t, e.CloseSegment(soon(t), s))
	kept := e.RetainedResources()
	if len(kept) != 1 || kept[0].Kind != "name look-up" || gauge(t, e, "name look-ups in flight").Used == 0 {
		t.Fatalf("retained %v", kept)
	}
	err := e.Close(within(t, 20*time.Millisecond))
	for n := 0; !strings.Contains(wants(t, err, ErrUnquiesced).Error(), "cold lane"); n++ { // it may be busy with what comes before
		if n == 1000 {
			t.Fatalf("Close does not say what it waits for: %v", err)
		}
		err = e.Close(within(t, 20*time.Millisecond))
	}
	close(release)
	closeEngine(t, e)
	if n := calls.Load(); n != 1 {
		t.Fatalf("the resolver was called %d times: look-ups whose caller has gone must cost nothing", n)
	}
}

func threadCount(t *testing.T) int {
	t.Helper()
	threads, err := os.ReadDir("/proc/self/task")
	must(t, err)
	return len(threads)
}

// field case F-43
func TestAdvertisedEndpointMeansSomethingToPeers(t *testing.T) {
	v4, v6, other := netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7"), netip.MustParseAddr("198.51.100.1")
	for _, c := range []struct {
		configured, bound string
		host              []netip.Addr
		want              string // empty: refused
	}{
		{"", "127.0.0.1:7000", nil, "127.0.0.1:7000"}, // loopback serves this host only, as the documentation says
		{"", "[::1]:7000", nil, "[::1]:7000"},
		{"", "192.0.2.7:7000", []netip.Addr{other}, "192.0.2.7:7000"},
		{"", "0.0.0.0:7000", []netip.Addr{v4}, "192.0.2.7:7000"},
		{"", "0.0.0.0:7000", []netip.Addr{v4, v6}, "192.0.2.7:7000"}, // an IPv4 listener has no IPv6 address
		{"", "0.0.0.0:7000", nil, ""},
		{"", "0.0.0.0:7000", []netip.Addr{v4, other}, ""},
		{"", "[::]:7000", []netip.Addr{v6}, "[2001:db8::7]:7000"},
		{"", "[::]:7000", []netip.Addr{v4, v6}, ""},
		{"model.example:9", "0.0.0.0:7000", []netip.Addr{v4, other}, "model.example:9"},
		{"model.example:0", "0.0.0.0:7000", nil, "model.example:7000"}, // port 0 publishes the real one
		{"[2001:db8::1]:0", "[::]:7000", nil, "[2001:db8::1]:7000"},
		{"0.0.0.0:9", "0.0.0.0:7000", []netip.Addr{v4}, ""},
		{"[::]:9", "0.0.0.0:7000", []netip.Addr{v4}, ""},
		{":9", "0.0.0.0:7000", []netip.Addr{v4}, ""},
		{"model.example", "0.0.0.0:7000", []netip.Addr{v4}, ""},
		{"model.example:70000", "0.0.0.0:7000", []netip.Addr{v4}, ""},
		{"model.example:-1", "0.0.0.0:7000", []netip.Addr{v4}, ""},
	} {
		got, err := advertised(c.configured, netip.MustParseAddrPort(c.bound), c.host)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("Advertise %q, bound %s, host %v: %q, %v; want %q", c.configured, c.bound, c.host, got, err, c.want)
		}
		if err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("Advertise %q, bound %s: %v", c.configured, c.bound, err)
		}
	}
	for _, a := range hostAddresses() {
		if a.IsLoopback() || a.IsUnspecified() || a.IsLinkLocalUnicast() {
			t.Errorf("%v would be advertised", a)
		}
	}
	e := newEngine(t, Config{Kernel: Epoll})
	if a := netip.MustParseAddrPort(e.Endpoint()); a.Port() == 0 || !a.Addr().IsLoopback() {
		t.Fatalf("endpoint %v", a)
	}
}

func TestUnmappedAddressesAreBoundAndAdvertised(t *testing.T) {
	for bind, want := range map[string]string{
		"[::ffff:127.0.0.1]:5": "127.0.0.1:5", ":5": "0.0.0.0:5", "localhost:5": "127.0.0.1:5", "[::1]:5": "[::1]:5",
	} {
		got, err := bindAddress("Config.Bind", bind)
		if err != nil || got.String() != want && bind != "localhost:5" {
			t.Errorf("%q: %v, %v; want %s", bind, got, err, want)
		}
	}
}

// field case F-2: each step of opening a segment
func TestFailedOpenSegmentLeavesStateOfAFreshEngine(t *testing.T) {
	w := newSim(t, 20, simkernel.WorldOptions{ChopReceive: 7, ChopSend: 5})
	source, sourceProcess := w.engine("source", hostA, Config{})
	memory := allocated(t, 4096)
	registered(t, source, memory, ReadWrite)
	requester, process := w.engine("requester", hostB, Config{})
	fresh, open := used(requester), process.Descriptors()
	check := func(step string, err error, classes ...error) {
		t.Helper()
		if !slices.ContainsFunc(classes, func(class error) bool { return errors.Is(err, class) }) {
			t.Fatalf("%s: %v", step, err)
		}
		if now := used(requester); !mapsEqual(now, fresh) || process.Descriptors() != open || len(requester.peers) != 0 {
			t.Fatalf("%s left charges %v, %d descriptors, %d peers", step, now, process.Descriptors()-open, len(requester.peers))
		}
	}
	try := func() error {
		_, err := requester.OpenSegment(w.within(50*time.Millisecond), source.Endpoint(), source.Epoch())
		return err
	}
	process.FailOpens(syscall.EMFILE, 1)
	check("socket", try(), ErrExhausted)
	process.FailConnects(syscall.ECONNREFUSED, 1)
	check("connect", try(), ErrUnreachable)
	sourceProcess.HangConnects(1)
	check("hanging connect", try(), ErrDeadline)
	sourceProcess.FailAccepts(syscall.EMFILE, 1)
	requestSize, replySize := uint64(netproto.RequestSize), uint64(netproto.ReplySize)
	for n := uint64(0); n <= requestSize+replySize; n += 11 { // reset in each frame, both directions
		for _, d := range []simkernel.Direction{simkernel.ToServer, simkernel.ToClient} {
			if d == simkernel.ToServer && n >= requestSize {
				continue
			}
			w.OnConnect(func(c *simkernel.Connection) { c.ResetAfter(d, n) })
			check(fmt.Sprintf("reset after %d bytes", n), try(), ErrDisconnected, ErrUnreachable, ErrDeadline)
		}
	}
	w.OnConnect(nil)
	_, err := requester.OpenSegment(soon(t), source.Endpoint(), Epoch{9})
	check("epoch", err, ErrStaleEpoch)
	s := opened(t, requester, source)
	if len(s.Regions()) != 1 || s.Regions()[0].Address != memory.Address() {
		t.Fatalf("regions %+v", s.Regions())
	}
}

// proves W-12 at the API
func TestDescribeLearnsTheEpoch(t *testing.T) {
	eachKernel(t, func(t *testing.T, c Config) {
		p := newPair(t, c, c, 4096)
		s, err := p.requester.Describe(soon(t), p.source.Endpoint())
		must(t, err)
		if s.Epoch() != p.source.Epoch() || len(s.Regions()) != 1 || s.Local() {
			t.Fatalf("epoch %v, regions %v", s.Epoch(), s.Regions())
		}
		must(t, p.requester.CloseSegment(soon(t), s))
		self, err := p.requester.Describe(soon(t), p.requester.Endpoint())
		must(t, err)
		if !self.Local() {
			t.Fatal("the engine's own segment is not local")
		}
		must(t, p.requester.CloseSegment(soon(t), self))
	})
}

func TestOwnSegmentUnderAnotherName(t *testing.T) {
	e := newEngine(t, Config{Kernel: Epoll, Resolver: func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}})
	_, port, err := net.SplitHostPort(e.Endpoint())
	must(t, err)
	s, err := e.OpenSegment(soon(t), "myself:"+port, e.Epoch())
	must(t, err)
	if !s.Local() || len(e.peers) != 0 {
		t.Fatal("not recognised as the engine itself")
	}
	must(t, e.CloseSegment(soon(t), s))
}

// Two engines of one host would else share their first CPU while others are free.
func TestBusyLanesAreTiedOnlyToCPUsThatWereNamed(t *testing.T) {
	allowed := allowedCPUs()
	places := func(c Config) []lanes.Place {
		must(t, c.complete())
		p, err := placeLanes(&c)
		must(t, err)
		return p
	}
	free, busy := places(Config{Lanes: 2}), places(Config{Lanes: 2, Progress: Busy})
	for i := range busy {
		if !slices.Equal(busy[i].CPUs, free[i].CPUs) {
			t.Errorf("busy lane %d is tied to %v, an adaptive one to %v", i, busy[i].CPUs, free[i].CPUs)
		}
	}
	if named := places(Config{Lanes: 1, Progress: Busy, CPUs: allowed[:1]}); !slices.Equal(named[0].CPUs, allowed[:1]) {
		t.Errorf("tied to %v, named was %v", named[0].CPUs, allowed[:1])
	}
}

// field case F-52: lanes follow the quota and the mask
func TestLaneCountFollowsMaskAndQuota(t *testing.T) {
	for _, c := range []struct {
		cpus  int
		quota float64
		most  int
	}{{1, 0, 1}, {16, 0, 4}, {16, 2.5, 2}, {16, 0.5, 1}, {2, 8, 2}, {0, 0, 1}} {
		n := lanesFor(c.cpus, c.quota, false)
		if n > c.most || n < 1 {
			t.Errorf("%d CPUs, quota %v: %d lanes, want at most %d", c.cpus, c.quota, n, c.most)
		}
		if busy := lanesFor(c.cpus, c.quota, true); n < 4 && busy != max(n-1, 1) || busy < 1 || busy > n {
			t.Errorf("%d CPUs, quota %v: %d busy lanes of %d; they leave one CPU to the callers", c.cpus, c.quota, busy, n)
		}
	}
	if n := lanesFor(1, 0, false); n != 1 {
		t.Errorf("%d lanes on one CPU", n)
	}
	places := lanes.Plan(4, []int{1, 2, 3, 9}, [][]int{{0, 1, 2, 3}, {8, 9}}, false)
	for i, place := range places {
		want := [][]int{{1, 2, 3}, {9}}[i%2]
		if !slices.Equal(place.CPUs, want) {
			t.Errorf("lane %d runs on %v, want %v: only what the process may use", i, place.CPUs, want)
		}
	}
}

// field case F-52: the quota, on trees like those of both cgroup versions
func TestQuotaIsTheSmallestOnTheWayUp(t *testing.T) {
	for name, c := range map[string]struct {
		self  string
		files map[string]string
		want  float64
	}{
		"v2":                 {"0::/a/b\n", map[string]string{"a/b/cpu.max": "max 100000\n", "a/cpu.max": "150000 100000\n"}, 1.5},
		"v2 child smaller":   {"0::/a/b\n", map[string]string{"a/b/cpu.max": "50000 100000\n", "a/cpu.max": "150000 100000\n"}, 0.5},
		"v2 container root":  {"0::/\n", map[string]string{"cpu.max": "200000 100000\n"}, 2},
		"v2 outside":         {"0::/../..\n", map[string]string{"cpu.max": "200000 100000\n"}, 2},
		"v2 path not shown":  {"0::/docker/abc\n", map[string]string{"cpu.max": "300000 100000\n"}, 3},
		"v1":                 {"3:cpu,cpuacct:/x\n1:memory:/x\n", map[string]string{"cpu/x/cpu.cfs_quota_us": "25000\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, 0.25},
		"v1 none":            {"3:cpu:/x\n", map[string]string{"cpu/x/cpu.cfs_quota_us": "-1\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, 0},
		"other controllers":  {"3:cpuset:/x\n", map[string]string{"cpuset/x/cpu.max": "1 1\n", "cpu.max": "1 1\n"}, 0},
		"none":               {"0::/a\n", nil, 0},
		"nonsense":           {"what\n0::/a\n", map[string]string{"a/cpu.max": "x y\n"}, 0},
		"zero period":        {"0::/a\n", map[string]string{"a/cpu.max": "1 0\n"}, 0},
		"v1 and v2 together": {"3:cpu:/x\n0::/x\n", map[string]string{"cpu/x/cpu.cfs_quota_us": "400000\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for path, text := range c.files {
				write(t, root+"/sys/"+path, text)
			}
			write(t, root+"/self", c.self)
			if got := cpuQuota(root+"/sys", root+"/self"); got != c.want {
				t.Fatalf("quota %v, want %v", got, c.want)
			}
		})
	}
	if q := cpuQuota("/nowhere", "/nowhere/self"); q != 0 {
		t.Errorf("without cgroups: %v", q)
	}
}

// proves L-5: which CPUs make up which node
func TestNodesAreReadInOrder(t *testing.T) {
	root := t.TempDir()
	write(t, root+"/node10/cpulist", "8-9\n")
	write(t, root+"/node2/cpulist", "0-1,4\n")
	write(t, root+"/node3/cpulist", "\n") // memory only
	got := numaNodes(root)
	if len(got) != 2 || !slices.Equal(got[0], []int{0, 1, 4}) || !slices.Equal(got[1], []int{8, 9}) {
		t.Fatalf("nodes %v", got)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.MkdirAll(path[:strings.LastIndex(path, "/")], 0o755))
	must(t, os.WriteFile(path, []byte(text), 0o644))
}

func TestAskedForIOUringFailsWhereItIsForbidden(t *testing.T) {
	if err := uring.Probe(); err == nil {
		t.Skip("no-seccomp: io_uring is allowed here; test/field forbids it in a process of its own")
	}
	leavesNothing(t)
	_, err := Open(Config{Kernel: IOUring})
	wants(t, err, ErrUnavailable)
}
