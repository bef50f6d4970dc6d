package main

import (
	"context"
	"slices"
	"time"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/perf/baselines"
	"github.com/orbitte/orbitte/perf/figures"
)

// Names of subjects that several targets share.
const (
	rawBlocks   = "raw epoll, blocking"
	rawSpins    = "raw loop, spinning"
	rawLoopName = "raw loop, one stream (best of blocking, spinning)"
)

var rawOne = []string{rawBlocks, rawSpins}

// examinations are the targets of this project with what they are measured by, in a minute all together.
func examinations(o options) []examination {
	return []examination{
		readMiB(o), writeMiB(o), besideGo(o), besideTools(o), largeHPTCP(o, baselines.Pull), largeHPTCP(o, baselines.Push),
		pages1024(o), pages120000(o), latency64(o), latency4k(o), smallBesideLarge(o), thousandPeers(o), registerTargets(o), idleTargets(o),
	}
}

// mibBatch is how many requests of 1 MiB a submission has: as many as the default of Limits.SubmittedBytes lets through.
const mibBatch = 64

func mibWork(s Setup, op orbitte.Operation) subject {
	return work{setup: s, operation: op, size: mib, batch: mibBatch}.subject()
}

// mibRaw are the raw loops over one stream, settled by as much as the engine is.
func mibRaw(what byte) []subject {
	list := []subject{rawBulk(what, mib, 1, false), rawBulk(what, mib, 1, true)}
	for i := range list {
		list[i].first = mibBatch
	}
	return list
}

func readMiB(o options) examination { return oneStream(o, orbitte.Read, baselines.Pull, "tcp-read-1m") }
func writeMiB(o options) examination {
	return oneStream(o, orbitte.Write, baselines.Push, "tcp-write-1m")
}

// oneStream holds TCP, with and without the safe double buffer, against the raw loops.
func oneStream(o options, op orbitte.Operation, what byte, name string) examination {
	return examination{
		group: group{workload: "check", name: operationName(op) + " 1 MiB", figure: figures.Rate, settle: true,
			subjects: append(mibRaw(what), mibWork(o.staged(), op), mibWork(o.direct(), op))},
		rounds: 21, window: 40 * time.Millisecond, limit: 5 * time.Second,
		aims: []aim{
			{name: name, bound: 0.80, ours: []string{o.staged().name()}, theirs: rawOne, against: rawLoopName, figure: rateOf},
			{name: name + "-direct", bound: 0.95, ours: []string{o.direct().name()}, theirs: rawOne, against: rawLoopName, figure: rateOf},
		},
	}
}

// named gives a subject another name.
func (s subject) named(suffix string) subject {
	s.name += suffix
	return s
}

const writing = ", WRITE"

// ownMiB are the engine's TCP planes in both directions, of which the best counts, and their names.
func ownMiB(o options) (list []subject, names []string) {
	for _, s := range []Setup{o.direct(), o.hptcp()} {
		list = append(list, mibWork(s, orbitte.Read), mibWork(s, orbitte.Write).named(writing))
	}
	for _, s := range list {
		names = append(names, s.name)
	}
	return list, names
}

// besideGo holds the engine's best TCP plane against what a Go program has otherwise, the best direction of each.
func besideGo(o options) examination {
	list, ours := ownMiB(o)
	e := examination{rounds: 9, window: 40 * time.Millisecond, limit: 9 * time.Second}
	e.group = group{workload: "check", name: "1 MiB beside Go programs", figure: figures.Rate, settle: true, subjects: append(list,
		goNetBulk(baselines.Pull, mib), goNetBulk(baselines.Push, mib).named(writing), gnetBulk(baselines.Pull, mib), gnetBulk(baselines.Push, mib).named(writing),
		grpcCall(baselines.Pull, mib, false), grpcCall(baselines.Pull, mib, true),
		grpcCall(baselines.Push, mib, false).named(writing), grpcCall(baselines.Push, mib, true).named(writing))}
	e.aims = []aim{
		{name: "vs-gnet-1m", bound: 1.1, ours: ours, theirs: []string{"gnet", "gnet" + writing}, figure: rateOf},
		{name: "vs-go-net-1m", bound: 1.1, ours: ours, theirs: []string{"Go net", "Go net" + writing}, figure: rateOf},
		{name: "vs-grpc-1m", bound: 5, ours: ours, theirs: []string{"grpc-go, unary", "grpc-go, streaming", "grpc-go, unary" + writing, "grpc-go, streaming" + writing}, figure: rateOf},
	}
	return e
}

// besideTools is the same against measuring programs of others, each of which takes a start of its own. Two of them move
// zeros (see baselines.Fill), so the engine may do that, too, when it is held against them. That their one buffer stays in a
// core's own cache has no match: requests over one range wait for each other.
func besideTools(o options) examination {
	list, filled := ownMiB(o)
	ours := slices.Clone(filled)
	for _, s := range []Setup{o.direct(), o.hptcp()} {
		for _, op := range []orbitte.Operation{orbitte.Read, orbitte.Write} {
			zeros := work{setup: s, operation: op, size: mib, batch: mibBatch, zeros: true}.subject().named(", zeros, " + operationName(op))
			list, ours = append(list, zeros), append(ours, zeros.name)
		}
	}
	e := examination{rounds: 5, window: 40 * time.Millisecond, limit: 9 * time.Second}
	e.group = group{workload: "check", name: "1 MiB beside other programs", figure: figures.Rate, settle: true, subjects: list}
	for _, t := range baselines.Tools() {
		for _, a := range []aim{
			{name: "vs-ucx-put-1m", bound: 1.2, ours: ours, theirs: []string{"ucx put"}},
			{name: "vs-libfabric-1m", bound: 1.2, ours: ours, theirs: []string{"libfabric ping-pong"}},
			{name: "vs-iperf3-1m", bound: 1.0, ours: filled, theirs: []string{"iperf3"}},
		} {
			if t.Name != a.theirs[0] {
				continue
			}
			s := toolSubject(t, mib)
			s.most = 1024
			e.group.subjects = append(e.group.subjects, s)
			a.figure = rateOf
			e.aims = append(e.aims, a)
		}
	}
	return e
}

func largeHPTCP(o options, what byte) examination {
	name, op, title := "hptcp-read-64m", orbitte.Read, "READ 64 MiB over HP-TCP"
	if what == baselines.Push {
		name, op, title = "hptcp-write-64m", orbitte.Write, "WRITE 64 MiB over HP-TCP"
	}
	e := examination{rounds: 9, window: 40 * time.Millisecond}
	e.group = group{workload: "check", name: title, figure: figures.Rate, settle: true}
	spins := rawBulk(what, 64*mib, 1, true)
	theirs := []string{spins.name}
	e.group.subjects = append(e.group.subjects, spins)
	for _, n := range []int{1, 2, 4} {
		raw := rawBulk(what, 64*mib/uint64(n), n, false) // the same 64 MiB, shared out
		theirs = append(theirs, raw.name)
		e.group.subjects = append(e.group.subjects, raw)
	}
	e.group.subjects = append(e.group.subjects, work{setup: o.hptcp(), operation: op, size: 64 * mib, batch: 1}.subject())
	e.aims = []aim{{name: name, bound: 0.95, ours: []string{o.hptcp().name()}, theirs: theirs, against: "the best of 1, 2 and 4 raw streams over the same 64 MiB", figure: rateOf}}
	return e
}

func pages1024(o options) examination {
	own := pages{setup: o.hptcp(), operation: orbitte.Read, size: pageBytes, count: 1024, listed: true}.subject()
	raw := rawBulk(baselines.Pull, 64*kib, 1, false)
	return examination{
		group:  group{workload: "check", name: "READ of 1,024 scattered pages", figure: figures.Rate, settle: true, subjects: []subject{raw, rawBulk(baselines.Pull, 64*kib, 1, true), own}},
		rounds: 21, window: 25 * time.Millisecond,
		aims: []aim{{name: "hptcp-page-4k", bound: 0.90, ours: []string{own.name}, theirs: rawOne, against: "raw 64 KiB stream", figure: rateOf}},
	}
}

func pages120000(o options) examination {
	const count = 120000
	// Event-driven, since a lane that spins while the other side copies takes processor time without doing anything.
	own := pages{setup: o.hptcp().with(func(s *Setup) { s.Progress = "event" }), operation: orbitte.Read, size: pageBytes, count: count, listed: true}.subject()
	raw := rawPages(pageBytes, count)
	return examination{
		group:  group{workload: "check", name: "READ of 120,000 scattered pages", figure: figures.Rate, whole: true, subjects: []subject{raw, own}},
		rounds: 9, limit: 6 * time.Second,
		aims: []aim{
			{name: "hptcp-page-120k", bound: 150, atMost: true, unit: "ns", ours: []string{own.name}, theirs: []string{raw.name}, figure: processorEach,
				against: "processor time of both processes, no lane spinning, less that of a raw readv and writev of the same pages",
				result:  func(o, t *figures.Sample) float64 { return processorEach.of(o) - processorEach.of(t) }},
			{name: "hptcp-page-120k-allocations", bound: 0.001, atMost: true, unit: "a page", ours: []string{own.name}, figure: processorEach, against: "none: those of the request itself, over its pages",
				result: func(o, _ *figures.Sample) float64 { return float64(o.Usage.Allocations) / float64(o.Operations) }},
		},
	}
}

func latencySubjects(o options, size uint64) []subject {
	manual := work{setup: o.manual(), operation: orbitte.Read, size: size, batch: 1}.subject()
	return []subject{spinning.subject(size, true), manual, work{setup: o.staged(), operation: orbitte.Read, size: size, batch: 1}.subject()}
}

func (o options) manual() Setup {
	return o.staged().with(func(s *Setup) { s.Progress = "manual" })
}

func latency64(o options) examination {
	return examination{
		group:  group{workload: "check", name: "READ 64 B, one at a time", figure: figures.P50, settle: true, subjects: latencySubjects(o, 64)[:2]},
		rounds: 15, window: 30 * time.Millisecond,
		aims: []aim{{name: "read-64b-p50", bound: 1.15, atMost: true, ours: []string{o.manual().name()}, theirs: []string{spinning.name}, figure: p50}},
	}
}

func latency4k(o options) examination {
	raw := []string{spinning.name}
	return examination{
		group:  group{workload: "check", name: "READ 4 KiB, one at a time", figure: figures.P50, settle: true, subjects: latencySubjects(o, 4*kib)},
		rounds: 15, window: 30 * time.Millisecond,
		aims: []aim{
			{name: "read-4k-p50-manual", bound: 1.15, atMost: true, ours: []string{o.manual().name()}, theirs: raw, figure: p50},
			{name: "read-4k-p50-adaptive", bound: 1.6, atMost: true, ours: []string{o.staged().name()}, theirs: raw, figure: p50},
			{name: "read-4k-p99-manual", bound: 1.5, atMost: true, ours: []string{o.manual().name()}, theirs: raw, figure: p99},
			{name: "read-4k-p99-adaptive", bound: 1.5, atMost: true, ours: []string{o.staged().name()}, theirs: raw, figure: p99},
		},
	}
}

// smallBesideLarge takes the plane that is made for it; the workload mixed shows the others, and what the machine itself does.
func smallBesideLarge(o options) examination {
	alone, loaded := beside{setup: o.hptcp()}.subject(), beside{setup: o.hptcp(), large: true}.subject()
	return examination{
		group:  group{workload: "check", name: "READ 4 KiB beside 64 MiB", figure: figures.P50, settle: true, subjects: []subject{alone, loaded, rawBeside(false), rawBeside(true)}},
		rounds: 9, window: 60 * time.Millisecond,
		aims: []aim{{name: "small-beside-large", bound: 3, atMost: true, ours: []string{loaded.name}, theirs: []string{alone.name}, figure: p99,
			reference: []string{rawBesideName, rawAloneName}}},
	}
}

func thousandPeers(o options) examination {
	few, many := crowdRate(o.staged(), 10), crowdRate(o.staged(), 1000)
	return examination{
		group:  group{workload: "check", name: "READ 64 B over many peers", figure: figures.Operations, settle: true, subjects: []subject{few, many}},
		rounds: 9, window: 80 * time.Millisecond,
		aims: []aim{{name: "peers-1000", bound: 0.8, ours: []string{many.name}, theirs: []string{few.name}, figure: perSecond}},
	}
}

func registerTargets(o options) examination {
	own := registerSubject(o.staged(), 10000, 100)
	return examination{
		group:  group{workload: "check", name: "10,000 ranges registered and unregistered, 100 rounds", figure: figures.Value, whole: true, cold: true, subjects: []subject{own}},
		rounds: 1,
		aims:   []aim{{name: "register-rounds", bound: 1.2, atMost: true, ours: []string{own.name}, against: "the third round", figure: valueOf, result: valueAlone}},
	}
}

func idleTargets(o options) examination {
	own := subject{
		name: o.staged().name(), axes: figures.Axes{Peers: 1000},
		measure: func(ctx context.Context, b *bench, _ int) (s figures.Sample, err error) {
			cost, err := b.idleCost(ctx, o.staged(), 10, 1000, time.Second)
			// A sample has one value: the targets below read the others from fields of the same meaning.
			s.Value, s.Usage.PeakBytes, s.Operations, s.Seconds = 100*cost.cpuShare, uint64(max(cost.heapBytes, cost.rssBytes, 0)), 1000, 1
			return s, err
		},
	}
	memory := measure{func(s *figures.Sample) float64 { return float64(s.Usage.PeakBytes) / kib }, "KiB"}
	return examination{
		group:  group{workload: "check", name: "1,000 idle peers", figure: figures.Value, whole: true, cold: true, subjects: []subject{own}},
		rounds: 1,
		aims: []aim{
			{name: "idle-1000-peers", bound: 1, atMost: true, unit: "%", ours: []string{own.name}, against: "one core", figure: valueOf, result: valueAlone},
			{name: "memory-per-idle-peer", bound: 16, atMost: true, unit: "KiB", ours: []string{own.name}, against: "heap and resident memory, the greater, of either process",
				figure: memory, result: func(o, _ *figures.Sample) float64 { return memory.of(o) }},
		},
	}
}
