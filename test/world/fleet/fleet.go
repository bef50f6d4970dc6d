package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

const (
	// rest is how long a node's step would wait: longer than any timer of an engine.
	rest = time.Hour
	// patience bounds one run on the virtual clock.
	patience = 10 * time.Minute
	port     = 7000
)

// fleet is a world of nodes.
type fleet struct {
	world   *simkernel.World
	seed    uint64
	nodes   []*node
	failure error
	running int
	tick    func() // called once in a while, for the progress line
}

// node is one engine in a process on a host of its own.
type node struct {
	fleet    *fleet
	index    int
	process  *simkernel.Process
	kernel   *simkernel.Kernel
	engine   *orbitte.Engine
	task     *simkernel.Task
	memory   *orbitte.Memory
	regions  []*orbitte.Registration
	segments map[int]*orbitte.Segment // by the index of the peer
	retries  int                      // opens that were refused and tried again
}

func newFleet(seed uint64, n int) (*fleet, error) {
	f := emptyFleet(seed, simkernel.WorldOptions{})
	for range n {
		if _, err := f.add(); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// emptyFleet has no nodes yet.
func emptyFleet(seed uint64, o simkernel.WorldOptions) *fleet {
	o.Descriptors = 32 << 10
	return &fleet{seed: seed, world: simkernel.NewWorld(seed, o)}
}

// add starts one more node.
func (f *fleet) add() (*node, error) {
	n := &node{fleet: f, index: len(f.nodes), segments: map[int]*orbitte.Segment{}}
	host := netip.AddrFrom4([4]byte{10, byte(n.index >> 16), byte(n.index >> 8), byte(n.index)})
	n.process = f.world.Process(fmt.Sprintf("node %d", n.index), host)
	n.kernel = n.process.Kernel()
	engine, err := orbitte.Open(orbitte.Config{
		Progress: orbitte.Manual, Lanes: 1, Bind: netip.AddrPortFrom(host, port).String(), Epoch: epochOf(f.seed, n.index),
		Limits:     orbitte.Limits{Registrations: 8192, SubmittedBytes: 256 << 20, PeerSegments: 16 << 10},
		OpenKernel: func(int) (reactor.Kernel, error) { return n.kernel, nil },
	})
	if err != nil {
		return nil, fmt.Errorf("node %d: %w", n.index, err)
	}
	n.engine = engine
	n.task = f.world.AddFor(func() bool { return engine.Progress(rest) }, n.kernel)
	f.nodes = append(f.nodes, n)
	return n, nil
}

func epochOf(seed uint64, index int) (e orbitte.Epoch) {
	stamp{node: index, page: int(seed % 1000)}.write(e[:])
	return e
}

// run runs an app on each node for which choose gives one, side by side, until all have returned. The first
// error ends the run.
func (f *fleet) run(choose func(n *node) func() error) error {
	for _, n := range f.nodes {
		app := choose(n)
		if app == nil {
			continue
		}
		f.running++
		n.task.Call(func() {
			if err := app(); err != nil && f.failure == nil {
				f.failure = fmt.Errorf("node %d: %w", n.index, err)
			}
			f.running--
		})
	}
	steps := 0
	done := func() bool {
		if steps++; steps%4096 == 0 && f.tick != nil {
			f.tick()
		}
		return f.running == 0 || f.failure != nil
	}
	if err := f.world.RunUntil(done, f.world.Now().After(patience)); err != nil && f.failure == nil {
		f.failure = err
	}
	return f.failure
}

// allocate gives a node its memory.
func (n *node) allocate(bytes int) (err error) {
	n.memory, err = orbitte.Allocate(bytes)
	return err
}

// register registers the memory in count equal ranges.
func (n *node) register(count int, p orbitte.Permission) error {
	size := uint64(n.memory.Len() / count)
	ranges := make([]orbitte.Range, count)
	for i := range ranges {
		ranges[i] = orbitte.Range{Memory: n.memory, Offset: uint64(i) * size, Length: size, Permission: p}
	}
	made, err := n.engine.RegisterBatch(ranges)
	n.regions = append(n.regions, made...)
	return err
}

// open opens a peer's segment. A source that has more to do than its queue takes closes the connection; then
// the node waits, longer each time, and asks again, as a program would.
func (n *node) open(peer int) (*orbitte.Segment, error) {
	if s := n.segments[peer]; s != nil {
		return s, nil
	}
	other := n.fleet.nodes[peer].engine
	pause := time.Millisecond
	for {
		s, err := n.engine.OpenSegment(context.Background(), other.Endpoint(), other.Epoch())
		if err == nil {
			n.segments[peer] = s
			return s, nil
		}
		if !errors.Is(err, orbitte.ErrDisconnected) && !errors.Is(err, orbitte.ErrUnreachable) || pause > time.Minute {
			return nil, fmt.Errorf("open node %d: %w", peer, err)
		}
		n.retries++
		n.sleep(pause + time.Duration((stamp{node: n.index, page: peer, round: n.retries}).key()%uint64(pause)))
		pause *= 2
	}
}

// sleep lets d pass on the virtual clock.
func (n *node) sleep(d time.Duration) {
	over := false
	n.fleet.world.Later(d, func() {
		over = true
		n.task.Ready()
	})
	for !over {
		n.task.Pause()
	}
}

// notify tells a peer something.
func (n *node) notify(peer int, name, message string) error {
	s, err := n.open(peer)
	if err != nil {
		return err
	}
	_, err = n.engine.SendNotification(context.Background(), s, orbitte.Notification{Name: name, Message: message})
	return err
}

// read is one READ of length bytes: from an offset in the peer's memory to one in the node's own.
func (n *node) read(s *orbitte.Segment, peer int, from, to, length int) orbitte.Request {
	return orbitte.Request{
		Operation: orbitte.Read, Segment: s, Length: uint64(length),
		Local: n.memory.Address() + uint64(to), Remote: n.fleet.nodes[peer].memory.Address() + uint64(from),
	}
}

func (n *node) bytes(offset, length int) []byte { return n.memory.Bytes()[offset : offset+length] }

// close ends everything, all nodes side by side, and says what is left.
func (f *fleet) close() error {
	if err := f.run(func(n *node) func() error { return n.leave }); err != nil {
		return err
	}
	if err := f.run(func(n *node) func() error { return n.end }); err != nil {
		return err
	}
	f.world.Advance(5 * time.Minute) // ports that wait
	for _, n := range f.nodes {
		if err := n.left(); err != nil {
			return err
		}
	}
	if left := len(f.world.Connections()); left != 0 {
		return fmt.Errorf("%d connections are left", left)
	}
	return nil
}

func (n *node) leave() error {
	for _, peer := range slices.Sorted(maps.Keys(n.segments)) { // in order, so that a seed replays
		if err := n.engine.CloseSegment(context.Background(), n.segments[peer]); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) end() error {
	n.engine.ReceiveNotifications()
	for _, r := range n.regions {
		if err := n.engine.Unregister(context.Background(), r); err != nil {
			return err
		}
	}
	return n.engine.Close(context.Background())
}

// left checks SPEC U-2 and that the simulated process has nothing open.
func (n *node) left() error {
	n.task.Remove()
	stats := n.engine.Stats()
	for _, g := range stats.Gauges {
		if g.Used != 0 {
			return fmt.Errorf("node %d: %d %s are still charged to %q", n.index, g.Used, g.Unit, g.Name)
		}
	}
	if kept := n.engine.RetainedResources(); len(kept) != 0 || stats.Unquiesced != 0 {
		return fmt.Errorf("node %d: unquiesced %d, retained %v", n.index, stats.Unquiesced, kept)
	}
	if open := n.process.Descriptors(); open != 0 {
		return fmt.Errorf("node %d: %d descriptors are open", n.index, open)
	}
	if n.memory == nil {
		return nil
	}
	return n.memory.Close()
}
