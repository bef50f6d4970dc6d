package main

import (
	"fmt"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/perf/baselines"
	"github.com/orbitte/orbitte/perf/figures"
)

// options choose among the workloads.
type options struct {
	kernel string // of setups whose kernel is not what varies
	full   bool   // every combination, not one axis at a time
	small  bool   // the least of everything: the harness's own test
}

// standard is the setup that all others differ from by one thing.
func (o options) standard() Setup {
	return Setup{Transport: "tcp", Placement: "staged", Progress: "adaptive", Kernel: o.kernel, Lanes: 1}
}

func (s Setup) with(change func(*Setup)) Setup {
	change(&s)
	return s
}

func (o options) staged() Setup { return o.standard() }

func (o options) direct() Setup {
	return o.standard().with(func(s *Setup) { s.Placement = "direct" })
}

func (o options) hptcp() Setup {
	return o.standard().with(func(s *Setup) { s.Transport, s.Placement, s.Lanes = "hptcp", "", 0 })
}

// workload is a kind of work with its groups.
type workload struct {
	name   string
	about  string
	groups func(options) []group
}

// workloads is the table of all.
var workloads = []workload{
	{"bulk", "READ and WRITE of one size, in batches, against raw loops, Go net, gnet and grpc-go", bulkGroups},
	{"batch", "how many small requests one submission has", batchGroups},
	{"streams", "several streams in parallel, against as many raw streams", streamGroups},
	{"latency", "one READ at a time in each progress mode and on each kernel, against raw ping-pong", latencyGroups},
	{"pages", "many scattered pages of 4 KiB", pageGroups},
	{"models", "KV caches of well-known models: a prompt's blocks, scattered", modelGroups},
	{"mixed", "single READs of 4 KiB beside transfers of 64 MiB", mixedGroups},
	{"peers", "small READs over 1 to 1,000 peers", peerGroups},
	{"registrations", "ranges registered and unregistered, round after round", registrationGroups},
	{"idle", "what peers cost that nobody uses", idleGroups},
	{"tools", "measuring programs of others, beside the engine", toolGroups},
}

const (
	kib = 1 << 10
	mib = 1 << 20
)

func (o options) sizes() []uint64 {
	if o.small {
		return []uint64{64, 64 * kib}
	}
	return []uint64{64, 4 * kib, 64 * kib, mib, 8 * mib, 64 * mib}
}

// batchFor is a batch of 8 MiB, between 1 and 256 requests.
func batchFor(size uint64) int { return int(min(max(8*mib/size, 1), 256)) }

var operations = []struct {
	operation orbitte.Operation
	what      byte
}{{orbitte.Read, baselines.Pull}, {orbitte.Write, baselines.Push}}

func bulkGroups(o options) []group {
	var groups []group
	for _, op := range operations {
		for _, size := range o.sizes() {
			g := group{workload: "bulk", name: fmt.Sprintf("%s %s", operationName(op.operation), figures.Bytes(size)), figure: figures.Rate}
			g.subjects = append(g.subjects, rawBulk(op.what, size, 1, false), rawBulk(op.what, size, 1, true))
			for _, s := range o.bulkSetups() {
				for _, batch := range o.batches(size) {
					w := work{setup: s, operation: op.operation, size: size, batch: batch}.subject()
					w.name += fmt.Sprintf(", batches of %d", batch)
					g.subjects = append(g.subjects, w)
				}
			}
			g.subjects = append(g.subjects, goNetBulk(op.what, size))
			if !o.small {
				g.subjects = append(g.subjects, gnetBulk(op.what, size), grpcCall(op.what, size, false), grpcCall(op.what, size, true))
			}
			if op.operation == orbitte.Read {
				g.subjects = append(g.subjects, memoryCopy(size))
			}
			groups = append(groups, g)
		}
	}
	return groups
}

func (o options) batches(size uint64) []int {
	if !o.full {
		return []int{batchFor(size)}
	}
	batches := []int{1}
	if most := batchFor(size); most > 1 {
		batches = append(batches, most)
	}
	return batches
}

// bulkSetups are the planes; in a full run in every progress mode and on both kernels.
func (o options) bulkSetups() []Setup {
	planes := []Setup{o.staged(), o.direct(), o.hptcp()}
	if !o.full {
		return planes
	}
	var all []Setup
	for _, p := range planes {
		for _, progress := range []string{"adaptive", "event", "busy", "manual"} {
			for _, kernel := range []string{"io_uring", "epoll"} {
				all = append(all, p.with(func(s *Setup) { s.Progress, s.Kernel = progress, kernel }))
			}
		}
	}
	return all
}

func batchGroups(o options) []group {
	sizes, batches := []uint64{64, 4 * kib}, []int{1, 8, 64, 1024}
	if o.small {
		sizes, batches = sizes[:1], batches[:2]
	}
	var groups []group
	for _, size := range sizes {
		g := group{workload: "batch", name: "READ " + figures.Bytes(size) + " in batches", figure: figures.Operations}
		for _, s := range []Setup{o.staged(), o.hptcp()} {
			for i, batch := range batches {
				w := work{setup: s, operation: orbitte.Read, size: size, batch: batch}.subject()
				w.name += fmt.Sprintf(", batches of %d", batch)
				w.baseline = i == 0 && s.Transport == "tcp"
				g.subjects = append(g.subjects, w)
			}
		}
		groups = append(groups, g)
	}
	return groups
}

func streamGroups(o options) []group {
	sizes, counts := []uint64{mib}, []int{1, 2, 4}
	if o.full {
		sizes = []uint64{4 * kib, 64 * kib, mib, 8 * mib}
	}
	if o.small {
		sizes, counts = []uint64{64 * kib}, counts[:2]
	}
	var groups []group
	for _, op := range operations {
		for _, size := range sizes {
			groups = append(groups, o.streamGroup(op.operation, op.what, size, counts))
		}
		if !o.small {
			groups = append(groups, o.largeGroup(op.operation, op.what, counts))
		}
	}
	return groups
}

// streamGroup is one size over several streams: raw ones, peers with a submitter each, and what HP-TCP chooses itself.
func (o options) streamGroup(op orbitte.Operation, what byte, size uint64, counts []int) group {
	g := group{workload: "streams", name: fmt.Sprintf("%s %s over several streams", operationName(op), figures.Bytes(size)), figure: figures.Rate}
	for _, n := range counts {
		g.subjects = append(g.subjects, rawBulk(what, size, n, false))
	}
	batch := batchFor(size)
	for _, n := range counts {
		w := work{setup: o.direct().with(func(s *Setup) { s.Lanes = min(n, 2) }), operation: op, size: size, batch: batch, streams: n}.subject()
		w.name += fmt.Sprintf(", %d peers", n)
		g.subjects = append(g.subjects, w)
	}
	hp := work{setup: o.hptcp(), operation: op, size: size, batch: 4 * batch}.subject()
	hp.name += fmt.Sprintf(", batches of %d", 4*batch)
	g.subjects = append(g.subjects, hp)
	return g
}

// largeGroup moves one range of 64 MiB, which raw streams share out.
func (o options) largeGroup(op orbitte.Operation, what byte, counts []int) group {
	g := group{workload: "streams", name: operationName(op) + " of 64 MiB at once", figure: figures.Rate}
	for _, n := range counts {
		g.subjects = append(g.subjects, rawBulk(what, 64*mib/uint64(n), n, false))
	}
	for _, s := range []Setup{o.staged(), o.direct(), o.hptcp()} {
		g.subjects = append(g.subjects, work{setup: s, operation: op, size: 64 * mib, batch: 1}.subject())
	}
	return g
}

func latencyGroups(o options) []group {
	sizes := []uint64{64, 4 * kib}
	if o.small {
		sizes = sizes[:1]
	}
	var groups []group
	for _, size := range sizes {
		g := group{workload: "latency", name: "READ " + figures.Bytes(size) + ", one at a time", figure: figures.P50}
		g.subjects = append(g.subjects, spinning.subject(size, true), blocking.subject(size, true), threaded.subject(size, false), looking.subject(size, false))
		for _, s := range o.latencySetups() {
			g.subjects = append(g.subjects, work{setup: s, operation: orbitte.Read, size: size, batch: 1}.subject())
		}
		g.subjects = append(g.subjects, goNet.subject(size, false))
		if !o.small {
			g.subjects = append(g.subjects, gnetLatency(size), grpcCall(baselines.PingPong, size, false))
			for _, t := range baselines.Tools() {
				if t.Latency {
					g.subjects = append(g.subjects, toolSubject(t, size))
				}
			}
		}
		groups = append(groups, g)
	}
	return groups
}

func (o options) latencySetups() []Setup {
	var all []Setup
	kernels := []string{"io_uring", "epoll"}
	if o.small {
		kernels = []string{o.kernel}
	}
	for _, kernel := range kernels {
		for _, progress := range []string{"manual", "busy", "adaptive", "event"} {
			all = append(all, o.staged().with(func(s *Setup) { s.Progress, s.Kernel = progress, kernel }))
		}
	}
	return append(all, o.hptcp(), o.hptcp().with(func(s *Setup) { s.Progress, s.Lanes = "manual", 1 }))
}

const pageBytes = 4 * kib

func pageGroups(o options) []group {
	counts := []int{1024, 120000}
	if o.small {
		counts = []int{64}
	}
	var groups []group
	for _, n := range counts {
		g := group{workload: "pages", name: fmt.Sprintf("READ of %d scattered pages of 4 KiB", n), figure: figures.Rate}
		g.subjects = []subject{rawPages(pageBytes, n), rawBulk(baselines.Pull, 64*kib, 1, false),
			pages{setup: o.hptcp(), operation: orbitte.Read, size: pageBytes, count: n, listed: true}.subject(),
			pages{setup: o.hptcp(), operation: orbitte.Read, size: pageBytes, count: n}.subject(),
			pages{setup: o.staged(), operation: orbitte.Read, size: pageBytes, count: n}.subject()}
		if !o.small { // a sample there is over before the lanes show their counts; models has a small WRITE
			g.subjects = append(g.subjects, pages{setup: o.hptcp(), operation: orbitte.Write, size: pageBytes, count: n, listed: true}.subject().named(writing))
		}
		g.subjects[1].baseline = false
		groups = append(groups, g)
	}
	return groups
}

func modelGroups(o options) []group {
	tokens, list := 512, models
	if o.small {
		tokens, list = 16, models[4:]
	}
	var groups []group
	for _, m := range list {
		n, size := m.ranges(tokens), m.pieceBytes()
		g := group{workload: "models", name: fmt.Sprintf("KV cache of %d tokens, %s", tokens, m.name), figure: figures.Rate}
		g.subjects = []subject{rawPages(size, n),
			pages{setup: o.hptcp(), operation: orbitte.Read, size: size, count: n, listed: true}.subject(),
			pages{setup: o.hptcp(), operation: orbitte.Write, size: size, count: n, listed: true}.subject(),
			pages{setup: o.staged(), operation: orbitte.Read, size: size, count: n}.subject(),
			pages{setup: o.direct(), operation: orbitte.Read, size: size, count: n}.subject()}
		g.subjects[0].note = m.arithmetic(tokens)
		g.subjects[2].name += ", WRITE"
		groups = append(groups, g)
	}
	return groups
}

func mixedGroups(o options) []group {
	var groups []group
	setups := []Setup{o.staged(), o.hptcp()}
	if o.small {
		setups = setups[:1]
	}
	for _, s := range setups {
		groups = append(groups, group{workload: "mixed", name: "READ 4 KiB beside 64 MiB, " + s.Transport, figure: figures.P50,
			subjects: []subject{beside{setup: s}.subject(), beside{setup: s, large: true}.subject(), rawBeside(false), rawBeside(true)}})
	}
	return groups
}

func peerGroups(o options) []group {
	counts := []int{1, 10, 100, 1000}
	if o.small {
		counts = []int{1, 10}
	}
	var groups []group
	for _, s := range []Setup{o.staged(), o.hptcp().with(func(s *Setup) { s.Lanes = 1 })} {
		g := group{workload: "peers", name: "READ 64 B over many peers, " + s.Transport, figure: figures.Operations}
		for _, n := range counts {
			if n <= distinctPeersMax || !s.distinct() {
				g.subjects = append(g.subjects, crowdRate(s, n))
			}
		}
		groups = append(groups, g)
	}
	return groups
}

// distinctPeersMax bounds the source engines of one group: each has threads of its own.
const distinctPeersMax = 100

func registrationGroups(o options) []group {
	ranges, rounds := 10000, 100
	if o.small {
		ranges, rounds = 100, 8
	}
	return []group{{workload: "registrations", name: fmt.Sprintf("%d ranges registered and unregistered, %d rounds", ranges, rounds), figure: figures.Value, whole: true, cold: true,
		subjects: []subject{registerSubject(o.staged(), ranges, rounds)}}}
}

func idleGroups(o options) []group {
	peers := 1000
	if o.small {
		peers = 20
	}
	var groups []group
	for _, s := range []Setup{o.staged(), o.hptcp().with(func(s *Setup) { s.Lanes = 1 })} {
		n := peers
		if s.distinct() {
			n = min(peers, distinctPeersMax)
		}
		groups = append(groups, group{workload: "idle", name: fmt.Sprintf("%d idle peers, %s", n, s.Transport), figure: figures.Value, whole: true, cold: true, subjects: []subject{
			idleSubject(s, n, "CPU of both processes", "% of a core", func(c idle) float64 { return 100 * c.cpuShare }),
			idleSubject(s, n, "heap of one peer", "KiB", func(c idle) float64 { return c.heapBytes / kib }),
			idleSubject(s, n, "resident memory of one peer", "KiB", func(c idle) float64 { return c.rssBytes / kib })}})
	}
	return groups
}

func toolGroups(o options) []group {
	sizes := []uint64{64 * kib, mib}
	if o.small {
		return nil
	}
	var groups []group
	for _, size := range sizes {
		g := group{workload: "tools", name: figures.Bytes(size) + " beside other programs", figure: figures.Rate}
		g.subjects = append(g.subjects, rawBulk(baselines.Pull, size, 1, false), rawBulk(baselines.Pull, size, 1, true))
		for _, s := range []Setup{o.direct(), o.hptcp()} {
			g.subjects = append(g.subjects, work{setup: s, operation: orbitte.Read, size: size, batch: batchFor(size)}.subject(),
				work{setup: s, operation: orbitte.Write, size: size, batch: batchFor(size)}.subject())
			g.subjects[len(g.subjects)-1].name += ", WRITE"
		}
		for _, t := range baselines.Tools() {
			if !t.Latency {
				g.subjects = append(g.subjects, toolSubject(t, size))
			}
		}
		groups = append(groups, g)
	}
	return groups
}
