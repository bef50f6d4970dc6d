package main

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// A sweep measures the same thing for several sizes.
type sweep struct {
	name  string
	sizes []int
	of    string // what the sizes count
	cell  func(p plan, n int, into metrics) error
}

// plan is what all cells of a run share.
type plan struct {
	seed     uint64
	requests int // measured in a cell; a fleet does an eightieth of it for each engine
	regions  int // that the source of a storm publishes
}

func sweeps() []sweep {
	return []sweep{
		{"peers, asking", []int{1, 10, 100, 1000, 10_000}, "peers of one engine that reads from all", peersAsking},
		{"peers, serving", []int{1, 10, 100, 1000, 10_000}, "peers of one engine that all read from", peersServing},
		{"regions", []int{1, 64, 512, 4095}, "regions of both engines; 4,096 is the limit", regions},
		{"batch", []int{1, 8, 64, 512, 1024}, "requests in one batch", batches},
		{"storm", []int{10, 100, 1000, 10_000}, "engines that open one source's segment at the same moment", storm},
		{"storm, far", []int{10, 100, 1000, 10_000}, "the same over links of 100 to 300 µs", stormFar},
		{"engines", []int{10, 100, 1000, 10_000}, "engines of a fleet that all work", engines},
	}
}

const (
	measured = 8000 // requests of one cell, usually
	window   = 8    // batches in flight
	warm     = 64   // requests before the measured ones
)

// hubOf is a fleet of a hub, which is node 0, and n spokes; each has one page for every region.
func hubOf(seed uint64, n, count int, hub, spoke orbitte.Permission) (*fleet, error) {
	f, err := newFleet(seed, n+1)
	if err != nil {
		return nil, err
	}
	for i, node := range f.nodes {
		permission, pages := spoke, count
		if i == 0 {
			permission, pages = hub, max(count, window)
		}
		if err := node.allocate(pages * pageBytes); err != nil {
			return nil, err
		}
		if err := node.register(pages, permission); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// peersAsking: one engine reads pages of all its peers, in a seeded order.
func peersAsking(p plan, n int, into metrics) error {
	f, err := hubOf(p.seed, n, 1, orbitte.LocalOnly, orbitte.RemoteRead)
	if err != nil {
		return err
	}
	hub := f.nodes[0]
	other, err := f.add() // opens all peers first, so that what each engine maps once is there
	if err != nil {
		return err
	}
	if err := f.only(other, func() error { return other.openAll(n) }); err != nil {
		return err
	}
	before := heap()
	opening := f.begin(hub)
	if err := f.only(hub, func() error { return hub.openAll(n) }); err != nil {
		return err
	}
	opening.end(f, into, "open", n)
	into["heap bytes per idle peer"] = (heap() - before) / float64(n)
	random := rand.New(rand.NewPCG(p.seed, 1))
	next := func(i int) []orbitte.Request {
		peer := 1 + random.IntN(n)
		return []orbitte.Request{hub.read(hub.segments[peer], peer, 0, i%window*pageBytes, pageBytes)}
	}
	if err := f.only(hub, func() error { return hub.pump(warm, window, next) }); err != nil {
		return err
	}
	reading := f.begin(hub)
	if err := f.only(hub, func() error { return hub.pump(p.requests, window, next) }); err != nil {
		return err
	}
	reading.end(f, into, "request", p.requests)
	return f.close()
}

func (n *node) openAll(peers int) error {
	for peer := 1; peer <= peers; peer++ {
		if _, err := n.open(peer); err != nil {
			return err
		}
	}
	return nil
}

// peersServing: one engine serves all its peers, of which a few ask at a time.
func peersServing(p plan, n int, into metrics) error {
	f, err := hubOf(p.seed, n, 1, orbitte.RemoteRead, orbitte.LocalOnly)
	if err != nil {
		return err
	}
	hub := f.nodes[0]
	each := max(1, p.requests/n)
	turn := func(spoke *node, requests int) error {
		return f.only(spoke, func() error {
			s, err := spoke.open(0)
			if err != nil {
				return err
			}
			return spoke.pump(requests, 2, func(int) []orbitte.Request { return []orbitte.Request{spoke.read(s, 0, 0, 0, pageBytes)} })
		})
	}
	for _, spoke := range f.nodes[1:] {
		if err := turn(spoke, 2); err != nil {
			return err
		}
	}
	serving := f.begin(hub)
	for _, spoke := range f.nodes[1:] {
		if err := turn(spoke, each); err != nil {
			return err
		}
	}
	serving.end(f, into, "request", each*n)
	return f.close()
}

// regions: two engines with many registrations on both sides.
func regions(p plan, n int, into metrics) error {
	f, err := newFleet(p.seed, 2)
	if err != nil {
		return err
	}
	reader, source := f.nodes[0], f.nodes[1]
	before, registering := heap(), f.begin()
	for i, permission := range []orbitte.Permission{orbitte.LocalOnly, orbitte.RemoteRead} {
		if err := f.nodes[i].allocate((n + 1) * pageBytes); err != nil {
			return err
		}
		if err := f.nodes[i].registerFirst(n, permission); err != nil {
			return err
		}
	}
	registering.end(f, into, "region registered in a batch", 2*n)
	into["heap bytes per region"] = (heap() - before) / float64(2*n)
	if err := registerBeside(f, source, n, into); err != nil {
		return err
	}
	if err := describe(f, n, into); err != nil {
		return err
	}
	s := reader.segments[1]
	random := rand.New(rand.NewPCG(p.seed, 2))
	next := func(int) []orbitte.Request {
		return []orbitte.Request{reader.read(s, 1, random.IntN(n)*pageBytes, random.IntN(n)*pageBytes, pageBytes)}
	}
	if err := f.only(reader, func() error { return reader.pump(warm, 1, next) }); err != nil {
		return err
	}
	reading := f.begin(reader)
	if err := f.only(reader, func() error { return reader.pump(p.requests, 1, next) }); err != nil {
		return err
	}
	reading.end(f, into, "request", p.requests)
	return f.close()
}

// registerFirst registers the first n pages of a memory, one region each.
func (n *node) registerFirst(count int, p orbitte.Permission) error {
	ranges := make([]orbitte.Range, count)
	for i := range ranges {
		ranges[i] = orbitte.Range{Memory: n.memory, Offset: uint64(i * pageBytes), Length: pageBytes, Permission: p}
	}
	made, err := n.engine.RegisterBatch(ranges)
	n.regions = append(n.regions, made...)
	return err
}

const besides = 32

// registerBeside registers and unregisters one range beside n others.
func registerBeside(f *fleet, n *node, count int, into metrics) error {
	m := f.begin()
	for range besides {
		r, err := n.engine.Register(n.memory, uint64(count*pageBytes), pageBytes, orbitte.LocalOnly)
		if err != nil {
			return err
		}
		if err := n.engine.Unregister(noDeadline, r); err != nil {
			return err
		}
	}
	m.end(f, into, "registration of one, and its end", besides)
	return nil
}

// describe opens the source's segment several times over one stream, and keeps the last.
func describe(f *fleet, n int, into metrics) error {
	const times = 16
	reader, source := f.nodes[0], f.nodes[1]
	before := heap()
	if err := f.only(reader, func() error { return reader.openAll(1) }); err != nil {
		return err
	}
	into["heap bytes per region opened, and a share of its stream"] = (heap() - before) / float64(n)
	s := reader.segments[1]
	stream := f.world.Connections()[0]
	written := stream.Bytes(1)
	m := f.begin(source)
	if err := f.only(reader, func() error {
		for range times {
			if err := s.Refresh(noDeadline); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	m.end(f, into, "describe", times)
	into["bytes on the wire per describe"] = float64(stream.Bytes(1)-written) / times
	if len(s.Regions()) != n {
		return fmt.Errorf("the segment shows %d regions, wanted %d", len(s.Regions()), n)
	}
	return nil
}

// batches: two engines, the same requests in batches of n.
func batches(p plan, n int, into metrics) error {
	f, err := hubOf(p.seed, 1, n, orbitte.LocalOnly, orbitte.RemoteRead)
	if err != nil {
		return err
	}
	reader := f.nodes[0]
	requests := make([]orbitte.Request, n)
	app := func(count int) func() error {
		return func() error {
			s, err := reader.open(1)
			if err != nil {
				return err
			}
			for i := range requests {
				requests[i] = reader.read(s, 1, i*pageBytes, i*pageBytes, pageBytes)
			}
			return reader.pump(count, 1, func(int) []orbitte.Request { return requests })
		}
	}
	if err := f.only(reader, app(2)); err != nil {
		return err
	}
	count := max(2, 2*p.requests/n)
	m := f.begin(reader)
	if err := f.only(reader, app(count)); err != nil {
		return err
	}
	m.end(f, into, "request", count*n)
	return f.close()
}

// storm: a source was started again, and all its peers ask at the same moment what it publishes, through socket
// buffers that hold a quarter of the answer.
func storm(p plan, n int, into metrics) error {
	return stormOver(p, n, into, simkernel.WorldOptions{})
}

// stormFar: the same, but each answer keeps a handler busy for several round trips, so that the queue is not
// worked off within the grace of a frame that found it full.
func stormFar(p plan, n int, into metrics) error {
	return stormOver(p, n, into, simkernel.WorldOptions{DelayMin: 100 * time.Microsecond, DelayMax: 300 * time.Microsecond})
}

func stormOver(p plan, n int, into metrics, o simkernel.WorldOptions) error {
	const recordBytes = 32 // of a region in a descriptor (SPEC W-7)
	o.Buffer = p.regions * recordBytes / 4
	f := emptyFleet(p.seed, o)
	source, err := f.add()
	if err != nil {
		return err
	}
	if err := source.allocate(p.regions * pageBytes); err != nil {
		return err
	}
	if err := source.register(p.regions, orbitte.RemoteRead); err != nil {
		return err
	}
	for range n {
		if _, err := f.add(); err != nil {
			return err
		}
	}
	m := f.begin(source)
	if err := f.run(func(other *node) func() error {
		if other == source {
			return nil
		}
		return func() error { _, err := other.open(source.index); return err }
	}); err != nil {
		return err
	}
	m.end(f, into, "open", n)
	into["virtual ms until all are open"] = into["virtual ns per open"] * float64(n) / 1e6
	retries := 0
	for _, other := range f.nodes {
		retries += other.retries
	}
	into["retries per open"] = float64(retries) / float64(n)
	return f.close()
}

// engines: the whole pattern, as many requests for each engine in every size.
func engines(p plan, n int, into metrics) error {
	before := heap()
	w, err := newWork(p.seed, n, p.requests*n/80)
	if err != nil {
		return err
	}
	into["heap bytes per engine"] = (heap() - before) / float64(n)
	return w.measure(into)
}

// measure runs the work once, with every check, and notes what it cost.
func (w *work) measure(into metrics) error {
	opens := 0
	for _, n := range w.nodes {
		opens += len(w.peers(n))
	}
	m := w.begin()
	if err := w.connect(); err != nil {
		return err
	}
	m.end(w.fleet, into, "open", opens)
	m = w.begin()
	if err := w.do(); err != nil {
		return err
	}
	m.end(w.fleet, into, "request", w.requests)
	into["requests"], into["bytes"], into["notifications"], into["segments"] = float64(w.requests), float64(w.bytes), float64(w.notes), float64(opens)
	return w.close()
}
