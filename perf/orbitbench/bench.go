package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/orbitte/orbitte"
)

// serveMode closes the engine before and opens the one that is asked for; an empty mode opens none.
func serveMode(before *orbitte.Engine, mode, kernel string, memory *orbitte.Memory) (*orbitte.Engine, error) {
	if before != nil {
		if err := before.Close(context.Background()); err != nil {
			return nil, err
		}
	}
	if mode == "" {
		fmt.Println("{}")
		return nil, nil
	}
	config := modes[mode]
	config.Kernel = kernelOf(kernel)
	engine, err := orbitte.Open(config)
	if err != nil {
		return nil, err
	}
	if _, err := engine.Register(memory, 0, rangeBytes, orbitte.ReadWrite); err != nil {
		return nil, err
	}
	return engine, json.NewEncoder(os.Stdout).Encode(sourceHello{engine.Endpoint(), engine.Epoch().String(), memory.Address()})
}

// bench is the parent's side of one run.
type bench struct {
	child      *exec.Cmd
	in         io.WriteCloser
	out        *bufio.Scanner
	raw        *rawStream
	memory     *orbitte.Memory
	kernel     string
	kernelName string
	mode       string
	engine     *orbitte.Engine
	segment    *orbitte.Segment
	remote     uint64
}

func newBench(kernel string) (*bench, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	b := &bench{kernel: kernel, child: exec.Command(self, "-serve", "-kernel", kernel)}
	b.child.Stderr = os.Stderr
	if b.in, err = b.child.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := b.child.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := b.child.Start(); err != nil {
		return nil, err
	}
	b.out = bufio.NewScanner(out)
	if !b.out.Scan() {
		return nil, fmt.Errorf("the source process ended early")
	}
	if b.raw, err = rawConnect(b.out.Text()); err != nil {
		return nil, err
	}
	if b.memory, err = orbitte.Allocate(rangeBytes); err != nil {
		return nil, err
	}
	return b, b.memory.Prefault()
}

func (b *bench) close() {
	_ = b.use("", orbitte.Config{})
	b.in.Close()
	_ = b.child.Wait()
	b.raw.close()
	b.memory.Close()
}

// use opens the pair of engines that a cell needs, unless it is open already.
func (b *bench) use(mode string, config orbitte.Config) error {
	if mode != "" && mode == b.mode {
		return nil
	}
	if b.engine != nil {
		if err := b.engine.Close(context.Background()); err != nil {
			return err
		}
		b.engine = nil
	}
	b.mode = mode
	source, _, _ := strings.Cut(mode, "/")
	if _, err := fmt.Fprintln(b.in, source); err != nil {
		return err
	}
	if !b.out.Scan() {
		return fmt.Errorf("the source process ended")
	}
	if mode == "" {
		return nil
	}
	var hello sourceHello
	if err := json.Unmarshal(b.out.Bytes(), &hello); err != nil {
		return err
	}
	epoch, err := orbitte.ParseEpoch(hello.Epoch)
	if err != nil {
		return err
	}
	config.Kernel = kernelOf(b.kernel)
	config.Limits.PayloadBytes = 64 << 20
	if b.engine, err = orbitte.Open(config); err != nil {
		return err
	}
	b.kernelName = b.engine.Stats().Kernel
	if _, err := b.engine.Register(b.memory, 0, rangeBytes, orbitte.LocalOnly); err != nil {
		return err
	}
	b.segment, err = b.engine.OpenSegment(context.Background(), hello.Endpoint, epoch)
	b.remote = hello.Address
	return err
}

// requests makes a batch of equal requests over consecutive ranges.
func (b *bench) requests(op orbitte.Operation, size uint64, count int) []orbitte.Request {
	list := make([]orbitte.Request, count)
	for i := range list {
		at := offset(uint64(i), size)
		list[i] = orbitte.Request{Operation: op, Segment: b.segment, Local: b.memory.Address() + at, Remote: b.remote + at, Length: size}
	}
	return list
}

// bulk measures GB/s: a batch of requests against as many blocks of a raw stream.
func bulk(mode string, config orbitte.Config, op orbitte.Operation, size uint64) func(*bench) (float64, float64, error) {
	const total = 512 << 20
	return func(b *bench) (float64, float64, error) {
		if err := b.use(mode, config); err != nil {
			return 0, 0, err
		}
		command := rawCommand{what: rawPull, count: uint32(total / size), size: size}
		if op == orbitte.Write {
			command.what = rawPush
		}
		rawTime, err := b.raw.bulk(command, b.memory.Bytes())
		if err != nil {
			return 0, 0, err
		}
		batch := b.requests(op, size, int(min(32<<20/size, 512)))
		start := time.Now()
		var moved uint64
		for moved < total {
			report, err := b.engine.SubmitAndWait(context.Background(), batch)
			if err != nil {
				return 0, 0, err
			}
			moved += report.Bytes
		}
		return float64(moved) / time.Since(start).Seconds() / 1e9, total / rawTime.Seconds() / 1e9, nil
	}
}

// baseline is the raw loop that a latency is held against.
type baseline struct {
	spin   byte          // 1: both ends spin; 0: both block
	behind bool          // through a thread of its own, as the engine's lanes are
	look   time.Duration // how long that thread looks before it blocks
}

func (r baseline) measure(s *rawStream, size uint64, block []byte, times []time.Duration) error {
	command := rawCommand{what: rawPingPong, spin: r.spin, count: uint32(len(times)), size: size}
	if r.behind {
		return s.pingPongByLane(command, r.look, block, times)
	}
	return s.pingPong(command, block, times)
}

// latency measures the median round trip in µs: one READ at a time against a raw ping-pong.
func latency(mode string, config orbitte.Config, size uint64, against baseline) func(*bench) (float64, float64, error) {
	const count = 4000
	return func(b *bench) (float64, float64, error) {
		if err := b.use(mode, config); err != nil {
			return 0, 0, err
		}
		raw := make([]time.Duration, count)
		if err := against.measure(b.raw, size, b.memory.Bytes(), raw); err != nil {
			return 0, 0, err
		}
		times, request := make([]time.Duration, count), b.requests(orbitte.Read, size, 1)
		for i := range times {
			start := time.Now()
			if _, err := b.engine.SubmitAndWait(context.Background(), request); err != nil {
				return 0, 0, err
			}
			times[i] = time.Since(start)
		}
		return float64(median(times)) / 1e3, float64(median(raw)) / 1e3, nil
	}
}

// allCells are the targets of this harness. Latency is held against the raw loop in the same progress mode:
// a manual engine's caller drives the lane itself, so its baseline spins on the caller's thread; the others
// have a thread of their own, and so has their baseline. The plain loop is shown beside it, without a target.
func allCells() []*cell {
	staged := orbitte.Config{Lanes: 1}
	direct := orbitte.Config{Lanes: 1, TCPHostMemory: orbitte.Direct}
	event := orbitte.Config{Lanes: 1, Progress: orbitte.EventDriven}
	manual := orbitte.Config{Lanes: 1, Progress: orbitte.Manual}
	const mib = 1 << 20
	stream := "raw epoll loop, one stream"
	read := func(name, against string, target float64, mode string, config orbitte.Config, b baseline) *cell {
		return &cell{Name: "read-4k-p50-" + name, Against: against, Unit: "µs", Target: target, AtMost: true, measured: latency(mode, config, 4096, b)}
	}
	return []*cell{
		{Name: "tcp-read-1m", Against: stream, Unit: "GB/s", Target: 0.6, measured: bulk("staged", staged, orbitte.Read, mib)},
		{Name: "tcp-write-1m", Against: stream, Unit: "GB/s", Target: 0.6, measured: bulk("staged", staged, orbitte.Write, mib)},
		{Name: "tcp-read-1m-direct", Against: stream, Unit: "GB/s", Target: 0.85, measured: bulk("direct", direct, orbitte.Read, mib)},
		{Name: "tcp-write-1m-direct", Against: stream, Unit: "GB/s", Target: 0.85, measured: bulk("direct", direct, orbitte.Write, mib)},
		{Name: "tcp-read-16k", Against: stream, Unit: "GB/s", measured: bulk("staged", staged, orbitte.Read, 16<<10)},
		{Name: "tcp-write-16k", Against: stream, Unit: "GB/s", measured: bulk("staged", staged, orbitte.Write, 16<<10)},
		read("manual", "raw ping-pong, spinning", 1.5, "busy/manual", manual, baseline{spin: 1}),
		read("event", "raw ping-pong through a thread, blocking", 1.5, "event", event, baseline{behind: true}),
		read("adaptive", "raw ping-pong through a thread, looking 30 µs, then blocking", 1.5, "staged/adaptive", staged, baseline{behind: true, look: 30 * time.Microsecond}),
		read("event-plain", "raw ping-pong, blocking, no thread between", 0, "event", event, baseline{}),
		read("adaptive-plain", "raw ping-pong, spinning, no thread between", 0, "staged/adaptive", staged, baseline{spin: 1}),
	}
}
