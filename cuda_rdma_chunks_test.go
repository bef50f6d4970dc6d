package orbitte

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// chunked is a configuration with so many pinned chunks of a size in each role.
func chunked(bytes uint64, chunks int) Config {
	return Config{Limits: Limits{StagingChunkBytes: bytes, PinnedStagingBytes: 2 * uint64(chunks) * bytes}, RDMA: &RDMAConfig{}}
}

// Staged RDMA moves exactly its range whatever the sizes of chunks and pools are on each side, one chunk included, and
// leaves nothing: chunks are registered once, not for each transfer.
//
// proves C-4, R-6, R-7, R-9, R-16
func TestStagedRDMAMovesExactlyTheRangeThroughChunksOfEverySize(t *testing.T) {
	const size = 600 << 10
	shapes := []struct {
		bytes  uint64
		chunks int
	}{{1009, 1}, {4096, 2}, {65537, 1}, {100_003, 2}, {1 << 20, 3}, {30_011, 9}}
	for i, there := range shapes {
		here := shapes[(i+2)%len(shapes)]
		eachPlacement(t, func(t *testing.T, deviceThere, deviceHere bool) {
			p := newGPUPair(t, uint64(300+i), size, gpuSide{config: chunked(there.bytes, there.chunks), device: deviceThere}, gpuSide{config: chunked(here.bytes, here.chunks), device: deviceHere})
			var regions [2]int
			for j, n := range []int{1, 1009, 4097, 65536, 65537 + 4096, 200_007} {
				if there.bytes < 2000 && n > 40_000 && deviceThere {
					continue // thousands of parents
				}
				for _, op := range []Operation{Read, Write} {
					p.move(t, op, 7*j+1, n, 3*j)
				}
				if j == 0 {
					regions = [2]int{liveRegions(p.sourceNative), liveRegions(p.requesterNative)}
				}
			}
			p.atRest(t)
			if got := [2]int{liveRegions(p.sourceNative), liveRegions(p.requesterNative)}; got != regions {
				t.Errorf("memory regions were %v after the first transfers, and are %v", regions, got)
			}
			for name, e := range map[string]*Engine{"source": p.source, "requester": p.requester} {
				if g := gauge(t, e, "RDMA regions of pinned chunks, lane 0"); g.Used > g.Limit || (g.Used > 0) != (map[string]bool{"source": deviceThere, "requester": deviceHere}[name]) {
					t.Errorf("%s: %+v", name, g)
				}
			}
		})
	}
}

// Whatever native call fails while many chunks are under way, of the drivers or of the devices: the report tells what may have
// become of the bytes; what is not proven is retained, all else given back, and it goes on.
//
// proves C-3, C-4, G-9, R-17, U-1
func TestAFailureBetweenChunksOfStagedRDMATellsTheTruth(t *testing.T) {
	const size, offset, n = 300 << 10, 5, 200<<10 + 3
	var cases []func(p *gpuPair, side string, index int)
	for _, f := range []simcuda.Fault{
		{Kind: simcuda.FailCall, Call: simcuda.CallCopy}, {Kind: simcuda.FailCall, Call: simcuda.CallCopy, Effect: cuda.Maybe},
		{Kind: simcuda.FailCall, Call: simcuda.CallRecord}, {Kind: simcuda.FailCall, Call: simcuda.CallCallback},
		{Kind: simcuda.FailCall, Call: simcuda.CallQuery}, {Kind: simcuda.SlowCopy, By: time.Second}, {Kind: simcuda.LateCallback, By: 100 * time.Millisecond, Count: -1},
	} {
		cases = append(cases, func(p *gpuPair, side string, index int) {
			f.Index = index
			map[string]*simcuda.Driver{"source": p.sourceDriver, "requester": p.requesterDriver}[side].Plan(f)
		})
	}
	for _, f := range []simverbs.Fault{
		{Kind: simverbs.FailWork}, {Kind: simverbs.LoseCompletion}, {Kind: simverbs.FailCall, Call: simverbs.CallRegister, Errno: 12},
		{Kind: simverbs.FailCall, Call: simverbs.CallPostSend, Errno: 12}, {Kind: simverbs.FailCall, Call: simverbs.CallCreatePair, Errno: 12},
	} {
		cases = append(cases, func(p *gpuPair, side string, index int) {
			f.Index, f.Process = index, side
			p.fabric.Plan(f)
		})
	}
	failures := 0
	for i, plan := range cases {
		for _, side := range []string{"source", "requester"} {
			for _, op := range []Operation{Read, Write} {
				for _, index := range []int{0, 2, 5} {
					t.Run(fmt.Sprint(i, side, op, index), func(t *testing.T) {
						c := chunked(30_011, 3)
						c.RDMA.Progress, c.RequestTimeout = RDMAEventDriven, 3*time.Second // a lost completion is waited for until then
						p := newGPUPair(t, uint64(400+10*i+index), size, gpuSide{config: c, device: true}, gpuSide{config: c, device: true})
						plan(p, side, index)
						p.sim.Advance(1000)
						_, retained, err := p.attempt(t, op, offset, n)
						if err != nil {
							failures++
						}
						p.Advance(40 * time.Second)
						if retained || len(p.source.RetainedResources())+len(p.requester.RetainedResources()) > 0 {
							p.deliberate["source"], p.deliberate["requester"] = true, true
							return
						}
						p.atRest(t)
						for i := range 4 { // the plan may strike once more
							if _, _, err = p.attempt(t, []Operation{Read, Write}[i%2], offset, n); err != nil && i > 1 {
								t.Errorf("afterwards: %v", err)
							}
							p.Advance(time.Second) // late callbacks
						}
						p.atRest(t)
					})
				}
			}
		}
	}
	if failures < 40 {
		t.Errorf("only %d transfers failed: the plan meets none", failures)
	}
}

// wireLog is in which order the parts of one transfer came to the driver and to the network.
type wireLog struct {
	clock         int
	chunk         uint64
	gpu, host     uint64         // where the range begins, at the side with a GPU and at the other one
	local         bool           // true exactly when the requester is the one with host memory
	flying        map[uint64]int // part of each payload work request that is with the requester's devices
	copied        map[int]int    // when the copy of each part was asked for
	posted, ended map[int]int    // when its payload was first posted, and when the last of it had completed
}

func (l *wireLog) now() int {
	l.clock++
	return l.clock
}

// logDriver tells the log of copies.
type logDriver struct {
	*simcuda.Driver
	log *wireLog
}

func (d *logDriver) Submit(c cuda.ContextHandle, s cuda.StreamHandle, list []cuda.Copy, e cuda.EventHandle, g cuda.SignalHandle) (cuda.Submitted, error) {
	l := d.log
	for _, x := range list {
		for _, p := range []cuda.Pointer{x.From, x.To} {
			if at := uint64(p) - l.gpu; at < 1<<30 {
				l.copied[int(at/l.chunk)] = l.now()
			}
		}
	}
	return d.Driver.Submit(c, s, list, e, g)
}

// logDevice tells it of payload.
type logDevice struct {
	verbs.Calls
	log *wireLog
}

func (d *logDevice) PostSend(p verbs.PairHandle, list []verbs.SendWork) (int, error) {
	l := d.log
	for _, w := range list {
		if w.Operation != verbs.Read && w.Operation != verbs.Write {
			continue
		}
		at := w.Remote - l.host
		if l.local {
			at = w.Address - l.host
		}
		part := int(at / l.chunk)
		l.flying[w.ID] = part
		if l.posted[part] == 0 {
			l.posted[part] = l.now()
		}
	}
	return d.Calls.PostSend(p, list)
}

func (d *logDevice) Poll(sends, receives verbs.QueueHandle, out []verbs.Completion) (int, int, error) {
	sent, received, err := d.Calls.Poll(sends, receives, out)
	for _, c := range out[:sent] {
		if part, ok := d.log.flying[c.ID]; ok {
			d.log.ended[part] = d.log.now()
			delete(d.log.flying, c.ID)
		}
	}
	return sent, received, err
}

// While one chunk is with the network, another is with the driver: at either side and in either direction, as soon as the
// pool has two. With one they take turns.
//
// proves C-4
func TestCopiesOfStagedRDMAOverlapWithTheNetwork(t *testing.T) {
	const parts, chunk = 16, 64 << 10
	for i, device := range []string{"source", "requester"} {
		for _, op := range []Operation{Read, Write} {
			for _, chunks := range []int{1, 2, 8} {
				t.Run(fmt.Sprint(device, op, chunks), func(t *testing.T) {
					log := &wireLog{chunk: chunk, flying: map[uint64]int{}, copied: map[int]int{}, posted: map[int]int{}, ended: map[int]int{}}
					side := func(name string) gpuSide {
						g := gpuSide{config: chunked(chunk, chunks), device: device == name}
						g.config.RDMA.Whitelist = []string{"mlx5_0"} // names of work are those of one device
						if g.device {
							g.watched = func(d *simcuda.Driver) cuda.Calls { return &logDriver{d, log} }
						}
						if name == "requester" {
							g.seen = func(n *simverbs.Process) verbs.Calls { return &logDevice{n, log} }
						}
						return g
					}
					p := newGPUPair(t, uint64(500+i), parts*chunk, side("source"), side("requester"))
					gpu, host := p.remote, p.local
					if device == "requester" {
						gpu, host = host, gpu
					}
					log.gpu, log.host, log.local = gpu.Address(), host.Address(), device == "source"
					p.fabric.Plan(simverbs.Fault{Kind: simverbs.DelayPacket, By: time.Millisecond, Count: -1}) // slower than exchanges
					for _, d := range []*simcuda.Driver{p.sourceDriver, p.requesterDriver} {
						d.Plan(simcuda.Fault{Kind: simcuda.SlowCopy, By: time.Millisecond, Count: -1})
					}
					p.move(t, op, 0, parts*chunk, 1)
					out := (op == Read) == (device == "source") // from the GPU to the network
					both := 0
					for k := range parts - 1 {
						if out && log.copied[k+1] < log.ended[k] || !out && log.posted[k+1] < log.copied[k] {
							both++
						}
					}
					if len(log.copied) != parts || len(log.ended) != parts {
						t.Errorf("%d parts were copied, %d carried, want %d", len(log.copied), len(log.ended), parts)
					}
					if chunks == 1 && both > 0 || chunks > 1 && both < parts/2-1 {
						t.Errorf("with %d chunks, the driver had a part while the network had the one before, or after, it %d times of %d", chunks, both, parts-1)
					}
				})
			}
		}
	}
}

// Many requests over TCP and RDMA, both ways between two engines with GPUs that have one chunk for each role: all end, and
// none with anything but success.
//
// proves C-4
func TestRequestsOverTCPAndRDMAShareATinyPoolWithoutDeadlock(t *testing.T) {
	const size, each = 4 << 20, 24
	for _, chunks := range []int{1, 2} {
		for seed := range uint64(4) {
			t.Run(fmt.Sprint(chunks, seed), func(t *testing.T) {
				c := chunked(20_011, chunks)
				p := newGPUPair(t, 600+seed, size, gpuSide{config: c, device: true}, gpuSide{config: c, device: true})
				shared, err := p.requester.Register(p.local, 0, size-1, ReadWrite) // all of it is local-only
				must(t, err)
				t.Cleanup(func() { must(t, p.requester.Unregister(soon(t), shared)) })
				back := opened(t, p.source, p.requester)
				const n = 65_537
				var batches []*Batch
				for i := range each {
					op := []Operation{Read, Write}[i%2]
					request := p.request(op, 2*i*n, n)
					if i%4 < 2 {
						request = p.overRDMA(op, 2*i*n, n)
					}
					opposite := request
					opposite.Segment, opposite.Local, opposite.Remote = back, p.remote.Address()+uint64((2*i+1)%(2*each))*n, p.local.Address()+uint64((2*i+1)%(2*each))*n
					one, err := p.requester.Submit(soon(t), []Request{request})
					must(t, err)
					other, err := p.source.Submit(soon(t), []Request{opposite})
					must(t, err)
					batches = append(batches, one, other)
				}
				for i, b := range batches {
					if report, err := b.Wait(soon(t)); err != nil {
						t.Errorf("request %d: %+v, %v", i/2, report, err)
					}
					must(t, b.Free())
				}
				p.atRest(t)
			})
		}
	}
}

// oneChunkSide is a side with one chunk of 61 bytes for each of requester and source, and up to four slots; timeout 0: the default.
func oneChunkSide(random *rand.Rand, timeout time.Duration) gpuSide {
	return slottedSide(true, 1+random.IntN(4), func(c *Config) {
		c.Limits = Limits{StagingChunkBytes: 61, PinnedStagingBytes: 2 * 61, SourceHandlers: 4, SourceQueue: 16}
		c.SourceTimeout = timeout
	})
}

// Grants over one stream are answered in the order in which they were asked for, so they take the source's chunks in that
// order, too: whoever asked later would keep a chunk with an answer that waits for one which needs the chunk. Transfers in
// parts, with remote slots, and over TCP share one chunk on each side, and each of them moves its bytes at once.
//
// proves C-4, C-8, R-9
func TestOneChunkServesAllThatAskOverOneStream(t *testing.T) {
	const most = 600
	for seed := range uint64(80) {
		random := rand.New(rand.NewPCG(seed, 61))
		side := func() gpuSide { return oneChunkSide(random, 0) }
		p := newGPUPair(t, seed, 8*most, side(), side())
		put(t, p.sourceDriver, p.remote, 1)
		put(t, p.requesterDriver, p.local, 2)
		here, there := content(t, p.requesterDriver, p.local), content(t, p.sourceDriver, p.remote)
		began := p.Now()
		var asked []string
		var batches []*Batch
		for i := range 3 + random.IntN(6) {
			at, n := i*most, 1+random.IntN(most)
			r := p.directedOverRDMA([]Operation{Read, Write}[random.IntN(2)], at, n, []int{0, 0, 1, 2, 5}[random.IntN(5)])
			if random.IntN(4) == 0 {
				r.Transport = TransportTCP
			}
			if r.Operation == Read {
				copy(here[at:][:n], there[at:])
			} else {
				copy(there[at:][:n], here[at:])
			}
			b, err := p.requester.Submit(soon(t), []Request{r})
			must(t, err)
			asked, batches = append(asked, fmt.Sprintf("%v over %v of %d bytes, %d slots", r.Operation, r.Transport, n, r.RemoteSlots)), append(batches, b)
			if random.IntN(3) == 0 {
				p.Advance(time.Duration(random.IntN(200)) * time.Microsecond)
			}
		}
		for _, b := range batches {
			_, err := b.Wait(soon(t))
			must(t, b.Free())
			if took := time.Duration(p.Now() - began); err != nil || took > time.Second {
				t.Fatalf("SEED=%d: after %v: %v; %q", seed, took, err, asked)
			}
		}
		if !bytes.Equal(content(t, p.requesterDriver, p.local), here) || !bytes.Equal(content(t, p.sourceDriver, p.remote), there) {
			t.Fatalf("SEED=%d: other bytes than those of %q", seed, asked)
		}
		p.atRest(t)
	}
}

// A transfer that ends early keeps the source's only chunk from nobody for long, although its word that it gives its grants up
// comes over the stream on which others wait for that chunk.
//
// proves C-4, G-8, R-9
func TestATransferThatEndsEarlyKeepsNoChunkFromOthers(t *testing.T) {
	const most = 600
	for seed := range uint64(120) {
		random := rand.New(rand.NewPCG(seed, 62))
		side := func() gpuSide { return oneChunkSide(random, time.Minute) }
		p := newGPUPair(t, seed, 6*most, side(), side())
		began := p.Now()
		var asked []string
		var batches []*Batch
		for i := range 2 + random.IntN(5) {
			r := p.directedOverRDMA([]Operation{Read, Write}[random.IntN(2)], i*most, 1+random.IntN(most), []int{0, 0, 0, 1, 5}[random.IntN(5)])
			b, err := p.requester.Submit(soon(t), []Request{r})
			must(t, err)
			text := fmt.Sprintf("%v of %d bytes, %d slots", r.Operation, r.Length, r.RemoteSlots)
			if random.IntN(3) == 0 {
				after := time.Duration(random.IntN(3000)) * time.Microsecond
				p.Later(after, b.Cancel)
				text += ", cancelled after " + after.String()
			}
			asked, batches = append(asked, text), append(batches, b)
		}
		for _, b := range batches {
			_, err := b.Wait(soon(t))
			must(t, b.Free())
			if took := time.Duration(p.Now() - began); took > 3*time.Second {
				t.Fatalf("SEED=%d: after %v: %v; %q", seed, took, err, asked)
			}
		}
		p.Advance(time.Second)
		p.atRest(t)
	}
}

// The word of a requester that gives its grants up needs no handler: requests over TCP of others may have them all and wait for
// the chunk that the grants have.
//
// proves C-4, G-8, T-6
func TestTheWordThatGivesAChunkBackPassesThoseThatWaitForIt(t *testing.T) {
	const n = 61
	side := func() gpuSide {
		g := gpuSide{config: chunked(n, 1), device: true}
		g.config.Limits.SourceHandlers, g.config.Limits.SourceQueue, g.config.SourceTimeout = 1, 1, 20*time.Second
		return g
	}
	for _, op := range []Operation{Read, Write} {
		p := newGPUPair(t, 700, 8*n, side(), side())
		third, _ := p.engine("third", hostC, Config{})
		local := allocated(t, 8*n)
		registered(t, third, local, LocalOnly)
		segment := opened(t, third, p.source)
		p.fabric.Plan(simverbs.Fault{Kind: simverbs.DelayPacket, By: 20 * time.Millisecond, Count: -1})
		busy := func(name string) bool { return gauge(t, p.source, name).Used > 0 }
		given, err := p.requester.Submit(soon(t), []Request{p.overRDMA(op, 0, n)})
		must(t, err)
		p.until(time.Second, func() bool { return busy("RDMA grants") && !busy("source handlers") })
		began := p.Now()
		waits, err := third.Submit(soon(t), []Request{{Operation: Read, Segment: segment, Local: local.Address(), Remote: p.remote.Address() + n, Length: n}})
		must(t, err)
		p.until(time.Second, func() bool { return busy("source handlers") })
		given.Cancel()
		if _, err := waits.Wait(soon(t)); err != nil || time.Duration(p.Now()-began) > time.Second {
			t.Errorf("%v: it waited for %v: %v", op, time.Duration(p.Now()-began), err)
		}
		if _, err := given.Wait(soon(t)); err == nil {
			t.Errorf("%v: it was not cancelled", op)
		}
		must(t, given.Free())
		must(t, waits.Free())
		p.atRest(t)
	}
}
