package main

import (
	"context"
	"os"
	"slices"
	"time"

	"github.com/orbitte/orbitte/perf/baselines"
	"github.com/orbitte/orbitte/perf/figures"
)

// peers is gnet and grpc-go, built and started when first asked for.
type peers struct {
	path   string // a program that is built already; empty: it is built
	folder string // of the one that was built
	built  bool
	why    error // why there are none
	gnet   *baselines.Program
	stream *baselines.Stream // to gnet
	server *baselines.Program
	client *baselines.Program
}

// usablePeers refuses a program that was named but is none of perf/peers.
func usablePeers(path string) error {
	if path == "" || len(baselines.PeersVersions(path)) > 0 {
		return nil
	}
	return wrong("-peers %s is no program built from perf/peers; leave -peers out, and it is built (by hand: cd perf/peers && go build -o FILE .)", path)
}

// errUnneeded is why gnet and grpc-go have no version in a run that does not measure them.
var errUnneeded = baselines.Absent("not needed: no chosen group measures it")

// wanted is true exactly when a group measures gnet or grpc-go.
func wanted(groups []group) bool {
	return slices.ContainsFunc(groups, func(g group) bool {
		return slices.ContainsFunc(g.subjects, func(s subject) bool { return s.others })
	})
}

// build makes the program once; later calls have the same answer.
func (p *peers) build(ctx context.Context) error {
	if p.built || p.why != nil {
		return p.why
	}
	if p.path == "" {
		if p.folder, p.why = os.MkdirTemp("", "orbitbench-"); p.why != nil {
			return p.why
		}
		p.path, p.why = baselines.BuildPeers(ctx, p.folder)
	}
	p.built = p.why == nil
	return p.why
}

func (p *peers) close() {
	if p.stream != nil {
		p.stream.Close()
	}
	p.gnet.Close()
	p.client.Close()
	p.server.Close()
	if p.folder != "" {
		_ = os.RemoveAll(p.folder)
	}
}

func (p *peers) startGnet(ctx context.Context) (err error) {
	if p.stream != nil {
		return nil
	}
	if err := p.build(ctx); err != nil {
		return err
	}
	if p.gnet, err = baselines.StartProgram("gnet", p.path, "gnet"); err != nil {
		return err
	}
	p.stream, err = baselines.Connect(p.gnet.Hello())
	return err
}

func (p *peers) startGRPC(ctx context.Context) (err error) {
	if p.client != nil {
		return nil
	}
	if err := p.build(ctx); err != nil {
		return err
	}
	if p.server, err = baselines.StartProgram("grpc-go", p.path, "grpc"); err != nil {
		return err
	}
	p.client, err = baselines.StartProgram("grpc-go's client", p.path, "grpc-client", p.server.Hello())
	return err
}

// gnetAhead bounds what is asked of gnet before it was received.
func gnetAhead(size uint64) uint32 { return uint32(min(max(4<<20/size, 2), 64)) }

// gnetPieceMax bounds one answer of gnet, which would copy what the socket does not take of a larger one into a buffer of
// its own: a block of 64 MiB is asked for in pieces.
const gnetPieceMax = 1 << 20

func gnetBulk(what byte, size uint64) subject {
	return subject{
		name: "gnet", axes: bulkAxes(what, size, 1), first: firstCount(size), most: int(8 << 30 / size), others: true,
		note: "server with buffers of 1 MiB; client is the raw loop, which asks for each block ahead",
		measure: func(ctx context.Context, b *bench, n int) (s figures.Sample, err error) {
			if err := b.peers.startGnet(ctx); err != nil {
				return s, err
			}
			err = b.alone(&s, func() error {
				c := baselines.Command{What: what, Count: uint32(n), Size: size}
				var took time.Duration
				var err error
				if what == baselines.Push {
					took, err = b.peers.stream.Bulk(c, b.memory.Bytes())
				} else {
					piece := min(size, gnetPieceMax)
					took, err = b.peers.stream.PullAsked(c, piece, gnetAhead(piece), b.memory.Bytes())
				}
				s.Seconds, s.Operations, s.Bytes = took.Seconds(), uint64(n), uint64(n)*size
				return err
			}, b.peers.gnet.Pid())
			s.Usage.AllocationsCounted = false
			return s, err
		},
	}
}

func gnetLatency(size uint64) subject {
	return subject{
		name: "gnet", axes: bulkAxes(baselines.Pull, size, 1), first: 200, most: 200000, others: true, note: "server is gnet, client the raw loop, blocking",
		measure: func(ctx context.Context, b *bench, n int) (s figures.Sample, err error) {
			if err := b.peers.startGnet(ctx); err != nil {
				return s, err
			}
			s.Latency = figures.NewHistogram()
			err = b.alone(&s, func() error {
				start := time.Now()
				err := b.peers.stream.PingPong(baselines.Command{What: baselines.PingPong, Count: uint32(n), Size: size}, b.memory.Bytes(), s.Latency.Record)
				s.Seconds, s.Operations, s.Bytes = time.Since(start).Seconds(), uint64(n), uint64(n)*size
				return err
			}, b.peers.gnet.Pid())
			s.Usage.AllocationsCounted = false
			return s, err
		},
	}
}

// grpcCall is grpc-go: unary calls or one streaming call.
func grpcCall(what byte, size uint64, stream bool) subject {
	name := "grpc-go, unary"
	if stream {
		name = "grpc-go, streaming"
	}
	axes := bulkAxes(what, size, 1)
	if what == baselines.PingPong {
		axes.Operation = "READ"
	}
	return subject{
		name: name, axes: axes, first: min(firstCount(size), 500), most: min(int(4<<30/size), 20000), others: true,
		note: "bytes pass through its codec, no protobuf; windows of 64 MiB, buffers of 1 MiB",
		measure: func(ctx context.Context, b *bench, n int) (s figures.Sample, err error) {
			if err := b.peers.startGRPC(ctx); err != nil {
				return s, err
			}
			var answer baselines.GRPCAnswer
			err = b.alone(&s, func() error {
				return b.peers.client.Ask(baselines.GRPCAsk{What: what, Stream: stream, Count: uint32(n), Size: size}, &answer)
			}, b.peers.client.Pid(), b.peers.server.Pid())
			s.Usage.AllocationsCounted = false
			s.Seconds, s.Operations, s.Bytes = time.Duration(answer.Nanos).Seconds(), uint64(n), uint64(n)*size
			if len(answer.Times) > 0 {
				s.Latency = figures.NewHistogram()
				for _, t := range answer.Times {
					s.Latency.Record(time.Duration(t))
				}
			}
			return s, err
		},
	}
}

// toolSubject is a measuring program of others.
func toolSubject(t *baselines.Tool, size uint64) subject {
	return subject{
		name: t.Name, axes: figures.Axes{Size: size, Streams: 1}, first: 16, most: max(int(4<<30/size), 64), stretch: 4, note: t.Note,
		measure: func(ctx context.Context, b *bench, n int) (s figures.Sample, err error) {
			r, err := t.Run(ctx, n, size)
			if err != nil {
				return s, err
			}
			s.Usage = figures.Usage{User: r.User, System: r.System, PeakBytes: r.Peak}
			s.Operations, s.Bytes = uint64(n), uint64(n)*size
			if t.Latency {
				s.Value, s.Seconds = 2*r.Figure, 2*r.Figure/1e6*float64(n)
				s.Latency = figures.NewHistogram() // it tells one figure for all; the round trip is both ways
				s.Latency.Record(time.Duration(2 * r.Figure * 1e3))
				return s, nil
			}
			s.Seconds = float64(s.Bytes) / 1e9 / r.Figure
			return s, nil
		},
	}
}
