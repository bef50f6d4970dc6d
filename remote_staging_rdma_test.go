package orbitte

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// slottedSide is a side with RDMA that offers, or asks for, slots of its peers.
func slottedSide(device bool, slots int, change func(*Config)) gpuSide {
	c := Config{Limits: small, RemoteStaging: &RemoteStagingConfig{Slots: slots}, RDMA: &RDMAConfig{}}
	if change != nil {
		change(&c)
	}
	return gpuSide{config: c, device: device}
}

// directedOverRDMA is a request that directs the peer's staging, whose payload goes over RDMA.
func (p *gpuPair) directedOverRDMA(op Operation, offset, n, slots int) Request {
	r := p.overRDMA(op, offset, n)
	r.RemoteSlots = slots
	return r
}

// direct runs one such request, and checks that it moved exactly its range and went the way that was foretold.
func (p *gpuPair) direct(t testing.TB, op Operation, offset, n, slots, seed int) Report {
	t.Helper()
	return p.exactly(t, p.sourceDriver, p.requesterDriver, p.directedOverRDMA(op, offset, n, slots), seed)
}

// Requests with remote slots over RDMA, serial and pipelined, move exactly the range between a peer's GPU and host or
// device memory here, whatever the policies for memory that is staged without slots; the payload is RDMA's, the copies are
// the source's, and nothing stays charged.
//
// proves C-8, R-5, R-9, R-11, U-1, U-2
func TestRemoteSlotsMoveExactlyTheRangeOverRDMA(t *testing.T) {
	const size = 20 << 10
	for i, x := range []struct {
		here              bool
		source, requester HostMemory
	}{{false, HostDirect, HostDirect}, {true, HostDirect, HostDirect}, {false, HostStaged, HostDirect}, {false, HostDirect, HostStaged}} {
		t.Run(fmt.Sprintf("%+v", x), func(t *testing.T) {
			p := newGPUPair(t, uint64(700+i), size,
				slottedSide(true, 16, func(c *Config) { c.RDMA.HostMemory = x.source }),
				slottedSide(x.here, 16, func(c *Config) { c.RDMA.HostMemory = x.requester }))
			asked, copies := uint64(0), uint64(0)
			for i, n := range []int{1, 1008, 1009, 1010, 2019, 7 * 1009, size - 5003} {
				for k, op := range []Operation{Read, Write, Read} {
					slots := []int{1, 2, 16}[(i+k)%3]
					report := p.direct(t, op, 5003-i, n, slots, i+k)
					mentions(t, report.Path, "rdma, staged", "remote staging, "+map[bool]string{true: "serial", false: "pipelined"}[slots == 1], "staged through pinned host memory", "mlx5_")
					asked++
					copies += uint64(n+1008) / 1009
				}
			}
			s := p.source.Stats()
			if x := s.RemoteStaging; x.Pinned != asked || x.Copied != copies || x.Copies != copies || x.Pins+x.Slots+x.Retained != 0 || x.Failed != 0 {
				t.Errorf("%+v, %d copies of %d requests wanted", x, copies, asked)
			}
			if s.RDMA.Granted < copies || s.RDMA.Granted != s.RDMA.Received || s.RDMA.Revoked != 0 || s.RDMA.Staged != 0 {
				t.Errorf("%+v", s.RDMA)
			}
			if g := gauge(t, p.source, slotsBudget); g.Used != 0 || g.Peak != 16 {
				t.Errorf("%+v", g)
			}
			p.atRest(t)
		})
	}
}

// proves C-8, G-4
func TestRemoteSlotsOverRDMAAreRefusedWhereSomethingIsMissing(t *testing.T) {
	bare := func(c *Config) { c.RemoteStaging = nil }
	for name, x := range map[string]struct {
		there, here func(*Config)
		device      bool
		change      func(*Request)
		class       error
		word        string
	}{
		"at the requester": {nil, bare, true, func(*Request) {}, ErrUnavailable, "Config.RemoteStaging is not set"},
		"at the source":    {bare, nil, true, func(*Request) {}, ErrUnavailable, "offers no remote staging"},
		"too many":         {nil, nil, true, func(r *Request) { r.RemoteSlots = 17 }, ErrInvalid, "0 to 16"},
		"host memory":      {nil, nil, false, func(*Request) {}, ErrUnavailable, "host memory"},
		"HP-TCP":           {nil, nil, true, func(r *Request) { r.Transport = TransportHPTCP }, ErrUnavailable, "TransportRDMA"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newGPUPair(t, 720, 4096, slottedSide(x.device, 4, x.there), slottedSide(false, 4, x.here))
			r := p.directedOverRDMA(Read, 0, 100, 2)
			x.change(&r)
			before := p.source.Stats().Totals
			_, err := p.requester.SubmitAndWait(soon(t), []Request{r})
			mentions(t, wants(t, err, x.class).Error(), x.word)
			_, err = p.segment.PathOf(r)
			wants(t, err, x.class)
			if p.source.Stats().Totals != before {
				t.Error("something was posted")
			}
			report, err := p.requester.SubmitAndWait(soon(t), []Request{p.overRDMA(Read, 0, 100)}) // without slots it goes the usual way
			must(t, err)
			if bytes.Contains([]byte(report.Path), []byte("remote staging")) {
				t.Errorf("slots that nobody asked for: %q", report.Path)
			}
		})
	}
	s := newCUDAPair(t, 1, slotted(4), slotted(4), 4096, true, false)
	r := s.directed(Read, 0, 100, 2)
	r.Transport = TransportRDMA
	_, err := s.requester.SubmitAndWait(soon(t), []Request{r})
	mentions(t, wants(t, err, ErrUnavailable).Error(), "no RDMA")
}

// A batch may mix requests with and without remote slots over both transports; many submissions at once share what slots
// there are, whichever transport they use.
//
// proves C-8, G-3, B-1
func TestManyRequestsOverBothTransportsShareFewSlots(t *testing.T) {
	const size, part = 64 << 10, 4 << 10
	p := newGPUPair(t, 730, size, slottedSide(true, 2, nil), slottedSide(false, 2, nil))
	shareFewSlots(t, p.pair, p.sourceDriver, p.requesterDriver, part, func(i, k, offset int) Request {
		r := p.directedOverRDMA(Read, offset, part/4, (i+k)%5)
		if i%3 == 0 {
			r.Transport = TransportTCP
		}
		return r
	})
	p.atRest(t)
}

// A copy that fails at the source, a caller that gives up, and a source that closes end a request over RDMA with the truth
// about both ranges; slots and grants are given back, and the next request is whole where there can be one.
//
// proves C-8, G-6, G-8, T-10
func TestRequestsThroughRemoteSlotsOverRDMAEndEarly(t *testing.T) {
	for i, op := range []Operation{Read, Write} {
		for name, strike := range map[string]func(p *gpuPair, cancel func()){
			"copy":   func(p *gpuPair, _ func()) {},
			"cancel": func(_ *gpuPair, cancel func()) { cancel() },
			"close":  func(p *gpuPair, _ func()) { must(t, p.source.CloseSource(p.within(10*time.Second))) },
		} {
			t.Run(fmt.Sprint(op, name), func(t *testing.T) {
				p := newGPUPair(t, uint64(740+i), 9000, slottedSide(true, 4, nil), slottedSide(false, 4, nil))
				if name == "copy" {
					p.sourceDriver.Plan(simcuda.Fault{Kind: simcuda.FailCall, Call: simcuda.CallCopy, Index: 1, Result: cuda.InvalidValue})
				} else {
					p.sourceDriver.Plan(simcuda.Fault{Kind: simcuda.SlowCopy, By: 50 * time.Millisecond, Count: 4})
				}
				b, err := p.requester.Submit(p.within(time.Minute), []Request{p.directedOverRDMA(op, 0, 9000, 4)})
				must(t, err)
				p.until(time.Second, func() bool { return name == "copy" || p.source.Stats().CUDA.CopiesInFlight > 0 })
				strike(p, b.Cancel)
				report, err := b.Wait(p.within(time.Minute))
				class := map[string]error{"copy": ErrPeer, "cancel": ErrCancelled, "close": ErrClosed}[name]
				wants(t, err, class)
				if !report.LocallyDrained || max(report.Local, report.Remote) == EffectComplete {
					t.Errorf("%+v", report)
				}
				must(t, b.Free())
				p.until(10*time.Second, func() bool { return gauge(t, p.source, slotsBudget).Used == 0 })
				if name != "close" {
					p.direct(t, op, 0, 9000, 4, 5)
				}
				p.atRest(t)
			})
		}
	}
}

// Slots are registered with the devices once, before the first memory on a GPU, and not charged again; when a device refuses
// one, registering fails, everything is as it was, and the next time succeeds. They end with the engine.
//
// proves C-8, R-5, M-4, U-2
func TestSlotsAreRegisteredOnceAndEndWithTheEngine(t *testing.T) {
	const devices, slots = 2, 4
	s := newRDMASim(t, 750, simverbs.Hardware)
	p := &gpuPair{rdmaPair: &rdmaPair{rdmaSim: s, pair: &pair{}}}
	p.cuda = newCUDASimOn(s.sim)
	p.sourceNative = s.native("source", hostA)
	p.sourceDriver = p.cuda.driver("source", s.processes["source"], hostA, simcuda.Options{})
	config := slottedSide(true, slots, nil).config
	config.CUDA = p.sourceDriver
	p.source = s.rdmaEngine(p.sourceNative, hostA, config)
	before := liveRegions(p.sourceNative)
	memory := placed(t, p.sourceDriver, 4096, true)
	s.fabric.Plan(simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallRegister, Index: 5})
	_, err := p.source.Register(memory, 0, 4096, ReadWrite)
	mentions(t, wants(t, err, ErrSystem).Error(), "slot 3 of 4", "Config.RemoteStaging")
	if n := liveRegions(p.sourceNative); n != before {
		t.Errorf("%d memory regions after a refusal, %d before", n, before)
	}
	for range 2 {
		registered(t, p.source, memory, ReadWrite)
		if n := liveRegions(p.sourceNative); n != before+devices*slots {
			t.Errorf("%d memory regions, %d before", n, before)
		}
	}
	if g := gauge(t, p.source, "RDMA memory regions"); g.Used != 0 {
		t.Errorf("%+v", g)
	}
	closeEngine(t, p.source)
	if left := p.sourceNative.Live(); !left.Empty() {
		t.Errorf("left: %+v", left)
	}
}

// Slots that a device does not let go of stay mapped, charged and listed.
//
// proves C-8, R-5, G-9
func TestSlotsThatADeviceKeepsStayMapped(t *testing.T) {
	const slots = 3
	s := newRDMASim(t, 760, simverbs.Hardware)
	keepsOnPurpose(t, slots)
	c := newCUDASimOn(s.sim)
	n := s.native("source", hostA, simverbs.DeviceSpec{Name: "mlx5_0"})
	driver := c.driver("source", s.processes["source"], hostA, simcuda.Options{})
	s.deliberate["source"], c.deliberate[driver] = true, true
	config := slottedSide(true, slots, nil).config
	config.CUDA = driver
	e, err := Open(s.rdmaConfig(n, hostA, config))
	must(t, err)
	s.drive(e)
	m, err := AllocateDevice(driver, 0, 4096)
	must(t, err)
	r, err := e.Register(m, 0, 4096, ReadWrite)
	must(t, err)
	must(t, e.Unregister(soon(t), r))
	must(t, m.Close())
	s.fabric.Plan(simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallDeregister, Count: -1})
	wants(t, e.Close(soon(t)), ErrUnquiesced)
	kept := 0
	for _, r := range e.RetainedResources() {
		if r.Kind == "RDMA registration" {
			kept++
		}
	}
	if live := driver.Live(); kept != slots || live.Pinned != slots || gauge(t, e, "pinned staging").Used != slots*int64(small.StagingChunkBytes) {
		t.Errorf("%d registrations are listed, %d pinned allocations are left, want those of %d slots", kept, live.Pinned, slots)
	}
}

// A request that asks for slots goes through them although the peer's devices reach its GPU themselves.
//
// proves C-8, G-4
func TestRemoteSlotsAreUsedBesideGPUDirect(t *testing.T) {
	there := slottedSide(true, 4, func(c *Config) { c.RDMA = direct(t).RDMA })
	there.driver = unordered()
	p := newGPUPair(t, 770, 64<<10, there, slottedSide(false, 4, nil))
	for i, op := range []Operation{Read, Write} {
		report := p.direct(t, op, 3, 8001, 4, i)
		mentions(t, report.Path, "rdma, staged there", "remote staging, pipelined", "staged through pinned host memory there")
		if n := p.source.Stats().RemoteStaging.Pinned; n != uint64(i+1) {
			t.Errorf("%d requests got slots", n)
		}
		mentions(t, p.move(t, op, 3, 8001, i).Path, "GPUDirect there")
	}
	p.atRest(t)
}

// Callers at once direct a peer's staging over RDMA on real lanes, with fewer slots than they ask for, before and after they
// all give up at some moment. Every byte is checked, and all is given back.
//
// proves C-8, G-8, U-2
func TestManyCallersDirectAPeersStagingOverRDMAOnRealLanes(t *testing.T) {
	eachKernel(t, func(t *testing.T, c Config) {
		const callers, slot = 6, 40 << 10
		f := realFabric(t)
		here, there := realTwin(t, simcuda.Options{}), realTwin(t, simcuda.Options{})
		c.Lanes, c.Limits = 2, Limits{StagingChunkBytes: 4093, PinnedStagingBytes: 2 * 4 * 4093 * 2}
		c.RemoteStaging = &RemoteStagingConfig{Slots: 6, PeerSlots: 3}
		engine := func(name string, driver *simcuda.Driver, progress RDMAProgress) *Engine {
			own := c
			own.CUDA, own.Verbs, own.RDMA = driver, f.Host(name).Process(name), &RDMAConfig{Progress: progress, Width: 2}
			return newEngine(t, own)
		}
		p := &pair{source: engine("source", there, RDMAEventDriven), requester: engine("requester", here, RDMAPolling)}
		p.remote, p.local = onGPU(t, there, 0, callers*slot), allocated(t, callers*slot)
		p.export, p.own = registered(t, p.source, p.remote, ReadWrite), registered(t, p.requester, p.local, ReadWrite)
		ctx := within(t, time.Minute)
		p.segment = opened(t, p.requester, p.source)
		for round := range 3 {
			var group sync.WaitGroup
			for i := range callers {
				group.Go(func() {
					if round == 1 {
						hurry(ctx, p, i*slot, slot)
					} else if err := directorBy(ctx, p, TransportRDMA, i*slot, slot, i); err != nil {
						t.Errorf("caller %d: %v", i, err)
					}
				})
			}
			group.Wait()
		}
		s := p.source.Stats().RemoteStaging
		if s.Pins+s.Slots+s.Retained != 0 || s.Copied+s.Failed != s.Copies || s.Pinned < 2*callers*4*2 {
			t.Errorf("%+v", s)
		}
	})
}

// hurry gives requests up sooner or later. What others have on the stream is lost with it.
func hurry(ctx context.Context, p *pair, at, slot int) {
	r := Request{
		Operation: Read, Transport: TransportRDMA, Segment: p.segment, Local: p.local.Address() + uint64(at), Remote: p.remote.Address() + uint64(at),
		Length: uint64(slot), RemoteSlots: 3,
	}
	for n := range 8 {
		soon, cancel := context.WithTimeout(ctx, time.Duration(n)*300*time.Microsecond)
		_, _ = p.requester.SubmitAndWait(soon, []Request{r})
		cancel()
	}
}
