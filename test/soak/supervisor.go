package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	port       = 7019 // below the ephemeral ports, so that no connection of anybody's takes it
	engineMax  = 2    // engines of one process at a time, each on an address of its own
	silenceMax = 30 * time.Second
	closingMax = 90 * time.Second
)

// options of a run.
type options struct {
	seed    uint64
	length  time.Duration
	peers   int
	pace    time.Duration // mean time between faults
	dir     string
	workers int // of each engine
	out     io.Writer
}

// A supervisor runs the plan.
type supervisor struct {
	options
	began    time.Time
	log      *os.File
	mu       sync.Mutex // guards what follows
	children []*child
	lives    []int
	proxies  []*proxy          // of peer i, engine j: i*engineMax + j
	known    map[string]string // what is said about each engine that is up, by "p1/0"
	ledger   ledger
	failures []string
	counts   map[action]int
	ending   bool
	pending  sync.WaitGroup // ends of faults, restarts
	stop     chan struct{}  // closed at the end of the plan
}

// address of an engine. The parent's process ID keeps two runs of one host apart.
func address(pid, peer, engine int) string {
	return fmt.Sprintf("127.%d.%d.%d:%d", 100+pid>>8&63, pid&255, 1+peer*engineMax+engine, port)
}

// run is the whole soak; it returns the closing line and the number of failures.
func run(o options) (string, int, error) {
	s := &supervisor{options: o, began: time.Now(), known: map[string]string{}, ledger: newLedger(), counts: map[action]int{}, stop: make(chan struct{})}
	s.children, s.lives = make([]*child, o.peers), make([]int, o.peers)
	var err error
	if s.log, err = os.Create(filepath.Join(o.dir, "soak.log")); err != nil {
		return "", 0, err
	}
	defer s.log.Close()
	events := plan(o.seed, o.length, o.peers, o.pace)
	fmt.Fprintf(s.log, "SEED=%d, %v, %d peers\n%s\n", o.seed, o.length, o.peers, planText(events))
	fmt.Fprintf(o.out, "soak: %v, SEED=%d, %d processes, %d faults planned, log %s\n", o.length, o.seed, o.peers, len(events), s.log.Name())
	for i := range o.peers * engineMax {
		p, err := newProxy(address(os.Getpid(), i/engineMax, i%engineMax))
		if err != nil {
			return "", 0, err
		}
		defer p.close()
		s.proxies = append(s.proxies, p)
	}
	for i := range o.peers {
		s.start(i)
	}
	s.follow(events)
	s.end()
	return s.closing(), len(s.failures), nil
}

// follow carries out the plan, watches the children and shows progress.
func (s *supervisor) follow(events []event) {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for n := 1; ; n++ {
		for len(events) > 0 && events[0].at <= time.Since(s.began) {
			s.carryOut(events[0])
			events = events[1:]
		}
		s.watch()
		if n%10 == 0 {
			fmt.Fprintf(s.out, "%6.0f s  %s\n", time.Since(s.began).Seconds(), s.progress())
		}
		if time.Since(s.began) >= s.length || s.failed() {
			return
		}
		<-tick.C
	}
}

func (s *supervisor) failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.failures) > 0
}

// start begins the next life of a peer.
func (s *supervisor) start(peer int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending {
		return
	}
	s.lives[peer]++
	role := "both"
	switch {
	case peer == s.peers-1 && s.peers > 3:
		role = "requester"
	case peer == s.peers-2 && s.peers > 3:
		role = "source"
	}
	spec := fmt.Sprintf("p%d %d %d %s %d %d", peer, s.lives[peer], s.seed, role, s.workers, os.Getpid())
	c, err := startChild(peer, s.lives[peer], spec, s.dir, s.take)
	if err != nil {
		s.failLocked(fmt.Sprintf("p%d cannot be started: %v", peer, err))
		return
	}
	c.heard.Store(int64(time.Since(s.began)))
	s.children[peer] = c
	for _, said := range s.known {
		c.tell("%s", said)
	}
}

// take reads a line of a child.
func (s *supervisor) take(c *child, line string) {
	c.heard.Store(int64(time.Since(s.began)))
	s.note("%s %s", c.name(), line)
	_, text, _ := strings.Cut(line, " ") // its own clock
	word, rest, _ := strings.Cut(text, " ")
	s.mu.Lock()
	defer s.mu.Unlock()
	switch word {
	case "up": // engine endpoint epoch placement …
		f := strings.Fields(rest)
		var engine int
		if _, err := fmt.Sscan(f[0], &engine); err != nil || len(f) < 4 {
			s.failLocked("cannot read " + line)
			return
		}
		who := fmt.Sprintf("p%d/%d", c.peer, engine)
		s.known[who] = fmt.Sprintf("peer %s %s %s %s %s", who, f[1], s.proxies[c.peer*engineMax+engine].endpoint(), f[2], f[3])
		for _, other := range s.children {
			if other != nil {
				other.tell("%s", s.known[who])
			}
		}
	case "bye":
		c.bye.Store(true)
	case "FAIL":
		c.killed.Store(true) // it is judged; how it ends is no news
		s.failLocked(c.name() + ": " + strings.ReplaceAll(rest, "\\n", "\n"))
	default:
		if err := s.ledger.take(c, word, rest); err != nil {
			s.failLocked(fmt.Sprintf("cannot read %q: %v", line, err))
		}
	}
}

func (s *supervisor) note(format string, args ...any) {
	fmt.Fprintf(s.log, "%9.3f "+format+"\n", append([]any{time.Since(s.began).Seconds()}, args...)...)
}

func (s *supervisor) fail(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failLocked(text)
}

// failLocked reports a failure with the last events of each process; of the first failure only, since others follow.
func (s *supervisor) failLocked(text string) {
	s.failures = append(s.failures, text)
	s.note("FAILURE %s", text)
	if len(s.failures) > 1 {
		text, _, _ = strings.Cut(text, "\n") // the log has the rest
	}
	fmt.Fprintf(s.out, "FAILURE at %.1f s, SEED=%d: %s\n", time.Since(s.began).Seconds(), s.seed, text)
	if len(s.failures) > 1 {
		return
	}
	for _, c := range s.children {
		if c != nil {
			fmt.Fprintf(s.out, "last events of %s:\n%s\n", c.name(), c.events())
		}
	}
}

// carryOut is one fault of the plan.
func (s *supervisor) carryOut(e event) {
	s.note("plan %v", e)
	s.mu.Lock()
	s.counts[e.do]++
	c := s.children[e.peer]
	s.mu.Unlock()
	switch e.do {
	case doKill:
		s.later(e.length, s.kill(c), func() { s.start(e.peer) })
	case doStop:
		c.stopped.Store(true)
		c.signal(syscall.SIGSTOP)
		s.later(e.length, true, func() { s.proceed(c) })
	case doFiles:
		s.starve(c, e)
	default:
		for i := range engineMax {
			p := s.proxies[e.peer*engineMax+i]
			p.fault.Store(&e)
			s.later(e.length, true, func() { p.fault.CompareAndSwap(&e, nil) })
		}
	}
}

// later runs do after d, or at the end of the plan, whichever is first.
func (s *supervisor) later(d time.Duration, wanted bool, do func()) {
	if !wanted {
		return
	}
	s.pending.Add(1)
	go func() {
		defer s.pending.Done()
		select {
		case <-time.After(d):
		case <-s.stop:
		}
		do()
	}()
}

// kill ends a life; false when it is between two lives already.
func (s *supervisor) kill(c *child) bool {
	if c.killed.Load() {
		return false
	}
	c.kill()
	s.reap(c)
	return true
}

func (s *supervisor) reap(c *child) {
	if why := c.complaint(); why != "" {
		s.fail(c.name() + " " + why)
	}
}

func (s *supervisor) proceed(c *child) {
	c.heard.Store(int64(time.Since(s.began)))
	c.signal(syscall.SIGCONT)
	c.stopped.Store(false)
}

// starve lowers a child's limit of descriptors to little more than it has open.
func (s *supervisor) starve(c *child, e event) {
	if !c.alive() {
		return
	}
	pid := c.cmd.Process.Pid
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	var old unix.Rlimit
	if err != nil || unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &old) != nil {
		return // it has just been killed
	}
	limit := unix.Rlimit{Cur: uint64(len(open)) + uint64(e.bytes), Max: old.Max}
	_ = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &limit, nil) // as above
	s.later(e.length, true, func() {
		if c.alive() {
			_ = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: min(4096, old.Max), Max: old.Max}, nil) // as above
		}
	})
}

// watch looks for children that ended by themselves or say nothing any more.
func (s *supervisor) watch() {
	s.mu.Lock()
	children := append([]*child(nil), s.children...)
	s.mu.Unlock()
	for _, c := range children {
		select {
		case <-c.reaped:
			if !c.killed.Load() {
				s.reap(c)
			}
			continue
		default:
		}
		if d := c.silent(s.began); d > silenceMax && !c.killed.Load() {
			s.dump(c, fmt.Sprintf("has said nothing for %v", d))
		}
	}
}

// dump makes a hanging child write its goroutines down.
func (s *supervisor) dump(c *child, why string) {
	c.killed.Store(true)
	c.signal(syscall.SIGQUIT)
	select {
	case <-c.reaped:
	case <-time.After(10 * time.Second):
		c.kill()
	}
	s.fail(fmt.Sprintf("%s %s\n%s", c.name(), why, c.complaint()))
}

// end lets every fault end, then closes the peers, then asks the ledger.
func (s *supervisor) end() {
	close(s.stop)
	s.pending.Wait()
	for _, p := range s.proxies {
		p.fault.Store(nil)
	}
	s.mu.Lock()
	s.ending = true
	children := append([]*child(nil), s.children...)
	s.mu.Unlock()
	for _, c := range children {
		c.tell("end")
	}
	deadline := time.After(closingMax)
	for _, c := range children {
		select {
		case <-c.reaped:
			if !c.killed.Load() {
				s.reap(c)
			}
		case <-deadline:
			s.dump(c, fmt.Sprintf("has not closed everything in %v", closingMax))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, why := range s.ledger.judge() {
		s.failLocked(why)
	}
}

func (s *supervisor) progress() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	hits := int64(0)
	for _, p := range s.proxies {
		hits += p.done.Load()
	}
	return fmt.Sprintf("%s, %d kills, %d stops, %d starvings, %d connections cut or blackened, %d failures",
		s.ledger.progress(), s.counts[doKill], s.counts[doStop], s.counts[doFiles], hits, len(s.failures))
}

// closing is the last line.
func (s *supervisor) closing() string {
	fmt.Fprint(s.out, s.ledger.figures())
	minutes := time.Since(s.began).Minutes()
	line := s.progress()
	s.mu.Lock()
	defer s.mu.Unlock()
	planned := make([]string, 0, len(weights))
	for _, w := range weights {
		planned = append(planned, fmt.Sprintf("%s %d", w.do, s.counts[w.do]))
	}
	fmt.Fprintf(s.out, "faults: %s\n", strings.Join(planned, ", "))
	at := strings.LastIndex(line, ", ")
	return fmt.Sprintf("soak: %.1f min, SEED=%d, %s, failures %d", minutes, s.seed, line[:at], len(s.failures))
}
