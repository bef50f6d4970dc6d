package orbitte

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// unordered are GPUs whose memory shows what network devices wrote only after a flush.
func unordered() simcuda.Options {
	gpu := cuda.DeviceInfo{
		Name: "NVIDIA A100", Memory: 80 << 30, Major: 8, Unified: true, GPUDirect: true, GPUDirectVM: true, DMABuf: true, FlushHost: true, VirtualMemory: true, CopyEngines: 2,
	}
	return simcuda.Options{Devices: []cuda.DeviceInfo{gpu, gpu}}
}

// direct is a configuration whose GPUs network devices reach themselves.
func direct(t testing.TB) Config {
	t.Setenv(scatterVariable, "0")
	return Config{RDMA: &RDMAConfig{DeviceMemory: DeviceDirect}}
}

// GPUDirect moves exactly the range, whichever sides use it, by DMA-BUF or by peermem, with and without a flush; the other
// side may be host memory, or a GPU that is staged. What was observed is published, and paths say it.
//
// proves C-6, R-16, W-8, W-9; field case F-68
func TestGPUDirectMovesExactlyTheRange(t *testing.T) {
	const size = 1<<20 + 4096
	type side struct{ device, direct bool }
	sides := []side{{false, false}, {true, false}, {true, true}}
	for i, there := range sides {
		for j, here := range sides {
			if !there.direct && !here.direct {
				continue
			}
			for _, peermem := range []bool{false, true} {
				t.Run(fmt.Sprint(there, here, peermem), func(t *testing.T) {
					s := newRDMASim(t, uint64(200+10*i+j), simverbs.Hardware)
					s.gpus.peermem = peermem
					if peermem { // a library without ibv_reg_dmabuf_mr
						s.fabric.Plan(simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallRegisterDescriptor, Count: -1, Errno: 95})
					}
					set := func(x side) gpuSide {
						g := gpuSide{device: x.device, driver: unordered()}
						if x.direct {
							g.config = direct(t)
						}
						return g
					}
					p := newGPUPairOn(t, s, size, set(there), set(here))
					region := p.segment.Regions()[0]
					want := map[bool]string{true: map[bool]string{true: "peermem", false: "dma-buf"}[peermem]}[there.direct]
					if region.GPUDirect != want {
						t.Errorf("the region says %q, want %q", region.GPUDirect, want)
					}
					domains, regions := s.fabricDomains(p), liveRegions(p.sourceNative)
					for k, n := range []int{1, 64<<10 - 1, 300<<10 + 17, size - 5003} {
						for _, op := range []Operation{Read, Write} {
							report := p.move(t, op, 5000-k, n, 3*k)
							if there.direct || here.direct {
								mentions(t, report.Path, "GPUDirect", "rdma, ")
							}
							if staged := (there.device && !there.direct) || (here.device && !here.direct); staged {
								mentions(t, report.Path, "staged through pinned host memory")
							}
						}
					}
					p.atRest(t)
					if len(s.gpus.early) > 0 {
						t.Errorf("registered before SYNC_MEMOPS was set: %v", s.gpus.early)
					}
					for driver, x := range map[*simcuda.Driver]side{p.sourceDriver: there, p.requesterDriver: here} {
						if n := driver.Calls(simcuda.CallSetAttribute); n != map[bool]uint64{true: 1}[x.direct] {
							t.Errorf("SYNC_MEMOPS was set %d times", n)
						}
						if n := driver.Calls(simcuda.CallFlush); n != map[bool]uint64{true: 4}[x.direct] {
							t.Errorf("%d flushes, want one for each of 4 transfers that wrote", n)
						}
					}
					if now := s.fabricDomains(p); now != domains {
						t.Errorf("%d protection domains, before %d", now, domains)
					}
					if now := liveRegions(p.sourceNative); there.direct && now > regions {
						t.Errorf("%d memory regions, before %d", now, regions)
					}
				})
			}
		}
	}
}

func (s *rdmaSim) fabricDomains(p *gpuPair) int {
	return p.sourceNative.Live().Domains + p.requesterNative.Live().Domains
}

// What GPUDirect needs and is not there is an error that says so and what to do, at Open or at Register, and it never
// becomes staging.
//
// proves C-6, R-6; field case F-69, F-70
func TestWhatGPUDirectNeedsIsSaidAndNeverBecomesStaging(t *testing.T) {
	s := newRDMASim(t, 240, simverbs.Hardware)
	n := s.native("alone", hostA)
	open := func(config Config) error {
		e, err := Open(s.rdmaConfig(n, hostA, config))
		if err == nil {
			closeEngine(t, e)
		}
		return err
	}
	config := direct(t)
	mentions(t, wants(t, open(config), ErrInvalid).Error(), "Config.CUDA", "DeviceStaged")
	driver := simcuda.New(1, unordered())
	t.Cleanup(func() { driverEnds(t, driver, false) })
	config.CUDA = driver
	for value, words := range map[string]string{"1": `is "1"`, "": `is ""`} {
		t.Setenv(scatterVariable, value)
		err := open(config)
		var scatter *ScatterError
		mentions(t, wants(t, err, ErrUnavailable).Error(), words, "MLX5_SCATTER_TO_CQE=0")
		if !errors.As(err, &scatter) || !scatter.Set || scatter.Value != value {
			t.Errorf("%+v", scatter)
		}
	}
	if n.Calls(simverbs.CallOpenDevice) != 0 {
		t.Error("a device was opened")
	}
}

// A range that cannot be registered directly is refused with what is missing, and leaves nothing.
//
// proves C-6, R-5, R-6; field case F-69
func TestARegistrationThatNoDeviceReachesIsRefused(t *testing.T) {
	missing := unordered()
	missing.Devices[1].GPUDirect = false
	blind := unordered()
	blind.Devices[1].FlushHost = false
	for name, x := range map[string]struct {
		driver  simcuda.Options
		plan    simcuda.Fault
		fabric  simverbs.Fault
		peermem bool
		class   error
		words   []string
	}{
		"a GPU without GPUDirect":      {driver: missing, class: ErrUnavailable, words: []string{"the GPU has no GPUDirect RDMA"}},
		"writes that nobody can see":   {driver: blind, class: ErrUnavailable, words: []string{"neither orders", "another GPU"}},
		"SYNC_MEMOPS fails":            {driver: unordered(), plan: simcuda.Fault{Call: simcuda.CallSetAttribute}, class: ErrUnavailable, words: []string{"SYNC_MEMOPS"}},
		"an export fails":              {driver: unordered(), peermem: true, plan: simcuda.Fault{Call: simcuda.CallExport}, class: ErrUnavailable, words: []string{"cuMemGetHandleForAddressRange"}},
		"no way":                       {driver: unordered(), fabric: simverbs.Fault{Call: simverbs.CallRegisterDescriptor, Errno: 95, Count: -1}, class: ErrUnavailable, words: []string{"nvidia-peermem", "stage device memory"}},
		"the second device's DMA-BUF":  {driver: unordered(), peermem: true, fabric: simverbs.Fault{Call: simverbs.CallRegisterDescriptor, Index: 1, Errno: 12}, class: ErrUnavailable, words: []string{"ibv_reg_dmabuf_mr"}},
		"the second device by address": {driver: unordered(), peermem: true, fabric: simverbs.Fault{Call: simverbs.CallRegister, Index: 1, Errno: 12}, class: ErrUnavailable, words: []string{"ibv_reg_mr"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newRDMASim(t, 250, simverbs.Hardware)
			s.gpus.peermem = x.peermem
			p := newGPUPairOn(t, s, 8192, gpuSide{config: direct(t), driver: x.driver}, gpuSide{})
			if x.fabric.Call == simverbs.CallRegister { // by address is what is left without DMA-BUF
				s.fabric.Plan(simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallRegisterDescriptor, Count: -1, Errno: 95})
			}
			if x.plan.Call != 0 {
				p.sourceDriver.Plan(x.plan)
			}
			if x.fabric.Call != 0 {
				s.fabric.Plan(x.fabric)
			}
			m := onGPU(t, p.sourceDriver, 1, 8192)
			before, visible := liveRegions(p.sourceNative), p.source.tracker.Mirror().Count()
			_, err := p.source.Register(m, 0, 8192, ReadWrite)
			mentions(t, wants(t, err, x.class).Error(), x.words...)
			if liveRegions(p.sourceNative) != before || p.source.tracker.Mirror().Count() != visible || !m.backing.Quiet() {
				t.Error("a refusal left something")
			}
		})
	}
}

// Many batches at once over both sides' GPUs, some cancelled, then both engines close: whatever moment each is at, nothing is
// left, and what succeeded is whole.
//
// proves C-7, R-10, G-6, U-2
func TestManyBatchesOverGPUDirectEndWithTheirEngines(t *testing.T) {
	const size, n = 1 << 20, 100<<10 + 3
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := newRDMASim(t, 260+seed, simverbs.Hardware)
			s.gpus.peermem = seed%2 == 0
			side := func() gpuSide {
				c := direct(t)
				c.Lanes = 2
				return gpuSide{config: c, device: true, driver: unordered()}
			}
			p := newGPUPairOn(t, s, size, side(), side())
			put(t, p.sourceDriver, p.remote, 1)
			put(t, p.requesterDriver, p.local, 1)
			var batches []*Batch
			for i := range 16 {
				b, err := p.requester.Submit(soon(t), []Request{p.overRDMA([]Operation{Read, Write}[i%2], i*4096, n), p.overRDMA(Read, 40*4096+i*4096, n)})
				must(t, err)
				batches = append(batches, b)
			}
			for i, b := range batches {
				if seed > 0 && i%5 == int(seed) {
					b.Cancel()
				}
			}
			if seed == 3 { // in the middle of it all
				p.Advance(300_000)
				must(t, p.source.CloseSource(soon(t)))
			}
			failed := 0
			for i, b := range batches {
				report, err := b.Wait(soon(t))
				if err != nil {
					failed++
				}
				if !report.LocallyDrained || err != nil && seed == 0 {
					t.Errorf("batch %d: %+v, %v", i, report, err)
				}
				must(t, b.Free())
			}
			if failed == len(batches) && seed < 3 {
				t.Error("nothing succeeded")
			}
			want := content(t, p.sourceDriver, p.remote) // both sides had the same bytes: no READ or WRITE changes any
			if !bytes.Equal(content(t, p.requesterDriver, p.local), want) {
				t.Error("bytes were changed")
			}
			p.atRest(t)
		})
	}
}
