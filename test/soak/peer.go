package main

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/orbitte/orbitte"
)

// A neighbour is one engine of the run, as its owner has announced it.
type neighbour struct {
	name            string // "p1/0"
	direct, through string // endpoints: its own, its proxy's
	epoch           orbitte.Epoch
	placement       string
	stale           orbitte.Epoch // of the life before; zero: none known
}

// A peer is this process: lives of engines, one after the other, until it is told to end.
type peer struct {
	name, role  string
	index, life int
	seed        uint64
	workers     int
	parent      int
	began       time.Time
	print       sync.Mutex
	recent      []string // the last operations, for a failure's report; guarded by print
	mu          sync.Mutex
	known       map[string]neighbour
	ending      chan struct{} // closed when the parent says so
	watch       watch
	base        held
	count       struct{ requests, ok, failed, bytes, notes, refused atomic.Int64 }
	exit        func(int)
}

// livePeer is a child's whole life.
func livePeer(spec string) {
	p := &peer{began: time.Now(), known: map[string]neighbour{}, ending: make(chan struct{}), exit: os.Exit}
	p.watch.peer = p
	if _, err := fmt.Sscan(spec, &p.name, &p.life, &p.seed, &p.role, &p.workers, &p.parent); err != nil {
		p.fail("its order %q: %v", spec, err)
	}
	if _, err := fmt.Sscanf(p.name, "p%d", &p.index); err != nil {
		p.fail("its name %q: %v", p.name, err)
	}
	go p.listen()
	go p.watch.run()
	p.warmUp()
	for n := 1; !p.over(); n++ {
		p.generation(n)
	}
	p.say("bye")
}

func (p *peer) over() bool {
	select {
	case <-p.ending:
		return true
	default:
		return false
	}
}

// listen reads what the parent says. Without a parent there is no reason to live.
func (p *peer) listen() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		switch {
		case len(f) == 6 && f[0] == "peer":
			epoch, err := orbitte.ParseEpoch(f[4])
			if err != nil {
				p.fail("%q: %v", lines.Text(), err)
			}
			p.meet(neighbour{name: f[1], direct: f[2], through: f[3], epoch: epoch, placement: f[5]})
		case len(f) == 1 && f[0] == "end":
			close(p.ending)
		}
	}
	os.Exit(4)
}

func (p *peer) meet(n neighbour) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old, ok := p.known[n.name]; ok && old.epoch != n.epoch {
		n.stale = old.epoch
	}
	p.known[n.name] = n
}

// neighbours lists who is known, in the order of names.
func (p *peer) neighbours() []neighbour {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]neighbour, 0, len(p.known))
	for _, n := range p.known {
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b neighbour) int { return strings.Compare(a.name, b.name) })
	return all
}

// say tells the parent one line.
func (p *peer) say(format string, args ...any) {
	p.print.Lock()
	defer p.print.Unlock()
	fmt.Printf("%.3f "+format+"\n", append([]any{time.Since(p.began).Seconds()}, args...)...)
}

// remember keeps an operation for a failure's report.
func (p *peer) remember(format string, args ...any) {
	text := fmt.Sprintf("%.4f "+format, append([]any{time.Since(p.began).Seconds()}, args...)...)
	p.print.Lock()
	defer p.print.Unlock()
	if p.recent = append(p.recent, text); len(p.recent) > 240 {
		p.recent = append(p.recent[:0], p.recent[120:]...)
	}
}

// fail is the end of this process: what is wrong, and what was done last.
func (p *peer) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	p.print.Lock() // for good: nobody says anything any more
	last := p.recent[max(0, len(p.recent)-80):]
	text += "\nlast operations:\n" + strings.Join(last, "\n")
	fmt.Printf("%.3f FAIL %s\n", time.Since(p.began).Seconds(), strings.ReplaceAll(text, "\n", "\\n"))
	p.exit(3)
}

// stacks is every goroutine, for a report about a hang.
func stacks() string {
	b := make([]byte, 1<<20)
	return string(b[:runtime.Stack(b, true)])
}

// warmUp opens and closes an engine of each kernel, so that what the runtime keeps for good is there before the first
// comparison.
func (p *peer) warmUp() {
	for _, kernel := range []orbitte.KernelChoice{orbitte.Epoll, orbitte.Auto} {
		if e, err := orbitte.Open(orbitte.Config{Kernel: kernel}); err == nil { // it may be starved already
			if err := closeWithin(e, 20*time.Second); err != nil {
				p.fail("the first engine: %v", err)
			}
		}
	}
	time.Sleep(10 * time.Millisecond)
	p.base = measure()
}

// generation opens one or two engines, works them, closes them, and compares with the start.
func (p *peer) generation(n int) {
	dice := rand.New(rand.NewPCG(uint64(keyOf(p.seed, hashOf(p.name), uint64(p.life), uint64(n))), 2))
	var all sync.WaitGroup
	for slot := range 1 + dice.IntN(engineMax) {
		l := newLife(p, slot, n, dice.Uint64())
		all.Add(1)
		go func() {
			defer all.Done()
			l.live()
		}()
	}
	all.Wait()
	p.compare()
}

// compare holds the process to what it had at its start, now that no engine is open.
func (p *peer) compare() {
	var now held
	var left []string
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		now = measure()
		if left = now.over(p.base); len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			p.fail("left after all engines were closed: %s\n%s", strings.Join(left, "; "), stacks())
		}
	}
	p.say("quiet %d %d %d %d", now.rss, now.heap, now.goroutines, now.descriptors)
}
