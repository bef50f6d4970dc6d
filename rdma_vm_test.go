//go:build vm && cgo

package orbitte

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/libibverbs"
)

// The soft-RoCE gate (test/vm): engines in processes of their own, the real libibverbs, Debian's rdma_rxe. In the net
// "two" the source has rxe0 and rxe2, the requester rxe1 and rxe3, so that each has one end of both wires; TCP goes over
// the loopback. The test's process is the requester; the source is this binary once more.

// order is what a test asks a peer process for. One line of JSON each; the answer is one as well.
type order struct {
	Do       string
	Devices  []string      // open
	RDMA     RDMAConfig    // open
	Bind     string        // open
	Limits   Limits        // open
	File     string        // open: what its memory is mapped from, so that the test sees it as well
	Endpoint string        // storm
	Epoch    string        // storm
	Base     uint64        // storm
	Within   time.Duration // close
}

// answer is what a peer process says.
type answer struct {
	Native   nativeCalls
	Err      string
	Endpoint string
	Epoch    string
	Address  uint64
	Stats    Stats
	Retained []Resource
}

func init() { children["vm peer"] = servePeer }

// peerProcess is one engine with one memory.
type peerProcess struct {
	engine *Engine
	native *tally
	memory *Memory
	export *Registration
}

func servePeer() error {
	lines := bufio.NewScanner(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	p := &peerProcess{}
	for lines.Scan() {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return err
		}
		a, err := p.obey(&o)
		if err != nil {
			a.Err = err.Error()
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (p *peerProcess) obey(o *order) (a answer, err error) {
	switch o.Do {
	case "open":
		err = p.open(o)
	case "storm":
		err = p.storm(o)
	case "close":
		err = p.close(o.Within)
	}
	if p.engine == nil {
		return a, err
	}
	a.Endpoint, a.Epoch, a.Stats, a.Retained = p.engine.Endpoint(), p.engine.Epoch().String(), p.engine.Stats(), p.engine.RetainedResources()
	if p.memory != nil {
		a.Address = p.memory.Address()
		a.Native = p.native.read(a.Address)
	}
	return a, err
}

func (p *peerProcess) open(o *order) error {
	calls, err := libibverbs.Load()
	if err != nil {
		return err
	}
	o.RDMA.Whitelist = o.Devices
	p.native = &tally{Calls: calls}
	if p.engine, err = Open(Config{Bind: o.Bind, Verbs: p.native, RDMA: &o.RDMA, Lanes: 1, Limits: o.Limits, SourceTimeout: guestSourceTimeout}); err != nil {
		return err
	}
	mapped, err := mapFile(o.File)
	if err != nil {
		return err
	}
	if p.memory, err = Adopt(mapped); err != nil {
		return err
	}
	p.export, err = p.engine.Register(p.memory, 0, uint64(p.memory.Len()), ReadWrite)
	return err
}

// storm starts transfers that never end by themselves; the answer comes when one has succeeded.
func (p *peerProcess) storm(o *order) error {
	epoch, err := ParseEpoch(o.Epoch)
	if err != nil {
		return err
	}
	segment, err := p.engine.OpenSegment(context.Background(), o.Endpoint, epoch)
	if err != nil {
		return err
	}
	first := make(chan error, 8)
	for i := range uint64(4) {
		go func() {
			for {
				const n = 256 << 10
				r := Request{Operation: Operation(1 + i%2), Transport: TransportRDMA, Segment: segment, Local: p.memory.Address() + i*n, Remote: o.Base + i*n, Length: n}
				_, err := p.engine.SubmitAndWait(context.Background(), []Request{r})
				select {
				case first <- err:
				default:
				}
			}
		}()
	}
	return <-first
}

func (p *peerProcess) close(within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	err := p.engine.Unregister(ctx, p.export)
	return errors.Join(err, p.engine.Close(ctx))
}

func mapFile(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	return unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// nativeCalls counts what an engine asked of the library: protection domains, and regions of its one memory.
type nativeCalls struct {
	Domains, Registered, Deregistered int
	Posts, Polls, Arms, Events        int64 // crossings
}

// tally counts native calls on their way.
type tally struct {
	verbs.Calls
	posts, polls, arms, events atomic.Int64
	mu                         sync.Mutex
	domains                    int
	regions                    map[verbs.RegionHandle]uint64
	registered, deregistered   map[uint64]int // by address
}

func (n *tally) read(address uint64) nativeCalls {
	n.mu.Lock()
	defer n.mu.Unlock()
	return nativeCalls{n.domains, n.registered[address], n.deregistered[address], n.posts.Load(), n.polls.Load(), n.arms.Load(), n.events.Load()}
}

func (n *tally) AllocateDomain(d verbs.DeviceHandle) (verbs.DomainHandle, error) {
	n.mu.Lock()
	n.domains++
	n.mu.Unlock()
	return n.Calls.AllocateDomain(d)
}

func (n *tally) Register(d verbs.DomainHandle, address, length uint64, a verbs.Access) (verbs.RegionHandle, verbs.LocalKey, verbs.RemoteKey, error) {
	h, local, remote, err := n.Calls.Register(d, address, length, a)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.regions == nil {
		n.regions, n.registered, n.deregistered = map[verbs.RegionHandle]uint64{}, map[uint64]int{}, map[uint64]int{}
	}
	n.regions[h] = address
	n.registered[address]++
	return h, local, remote, err
}

func (n *tally) Deregister(h verbs.RegionHandle) error {
	n.mu.Lock()
	n.deregistered[n.regions[h]]++
	n.mu.Unlock()
	return n.Calls.Deregister(h)
}

func (n *tally) PostSend(p verbs.PairHandle, work []verbs.SendWork) (int, error) {
	n.posts.Add(1)
	return n.Calls.PostSend(p, work)
}

func (n *tally) PostReceive(p verbs.PairHandle, work []verbs.ReceiveWork) (int, error) {
	n.posts.Add(1)
	return n.Calls.PostReceive(p, work)
}

func (n *tally) Poll(sends, receives verbs.QueueHandle, out []verbs.Completion) (int, int, error) {
	n.polls.Add(1)
	return n.Calls.Poll(sends, receives, out)
}

func (n *tally) Arm(q verbs.QueueHandle) error {
	n.arms.Add(1)
	return n.Calls.Arm(q)
}

func (n *tally) NextEvent(c verbs.ChannelHandle) (verbs.QueueHandle, bool, error) {
	n.events.Add(1)
	return n.Calls.NextEvent(c)
}

// peerOf is a peer process as a test sees it.
type peerOf struct {
	t      testing.TB
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	memory []byte // the peer's memory, seen from here
	opened answer
	ended  bool
}

// newPeer starts a process with an engine on the devices, with size bytes of memory that is registered for everything.
// When the test ends it is closed and must be drained, unless the test ended it.
func newPeer(t testing.TB, devices []string, c RDMAConfig, size int) *peerOf {
	t.Helper()
	p := startPeer(t)
	name := filepath.Join(t.TempDir(), "memory")
	must(t, os.WriteFile(name, nil, 0o600))
	must(t, os.Truncate(name, int64(size)))
	var err error
	p.memory, err = mapFile(name)
	must(t, err)
	t.Cleanup(func() { must(t, unix.Munmap(p.memory)) })
	p.opened = p.ask(order{Do: "open", Devices: devices, RDMA: c, File: name, Limits: gateLimits})
	if p.opened.Err != "" {
		t.Fatal(p.opened.Err)
	}
	t.Cleanup(func() {
		if !p.ended {
			p.drained()
		}
	})
	return p
}

func startPeer(t testing.TB) *peerOf {
	t.Helper()
	p := &peerOf{t: t, cmd: exec.Command("/proc/self/exe")}
	p.cmd.Env = append(os.Environ(), "ORBITTE_TEST_CHILD=vm peer")
	p.cmd.Stderr = os.Stderr
	var err error
	p.in, err = p.cmd.StdinPipe()
	must(t, err)
	out, err := p.cmd.StdoutPipe()
	must(t, err)
	p.out = bufio.NewReader(out)
	must(t, p.cmd.Start())
	t.Cleanup(p.kill)
	return p
}

func (p *peerOf) ask(o order) (a answer) {
	p.t.Helper()
	line, err := json.Marshal(o)
	must(p.t, err)
	_, err = p.in.Write(append(line, '\n'))
	must(p.t, err)
	text, err := p.out.ReadString('\n')
	if err == nil {
		err = json.Unmarshal([]byte(text), &a)
	}
	if err != nil {
		p.t.Fatalf("the peer answers %q to %q: %v", text, o.Do, err)
	}
	return a
}

// kill ends the process without a word, if it is there.
func (p *peerOf) kill() {
	if p.cmd.ProcessState != nil {
		return
	}
	p.ended = true
	_ = p.cmd.Process.Kill() // it may have ended by itself
	_ = p.cmd.Wait()         // so it was killed
}

// drained closes the peer's engine and checks that nothing is left in it.
func (p *peerOf) drained() {
	p.t.Helper()
	p.ended = true
	a := p.ask(order{Do: "close", Within: 40 * time.Second})
	if a.Err != "" {
		p.t.Errorf("the peer's Close: %s", a.Err)
	}
	quietStats(p.t, "the peer", &a.Stats, a.Retained)
	p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("the peer's end: %v", err)
	}
}

// quietStats checks a closed engine: every gauge and every count of native objects is zero.
func quietStats(t testing.TB, who string, s *Stats, retained []Resource) {
	t.Helper()
	for _, g := range s.Gauges {
		if g.Used != 0 {
			t.Errorf("%s holds %d %s of %q", who, g.Used, g.Unit, g.Name)
		}
	}
	if s.Unquiesced != 0 || len(retained) != 0 {
		t.Errorf("%s: unquiesced %d, retained %v", who, s.Unquiesced, retained)
	}
	for _, d := range s.RDMA.Devices {
		if d.QueuePairs != 0 || d.CompletionQueues != 0 || d.Retained != 0 {
			t.Errorf("%s: %s has %d queue pairs, %d completion queues, %d retained", who, d.Name, d.QueuePairs, d.CompletionQueues, d.Retained)
		}
	}
}

var gateLimits = Limits{PayloadBytes: 16 << 20, Submissions: 64}

// An emulated guest on a busy machine is slow, and what is late there says nothing about the engine: guestPatience bounds
// what must end, guestSourceTimeout is the source's deadline for grants, which a transfer of 16 MiB must not meet.
const (
	guestPatience      = time.Minute
	guestSourceTimeout = 30 * time.Second
)

// gatePair is a requester in this process and a source in another.
type gatePair struct {
	t         testing.TB
	native    *tally
	peer      *peerOf
	requester *Engine
	local     *Memory
	segment   *Segment
	base      uint64 // address of the peer's memory
}

// gatesOpen counts the pairs of processes that are there.
var gatesOpen atomic.Int32

var sourceRails, requesterRails = []string{"rxe0", "rxe2"}, []string{"rxe1", "rxe3"}

// newGate starts both sides; calls may stand between the requester and the library.
func newGate(t testing.TB, source, requester RDMAConfig, size int, between func(verbs.Calls) verbs.Calls) *gatePair {
	t.Helper()
	if os.Getenv("ORBITTE_VM") != "two" {
		t.Skip("no-guest: both ends of two wires in one guest of test/vm are needed")
	}
	if before := nativeObjects(t); gatesOpen.Add(1) == 1 { // the first one's end is the end of all
		t.Cleanup(func() { // runs last: both processes have ended
			if after := nativeObjects(t); after != before {
				t.Errorf("the kernel counts %s, before the test %s", after, before)
			}
		})
	}
	t.Cleanup(func() { gatesOpen.Add(-1) })
	g := &gatePair{t: t}
	g.peer = newPeer(t, sourceRails, source, size)
	g.base = g.peer.opened.Address
	calls, err := libibverbs.Load()
	must(t, err)
	g.native = &tally{Calls: calls}
	native := verbs.Calls(g.native)
	if between != nil {
		native = between(native)
	}
	requester.Whitelist = requesterRails
	g.requester = newEngine(t, Config{Verbs: native, RDMA: &requester, Lanes: 1, Limits: gateLimits})
	t.Cleanup(func() {
		closeEngine(t, g.requester)
		stats := g.requester.Stats()
		quietStats(t, "the requester", &stats, g.requester.RetainedResources())
	})
	g.local = allocated(t, size)
	registered(t, g.requester, g.local, LocalOnly)
	epoch, err := ParseEpoch(g.peer.opened.Epoch)
	must(t, err)
	g.segment, err = g.requester.OpenSegment(within(t, guestPatience), g.peer.opened.Endpoint, epoch)
	must(t, err)
	t.Cleanup(func() {
		if err := g.requester.CloseSegment(within(t, 40*time.Second), g.segment); err != nil {
			t.Errorf("CloseSegment: %v", err)
		}
	})
	return g
}

// request is n bytes over RDMA, with offsets of its own at both sides.
func (g *gatePair) request(op Operation, local, remote, n int) Request {
	return Request{
		Operation: op, Transport: TransportRDMA, Segment: g.segment, Length: uint64(n),
		Local: g.local.Address() + uint64(local), Remote: g.base + uint64(remote),
	}
}

// fill gives both memories bytes of their own.
func (g *gatePair) fill(seed int) {
	fillBytes(g.local.Bytes(), seed)
	fillBytes(g.peer.memory, seed+101)
}

// fillBytes copies a pattern that has the seed in it: loops over bytes take long under emulation.
func fillBytes(b []byte, seed int) {
	at := seed % 8192
	for n := 0; n < len(b); n += copy(b[n:], fillPattern[at:]) {
		at = (at + 4093) % 8192
	}
}

var fillPattern = func() []byte {
	b := make([]byte, 64<<10)
	random := rand.NewChaCha8([32]byte{7})
	random.Read(b) // never fails
	return b
}()

var objectCount = regexp.MustCompile(`(pd|cq|qp|mr|ctx) \d+`)

// nativeObjects is what the kernel counts of each device: those of its own stay.
func nativeObjects(t testing.TB) string {
	t.Helper()
	out, err := exec.Command("rdma", "resource").Output()
	must(t, err)
	var lines []string
	for line := range strings.Lines(string(out)) {
		_, device, _ := strings.Cut(line, ": ")
		name, _, _ := strings.Cut(device, ":")
		lines = append(lines, name+" "+strings.Join(objectCount.FindAllString(device, -1), " "))
	}
	return strings.Join(lines, "; ")
}

// rail runs the guest's tool.
func rail(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command("rail", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("rail %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// sent is what left the guest since rail count, by counter.
func sent(t testing.TB) map[string]int64 {
	t.Helper()
	var counters map[string]struct{ Bytes int64 }
	must(t, json.Unmarshal([]byte(rail(t, "counts")), &counters))
	bytes := map[string]int64{}
	for name, c := range counters {
		bytes[name] = c.Bytes
	}
	return bytes
}

// portOf is the TCP port of an endpoint.
func portOf(endpoint string) string { return endpoint[strings.LastIndexByte(endpoint, ':')+1:] }

func proved(t testing.TB, format string, args ...any) {
	t.Helper()
	t.Logf("proved: "+format, args...)
}

// eventually waits for something that the guest's kernel and threads bring about.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	eventuallyIn(t, guestPatience, what, done)
}

func eventuallyIn(t testing.TB, patience time.Duration, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// activeDevices counts the devices that an engine uses.
func activeDevices(s *Stats) (n int) {
	for _, d := range s.RDMA.Devices {
		if d.State == "active" {
			n++
		}
	}
	return n
}

// railsActive waits until both sides see so many devices active.
func (g *gatePair) railsActive(n int) {
	g.t.Helper()
	eventually(g.t, strconv.Itoa(n)+" active devices at each side", func() bool {
		here, there := g.requester.Stats(), g.peer.ask(order{Do: "stats"}).Stats
		return activeDevices(&here) == n && activeDevices(&there) == n
	})
}
