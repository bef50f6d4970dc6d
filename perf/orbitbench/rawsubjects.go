package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/orbitte/orbitte/perf/baselines"
	"github.com/orbitte/orbitte/perf/figures"
)

// bulkAxes are those of a baseline.
func bulkAxes(what byte, size uint64, streams int) figures.Axes {
	operation := "READ"
	if what == baselines.Push {
		operation = "WRITE"
	}
	return figures.Axes{Operation: operation, Size: size, Streams: streams}
}

// bulkSubject is a baseline that moves n blocks by do, metered with the source process.
func bulkSubject(name string, what byte, size uint64, streams int, do func(b *bench, c baselines.Command) (time.Duration, uint64, error)) subject {
	return subject{
		name: name, baseline: true, axes: bulkAxes(what, size, streams), first: firstCount(size), step: streams, most: int(8 << 30 / size),
		measure: func(_ context.Context, b *bench, n int) (s figures.Sample, err error) {
			if err := b.fill(streams * int(baselines.MemoryBytes(size))); err != nil {
				return s, err
			}
			err = b.metered(nil, &s, func() error {
				took, blocks, err := do(b, baselines.Command{What: what, Count: uint32(n), Size: size})
				s.Seconds, s.Operations, s.Bytes = took.Seconds(), blocks, blocks*size
				return err
			})
			return s, err
		},
	}
}

// rawBulk is the raw loop over one or several streams.
func rawBulk(what byte, size uint64, streams int, spin bool) subject {
	name := "raw epoll, blocking"
	if spin {
		name = "raw loop, spinning"
	}
	if streams > 1 {
		name = fmt.Sprintf("%s, %d streams", name, streams)
	}
	return bulkSubject(name, what, size, streams, func(b *bench, c baselines.Command) (time.Duration, uint64, error) {
		all, err := b.raw(streams)
		if err != nil {
			return 0, 0, err
		}
		c.Spin = spin
		if streams == 1 {
			took, err := all[0].Bulk(c, b.memory.Bytes())
			return took, uint64(c.Count), b.rawFailed(1, err)
		}
		took, err := all.Bulk(c, b.memory.Bytes())
		return took, all.Blocks(c.Count), b.rawFailed(streams, err)
	})
}

// rawFailed drops streams that an error has left in the middle of a command.
func (b *bench) rawFailed(streams int, err error) error {
	if err != nil {
		b.dropRaw(streams)
	}
	return err
}

func goNetBulk(what byte, size uint64) subject {
	s := bulkSubject("Go net", what, size, 1, func(b *bench, c baselines.Command) (time.Duration, uint64, error) {
		conn, err := b.goNet()
		if err != nil {
			return 0, 0, err
		}
		took, err := conn.Bulk(c, b.memory.Bytes())
		return took, uint64(c.Count), err
	})
	s.baseline = false
	return s
}

// rawPages is what a copy of scattered pages over one stream costs.
func rawPages(size uint64, count int) subject {
	s := bulkSubject("raw readv and writev of scattered pages", baselines.Pull, size, 1, func(b *bench, c baselines.Command) (time.Duration, uint64, error) {
		all, err := b.raw(1)
		if err != nil {
			return 0, 0, err
		}
		if err := b.fill(count * int(size)); err != nil {
			return 0, 0, err
		}
		total := time.Duration(0)
		for range int(c.Count) / count {
			took, err := all[0].Bulk(baselines.Command{What: baselines.Pull, Scattered: true, Count: uint32(count), Size: size}, b.memory.Bytes())
			if err != nil {
				return 0, 0, b.rawFailed(1, err)
			}
			total += took
		}
		return total, uint64(int(c.Count) / count * count), nil
	})
	s.first, s.step = count, count
	return s
}

// memoryCopy is one core's copy: what no transfer through a kernel can reach.
func memoryCopy(size uint64) subject {
	return subject{
		name: "memcpy, one core", axes: figures.Axes{Size: size}, first: firstCount(size), most: int(16 << 30 / size),
		measure: func(_ context.Context, b *bench, n int) (s figures.Sample, err error) {
			half := b.memory.Bytes()[:filledBytes]
			to, from := half, half
			if size < filledBytes {
				to, from = half[:filledBytes/2], half[filledBytes/2:]
			} else if err := b.fill(2 * filledBytes); err == nil {
				from = b.memory.Bytes()[filledBytes:]
			} else {
				return s, err
			}
			err = b.alone(&s, func() error {
				s.Seconds, s.Operations, s.Bytes = baselines.Copy(to, from, n, size).Seconds(), uint64(n), uint64(n)*size
				return nil
			})
			return s, err
		},
	}
}

// pingPong is how a baseline's round trips are made.
type pingPong struct {
	name   string
	spin   bool
	behind bool          // through a thread of its own, as the engine's lanes are
	look   time.Duration // how long that thread looks before it blocks
	plain  bool          // by net.Conn
}

var (
	spinning = pingPong{name: "raw ping-pong, spinning", spin: true}
	blocking = pingPong{name: "raw ping-pong, blocking"}
	threaded = pingPong{name: "raw ping-pong behind a thread, blocking", behind: true}
	looking  = pingPong{name: "raw ping-pong behind a thread, looking 30 µs", behind: true, look: 30 * time.Microsecond}
	goNet    = pingPong{name: "Go net", plain: true}
)

func (p pingPong) run(b *bench, c baselines.Command, told func(time.Duration)) error {
	if p.plain {
		conn, err := b.goNet()
		if err != nil {
			return err
		}
		return conn.PingPong(c, b.memory.Bytes(), told)
	}
	all, err := b.raw(1)
	if err != nil {
		return err
	}
	c.Spin = p.spin
	if p.behind {
		return b.rawFailed(1, all[0].PingPongByLane(c, p.look, b.memory.Bytes(), told))
	}
	return b.rawFailed(1, all[0].PingPong(c, b.memory.Bytes(), told))
}

// subject makes it one of a group; the best of the baselines counts.
func (p pingPong) subject(size uint64, baseline bool) subject {
	return subject{
		name: p.name, baseline: baseline, axes: figures.Axes{Operation: "READ", Size: size, Batch: 1, Streams: 1}, first: 200, most: 200000,
		measure: func(_ context.Context, b *bench, n int) (s figures.Sample, err error) {
			s.Latency = figures.NewHistogram()
			err = b.metered(nil, &s, func() error {
				start := time.Now()
				err := p.run(b, baselines.Command{What: baselines.PingPong, Count: uint32(n), Size: size}, s.Latency.Record)
				s.Seconds, s.Operations, s.Bytes = time.Since(start).Seconds(), uint64(n), uint64(n)*size
				return err
			})
			return s, err
		},
	}
}

// isAbsent says whether an error means that something is not there.
func isAbsent(err error) bool { return errors.Is(err, baselines.ErrAbsent) }
