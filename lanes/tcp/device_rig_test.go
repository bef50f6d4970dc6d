package tcp

import (
	"time"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/lanes/staging"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
)

// gpu is a node's driver with two GPUs, its stage, and its cold loop.
type gpu struct {
	node     *node
	driver   *simcuda.Driver
	platform *cuda.Platform
	cold     *reactor.Loop
	stage    *staging.Stage
	pinned   *budgets.Budget
	devices  []*cuda.Memory
	lasting  bool // the test means something to stay retained
}

func (n *node) newGPU(c staging.Config, still bool) *gpu {
	n.t.Helper()
	w, g := n.rig.world, &gpu{node: n}
	o := simcuda.Options{Now: func() time.Duration { return time.Duration(w.Now()) }, Sleep: w.Advance, Memory: 64 << 20}
	if !still {
		o.Later = w.Later
	}
	o.Violation = func(err error) { n.t.Error(err) }
	o.Signal = func(*simcuda.Driver) (int, func(), func(), func(), error) {
		d, set, err := n.process.Signal()
		end := func() {
			if open := n.process.Kernels(); len(open) > 0 {
				_ = open[0].Close(d)
			}
		}
		return int(d), set, func() { n.process.Unsignal(d) }, end, err
	}
	g.driver = simcuda.New(w.Seed(), o)
	n.t.Cleanup(g.driver.Kill)
	platform, err := cuda.Open(g.driver)
	if err != nil {
		n.t.Fatal(err)
	}
	kernel := n.process.Kernel()
	g.platform, g.cold = platform, reactor.NewLoop(kernel, reactor.Options{Name: "cold", Mode: reactor.Manual})
	if err := g.cold.Bind(); err != nil {
		n.t.Fatal(err)
	}
	w.AddFor(func() bool { return g.cold.Turn(reactor.Forever) }, kernel)
	g.pinned = budgets.New("pinned staging", "bytes", 1<<30)
	c.Budget, c.Cold = g.pinned, g.cold
	g.stage = staging.New(n.lane, c)
	n.lane.Staging = g.stage
	return g
}

// registerDevice allocates and registers n bytes on a GPU, filled with a pattern.
func (n *node) registerDevice(length uint64, p netproto.Permission, seed byte) *memory {
	n.t.Helper()
	device, err := n.gpu.platform.Allocate(len(n.gpu.devices)%2, length)
	if err != nil {
		n.t.Fatal(err)
	}
	n.gpu.devices = append(n.gpu.devices, device)
	backing, err := segments.AdoptDevice(uint64(device.Pointer()), length, device, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	n.gpu.driver.Poke(device.Pointer(), pattern(length, seed))
	if err := n.gpu.stage.Prepare(device); err != nil {
		n.t.Fatal(err)
	}
	list, err := n.tracker.Register([]segments.Spec{{Backing: backing, Length: length, Permission: p}})
	if err != nil {
		n.t.Fatal(err)
	}
	m := &memory{Registration: list[0], backing: backing, device: device, gpu: n.gpu}
	n.memories = append(n.memories, m)
	return m
}

// place registers memory of one kind or the other.
func (n *node) place(device bool, length uint64, p netproto.Permission, seed byte) *memory {
	if device {
		return n.registerDevice(length, p, seed)
	}
	return n.register(length, p, seed)
}

// close ends the stage, after everything that uses it.
func (g *gpu) close() {
	if g == nil {
		return
	}
	closed := false
	g.stage.Close(func() { closed = true })
	g.node.rig.until("closing a stage", func() bool { return closed })
	g.node.rig.pass(time.Second) // late callbacks
}

// check looks for leaks: pinned memory, leases, native objects. It comes when the node's memory was dropped.
func (g *gpu) check() {
	if g == nil {
		return
	}
	t := g.node.t
	t.Helper()
	for _, m := range g.devices {
		if err := m.Drop(); err != nil && !g.lasting {
			t.Error(err)
		}
	}
	if err := g.cold.Close(); err != nil {
		t.Error(err)
	}
	got := g.stage.Stats()
	if got.Waiting != 0 || got.Flying != 0 || int64(got.PinnedBytes) != g.pinned.Used() {
		t.Errorf("left: %+v, charged %d", got, g.pinned.Used())
	}
	if g.lasting {
		return
	}
	if got.PinnedBytes != 0 || got.InUse != 0 || got.Retained != 0 {
		t.Errorf("left: %+v", got)
	}
	if live := g.driver.Live(); live != (simcuda.Live{}) {
		t.Errorf("native objects are left: %+v", live)
	}
	if err := g.platform.Close(); err != nil {
		t.Error(err)
	}
}
