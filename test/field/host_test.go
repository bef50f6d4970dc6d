package field

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte"
)

// settings is the part of orbitte.Config that travels to a child.
type settings struct {
	Kernel                           orbitte.KernelChoice
	Bind, Advertise                  string
	Lanes                            int
	Direct, Log                      bool
	Pinned                           bool // to all CPUs that the process may use: nobody else turns a lane
	Limits                           orbitte.Limits
	RequestTimeout, SourceTimeout    time.Duration
	IdleTimeout                      time.Duration
	KeepaliveIdle, KeepaliveInterval time.Duration
	KeepaliveCount                   int
	UserTimeout                      time.Duration
}

func (s *settings) config() orbitte.Config {
	c := orbitte.Config{
		Kernel: s.Kernel, Bind: s.Bind, Advertise: s.Advertise, Lanes: s.Lanes, Limits: s.Limits,
		RequestTimeout: s.RequestTimeout, SourceTimeout: s.SourceTimeout, IdleTimeout: s.IdleTimeout,
		KeepaliveIdle: s.KeepaliveIdle, KeepaliveInterval: s.KeepaliveInterval, KeepaliveCount: s.KeepaliveCount, UserTimeout: s.UserTimeout,
	}
	if s.Direct {
		c.TCPHostMemory = orbitte.Direct
	}
	if s.Pinned {
		var set unix.CPUSet
		_ = unix.SchedGetaffinity(0, &set)
		for cpu := 0; len(c.CPUs) < set.Count(); cpu++ {
			if set.IsSet(cpu) {
				c.CPUs = append(c.CPUs, cpu)
			}
		}
	}
	return c
}

// host is what a child holds: numbered engines, memories and segments.
type host struct {
	mu       sync.Mutex
	engines  []*orbitte.Engine
	memories []*orbitte.Memory
	segments []*orbitte.Segment
	slices   [][]byte // whose middles are memories
	log      logLines
	answers  *json.Encoder
	write    sync.Mutex
}

// logLines keeps what an engine's logger wrote.
type logLines struct {
	mu    sync.Mutex
	lines []string
}

func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(bytes.TrimSpace(b)))
	return len(b), nil
}

func (l *logLines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.lines...)
}

// serveOrders is a child's whole life.
func serveOrders() {
	h := &host{answers: json.NewEncoder(os.Stdout)}
	orders := bufio.NewReader(os.Stdin)
	for {
		line, err := orders.ReadBytes('\n')
		if err != nil {
			return // the parent has ended, or wants this
		}
		var o order
		must(json.Unmarshal(line, &o))
		go h.carryOut(o)
	}
}

func (h *host) carryOut(o order) {
	a := answer{ID: o.ID}
	result, err := h.do(o)
	if err == nil {
		a.Result, err = json.Marshal(result)
	}
	if err != nil {
		a.Class, a.Error = classOf(err), err.Error()
	}
	h.write.Lock()
	defer h.write.Unlock()
	must(h.answers.Encode(a))
}

func classOf(err error) string {
	if own := (*orbitte.Error)(nil); errors.As(err, &own) {
		return own.Class.Error()
	}
	return "error"
}

// with decodes an order's arguments.
func with[A, R any](o order, do func(A) (R, error)) (any, error) {
	var a A
	if err := json.Unmarshal(o.Args, &a); err != nil {
		return nil, err
	}
	return do(a)
}

func (h *host) do(o order) (any, error) {
	switch o.Do {
	case "open":
		return with(o, h.open)
	case "place":
		return with(o, h.place)
	case "fill":
		return with(o, h.fill)
	case "check":
		return with(o, h.check)
	case "segment":
		return with(o, h.segment)
	case "close-segment":
		return with(o, h.closeSegment)
	case "transfer":
		return with(o, h.transfer)
	case "burst":
		return with(o, h.burst)
	case "fork":
		return with(o, forkLoop)
	case "forbid-entering":
		return with(o, forbidEntering)
	case "neighbours-intact":
		return h.neighboursIntact(), nil
	case "stats":
		return with(o, h.stats)
	case "usage":
		return measure(), nil
	case "cpu":
		return cpuUsed(), nil
	case "namespace-sockets":
		return namespaceSockets(), nil
	case "stream-options":
		return streamOptions(), nil
	case "log":
		return h.log.all(), nil
	case "close":
		return with(o, h.close)
	}
	return nil, fmt.Errorf("no such order: %s", o.Do)
}

type opened struct {
	Engine         int
	Endpoint       string
	Epoch          orbitte.Epoch
	Kernel, Reason string
}

func (h *host) open(s settings) (opened, error) {
	config := s.config()
	if s.Log {
		logger := zerolog.New(&h.log)
		config.Logger = &logger
	}
	e, err := orbitte.Open(config)
	if err != nil {
		return opened{}, err
	}
	stats := e.Stats()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.engines = append(h.engines, e)
	return opened{len(h.engines) - 1, e.Endpoint(), e.Epoch(), stats.Kernel, stats.KernelReason}, nil
}

// place is memory to allocate and register in one engine.
type place struct {
	Engine     int
	Bytes      uint64
	Sparse     bool
	Unaligned  bool // a Go slice's middle, neighbours on both sides
	Permission orbitte.Permission
	Stamp      bool // filled with the engine's epoch
}

type placed struct {
	Memory          int
	Address, Region uint64
}

func (h *host) place(p place) (placed, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.engines[p.Engine]
	m, err := h.newMemory(p)
	if err != nil {
		return placed{}, err
	}
	if p.Stamp {
		stamp(m.Bytes(), e.Epoch())
	}
	r, err := e.Register(m, 0, uint64(m.Len()), p.Permission)
	if err != nil {
		return placed{}, err
	}
	h.memories = append(h.memories, m)
	return placed{len(h.memories) - 1, m.Address(), r.ID()}, nil
}

func (h *host) newMemory(p place) (*orbitte.Memory, error) {
	switch {
	case p.Sparse:
		return sparse(p.Bytes)
	case p.Unaligned:
		b := make([]byte, p.Bytes+2*neighbours)
		copy(b, neighbour)
		copy(b[neighbours+p.Bytes:], neighbour)
		h.slices = append(h.slices, b)
		return orbitte.Adopt(b[neighbours : neighbours+p.Bytes])
	}
	return orbitte.Allocate(int(p.Bytes))
}

// neighbours is how many bytes stand on each side of a range that shares its pages with others.
const neighbours = 100

var neighbour = bytes.Repeat([]byte{0xA5}, neighbours)

func (h *host) neighboursIntact() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range h.slices {
		if !bytes.HasPrefix(b, neighbour) || !bytes.HasSuffix(b, neighbour) {
			return false
		}
	}
	return len(h.slices) > 0
}

// stamp fills b with an epoch, again and again.
func stamp(b []byte, epoch orbitte.Epoch) {
	for len(b) > 0 {
		b = b[copy(b, epoch[:]):]
	}
}

func stamped(b []byte, epoch orbitte.Epoch) bool {
	for len(b) >= len(epoch) {
		if orbitte.Epoch(b[:len(epoch)]) != epoch {
			return false
		}
		b = b[len(epoch):]
	}
	return bytes.Equal(b, epoch[:len(b)])
}

// run is a stretch of a memory and what fills it: bytes that follow from Seed and position; zeros with Seed 0.
type run struct {
	Memory         int
	Offset, Length uint64
	Seed           uint64
}

func (r *run) pattern(i int) byte {
	if r.Seed == 0 {
		return 0
	}
	x := (r.Seed + r.Offset + uint64(i)) * 0x9E3779B97F4A7C15
	return byte(x >> 56)
}

func (h *host) memory(n int) *orbitte.Memory {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.memories[n]
}

func (h *host) fill(r run) (bool, error) {
	r.write(h.memory(r.Memory).Bytes()[r.Offset : r.Offset+r.Length])
	return true, nil
}

// check says how many bytes differ from the pattern.
func (h *host) check(r run) (differ int, err error) {
	return r.compare(h.memory(r.Memory).Bytes()[r.Offset : r.Offset+r.Length]), nil
}

// What orders a transfer before a look at its bytes, at the far end, is the other process; the race detector sees one
// process only. So the two that touch the bytes are kept from it.
//
//go:norace
func (r *run) write(b []byte) {
	for i := range b {
		b[i] = r.pattern(i)
	}
}

//go:norace
func (r *run) compare(b []byte) (differ int) {
	for i := range b {
		if b[i] != r.pattern(i) {
			differ++
		}
	}
	return differ
}

type peerOf struct {
	Engine   int
	Endpoint string
	Epoch    orbitte.Epoch
	Timeout  time.Duration
}

func (h *host) segment(p peerOf) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), p.Timeout)
	defer cancel()
	s, err := h.engine(p.Engine).OpenSegment(ctx, p.Endpoint, p.Epoch)
	if err != nil {
		return 0, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.segments = append(h.segments, s)
	return len(h.segments) - 1, nil
}

func (h *host) engine(n int) *orbitte.Engine {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.engines[n]
}

func (h *host) segmentAt(n int) *orbitte.Segment {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.segments[n]
}

type segmentOf struct{ Engine, Segment int }

func (h *host) closeSegment(s segmentOf) (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return true, h.engine(s.Engine).CloseSegment(ctx, h.segmentAt(s.Segment))
}

// transfer is Rounds submissions of Count equal requests, one Length behind the other at both ends unless Still.
type transfer struct {
	Engine, Segment               int
	Operation                     orbitte.Operation
	Local, Remote, Length         uint64
	Count, Rounds                 int
	Still                         bool
	Timeout                       time.Duration
	Completed, Submissions        int // results
	Local0, Remote0               orbitte.Effect
	ErrorClass, ErrorText, Reason string
}

func (h *host) transfer(x transfer) (transfer, error) {
	e, s := h.engine(x.Engine), h.segmentAt(x.Segment)
	requests := make([]orbitte.Request, max(x.Count, 1))
	for i := range requests {
		step := uint64(i) * x.Length
		if x.Still {
			step = 0
		}
		requests[i] = orbitte.Request{Operation: x.Operation, Segment: s, Local: x.Local + step, Remote: x.Remote + step, Length: x.Length}
	}
	for range max(x.Rounds, 1) {
		ctx, cancel := context.WithTimeout(context.Background(), x.Timeout)
		report, err := e.SubmitAndWait(ctx, requests)
		cancel()
		x.Completed += report.Completed
		x.Submissions++
		x.Local0, x.Remote0 = report.Local, report.Remote
		if err != nil {
			return x, err
		}
	}
	return x, nil
}

type engineOf struct{ Engine int }

type counters struct {
	Totals orbitte.Traffic
	Gauges map[string]int64
}

func (h *host) stats(a engineOf) (counters, error) {
	s := h.engine(a.Engine).Stats()
	c := counters{s.Totals, map[string]int64{}}
	for _, g := range s.Gauges {
		name, _, _ := strings.Cut(g.Name, ", lane ") // the lanes' shares together
		c.Gauges[name] += g.Used
	}
	return c, nil
}

// close ends an engine; the answer lists what is left of it but registrations, which are the child's.
func (h *host) close(a engineOf) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience/2)
	defer cancel()
	e := h.engine(a.Engine)
	if err := e.Close(ctx); err != nil {
		return nil, err
	}
	e.ReceiveNotifications() // the inbox is the caller's to empty
	var left []string
	for _, g := range e.Stats().Gauges {
		if g.Used != 0 && g.Name != "retained registrations" && g.Name != "registered bytes" {
			left = append(left, fmt.Sprintf("%s: %d %s", g.Name, g.Used, g.Unit))
		}
	}
	for _, r := range e.RetainedResources() {
		left = append(left, fmt.Sprint(r))
	}
	return left, nil
}

// forkLoop starts /bin/true n times, one after the other.
func forkLoop(n int) (int, error) {
	for i := range n {
		if err := exec.Command("/bin/true").Run(); err != nil {
			return i, err
		}
	}
	return n, nil
}
