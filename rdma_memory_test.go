package orbitte

import (
	"bytes"
	"context"
	"errors"
	"syscall"
	"testing"

	"github.com/orbitte/orbitte/lanes/rdma"
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// early is a library that looks at the engine whenever memory is registered.
type early struct {
	verbs.Calls
	look func()
}

func (l *early) Register(d verbs.DomainHandle, address, length uint64, a verbs.Access) (verbs.RegionHandle, verbs.LocalKey, verbs.RemoteKey, error) {
	l.look()
	return l.Calls.Register(d, address, length, a)
}

// nativeUse is how many regions an engine is charged for, and their bytes.
func nativeUse(t testing.TB, e *Engine) (regions, bytes int64) {
	return gauge(t, e, "RDMA memory regions").Used, gauge(t, e, "RDMA memory region bytes").Used
}

// proves, M-5
func TestMemoryIsWithEveryDeviceBeforeAPeerCanSeeIt(t *testing.T) {
	s := newRDMASim(t, 3, simverbs.Hardware)
	n := s.native("source", hostA, simverbs.DeviceSpec{Name: "mlx5_0"}, simverbs.DeviceSpec{Name: "mlx5_1", Ports: []simverbs.PortSpec{{Network: "x", Down: true}}})
	library := &early{Calls: n, look: func() {}}
	e := s.rdmaEngine(n, hostA, Config{Verbs: library})
	library.look = func() {
		if visible := e.tracker.Mirror().Count(); visible != 0 {
			t.Errorf("%d ranges are visible while a device registers them", visible)
		}
	}
	m := allocated(t, 8192)
	local, err := e.Register(m, 0, 4096, LocalOnly)
	must(t, err)
	if regions := liveRegions(n); regions != 2 {
		t.Errorf("a local range has %d memory regions, want one on each of two devices, the paused one included", regions)
	}
	library.look = func() {}
	remote, err := e.Register(m, 4096, 4096, RemoteRead)
	must(t, err)
	if regions := liveRegions(n); regions != 2+4 {
		t.Errorf("%d memory regions, want two more on each device for a range that peers may read", regions)
	}
	again, err := e.Register(m, 4096, 4096, LocalOnly)
	must(t, err)
	if regions, bytes := nativeUse(t, e); regions != 6 || bytes != 6*4096 || liveRegions(n) != 6 {
		t.Errorf("a duplicate costs: %d regions of %d bytes", regions, bytes)
	}
	for _, r := range []*Registration{local, again, remote} {
		must(t, e.Unregister(soon(t), r))
	}
	if regions, bytes := nativeUse(t, e); regions != 0 || bytes != 0 || liveRegions(n) != 0 {
		t.Errorf("after Unregister %d memory regions are live, %d charged", liveRegions(n), regions)
	}
}

// proves R-5, M-4
func TestABatchIsRegisteredWithAllDevicesOrNotAtAll(t *testing.T) {
	s := newRDMASim(t, 4, simverbs.Hardware)
	n := s.native("source", hostA)
	e := s.rdmaEngine(n, hostA, Config{})
	m := allocated(t, 3*4096)
	first := registered(t, e, m, LocalOnly)
	s.fabric.Plan(simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallRegister, Index: 6, Errno: syscall.ENOMEM})
	batch := []Range{{Memory: m, Offset: 0, Length: 4096, Permission: ReadWrite}, {Memory: m, Offset: 4096, Length: 4096, Permission: ReadWrite}, {Memory: m, Offset: 8192, Length: 4096, Permission: ReadWrite}}
	_, err := e.RegisterBatch(batch)
	if own := wants(t, err, ErrSystem); own.Index != 1 || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("the error is %v, want range 1 with the device's errno", err)
	}
	if regions, _ := nativeUse(t, e); liveRegions(n) != 2 || regions != 2 || len(e.tracker.Mirror().All()) != 1 {
		t.Errorf("a failed batch left %d memory regions, %d charged, want the 2 that were there", liveRegions(n), regions)
	}
	if ids := e.tracker.Mirror().All(); ids[0].ID() != first.ID() {
		t.Errorf("region %d is visible, want %d", ids[0].ID(), first.ID())
	}
	handles, err := e.RegisterBatch(batch)
	must(t, err)
	for _, h := range handles {
		must(t, e.Unregister(soon(t), h))
	}
}

// proves R-5, U-3
func TestABudgetOfMemoryRegionsRefusesAndNamesItsField(t *testing.T) {
	s := newRDMASim(t, 5, simverbs.Hardware)
	n := s.native("source", hostA)
	e := s.rdmaEngine(n, hostA, Config{RDMA: &RDMAConfig{Limits: RDMALimits{CachedRegions: 3, CachedBytes: 16384}}})
	m := allocated(t, 16384)
	_, err := e.Register(m, 0, 4096, ReadWrite)
	mentions(t, wants(t, err, ErrExhausted).Error(), "RDMA memory regions", "limit 3", "RDMA.Limits.CachedRegions")
	_, err = e.Register(m, 0, 16384, LocalOnly)
	mentions(t, wants(t, err, ErrExhausted).Error(), "RDMA memory region bytes", "limit 16384", "RDMA.Limits.CachedBytes")
	if liveRegions(n) != 0 {
		t.Errorf("a refused registration left %d memory regions", liveRegions(n))
	}
	r, err := e.Register(m, 0, 4096, LocalOnly)
	must(t, err)
	must(t, e.Unregister(soon(t), r))
}

// field case F-62
func TestALockedMemoryLimitFailsTheRegistrationWithLimitAndRemedy(t *testing.T) {
	s := newRDMASim(t, 6, simverbs.Hardware)
	n := s.native("source", hostA)
	e := s.rdmaEngine(n, hostA, Config{Verbs: locked{n, 64 << 10}})
	m := allocated(t, 64<<10)
	_, err := e.Register(m, 0, 64<<10, LocalOnly) // on two devices
	own := wants(t, err, ErrExhausted)
	mentions(t, own.Error(), "65536 bytes", "131072", "ulimit -l", "LimitMEMLOCK", "memlock=-1")
	var limit *verbs.MemlockError
	if !errors.As(err, &limit) || limit.Limit != 64<<10 || limit.Asked != 128<<10 {
		t.Errorf("the error carries %+v", limit)
	}
	if n.Calls(simverbs.CallRegister) != 0 || e.tracker.Mirror().Count() != 0 {
		t.Errorf("%d registrations were tried, %d ranges are visible", n.Calls(simverbs.CallRegister), e.tracker.Mirror().Count())
	}
	small, err := e.Register(m, 0, 32<<10, LocalOnly)
	must(t, err)
	must(t, e.Unregister(soon(t), small))
}

// proves R-6
func TestAStagedEngineRegistersNothingOfTheApplicationsMemory(t *testing.T) {
	s := newRDMASim(t, 7, simverbs.Hardware)
	n := s.native("source", hostA)
	e := s.rdmaEngine(n, hostA, Config{Verbs: locked{n, 0}, RDMA: &RDMAConfig{HostMemory: HostStaged}})
	m := allocated(t, 4096)
	calls := n.Calls(simverbs.CallRegister)
	r := registered(t, e, m, ReadWrite)
	if n.Calls(simverbs.CallRegister) != calls || rdma.Of(r.inner) != nil {
		t.Error("a staged engine registered a range with a device")
	}
	must(t, e.Unregister(soon(t), r))
}

// field case F-56
func TestMemoryStaysMappedUntilNoDeviceCanReachIt(t *testing.T) {
	s := newRDMASim(t, 8, simverbs.Hardware)
	n := s.native("source", hostA)
	e := s.rdmaEngine(n, hostA, Config{})
	m, err := Allocate(8192)
	must(t, err)
	r, err := e.Register(m, 0, 8192, ReadWrite)
	must(t, err)
	count, _ := objects()
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	wants(t, e.Unregister(gone, r), ErrUnquiesced) // nobody drives: the devices were not asked yet
	must(t, m.Close())
	if now, _ := objects(); now != count || liveRegions(n) != 4 {
		t.Errorf("%d memory objects, before %d, with %d memory regions live", now, count, liveRegions(n))
	}
	must(t, e.Unregister(soon(t), r))
	if now, _ := objects(); now != count-1 || liveRegions(n) != 0 {
		t.Errorf("after the end %d memory objects, before %d, %d memory regions", now, count, liveRegions(n))
	}
}

// proves G-6, R-18
// field case F-56
func TestCloseTakesMemoryFromTheDevicesAndLeavesRegistrationsToTheirOwner(t *testing.T) {
	s := newRDMASim(t, 9, simverbs.Hardware)
	n := s.native("source", hostA)
	e := s.rdmaEngine(n, hostA, Config{})
	m := allocated(t, 8192)
	a, err := e.Register(m, 0, 4096, ReadWrite)
	must(t, err)
	b, err := e.Register(m, 4096, 4096, LocalOnly)
	must(t, err)
	closeEngine(t, e)
	if left := n.Live(); !left.Empty() {
		t.Errorf("a closed engine left %+v", left)
	}
	if used := gauge(t, e, "retained registrations").Used; used != 2 {
		t.Errorf("%d registrations are charged after Close, want the owner's 2", used)
	}
	_, err = e.Register(m, 0, 4096, LocalOnly)
	wants(t, err, ErrClosed)
	must(t, e.Unregister(soon(t), a))
	must(t, e.Unregister(soon(t), b))
}

// proves, G-9
func TestARefusedDeregistrationKeepsMemoryChargesAndAllAboveAndSaysSo(t *testing.T) {
	s := newRDMASim(t, 10, simverbs.Hardware)
	keepsOnPurpose(t, 1)
	s.deliberate["source"] = true
	n := s.native("source", hostA, simverbs.DeviceSpec{Name: "mlx5_0"})
	count, _ := objects()
	e, err := Open(s.rdmaConfig(n, hostA, Config{}))
	must(t, err)
	s.drive(e)
	m, err := Allocate(4096)
	must(t, err)
	r, err := e.Register(m, 0, 4096, LocalOnly)
	must(t, err)
	s.fabric.Plan(simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallDeregister, Errno: syscall.EBUSY})
	own := wants(t, e.Unregister(soon(t), r), ErrUnquiesced)
	mentions(t, own.Error(), "ibv_dereg_mr", "stays mapped")
	wants(t, e.Unregister(soon(t), r), ErrUnquiesced) // again, and no second try
	must(t, m.Close())
	if c, _ := objects(); c != count+1 {
		t.Errorf("%d memory objects, want the one that a device may reach to stay", c-count)
	}
	mentions(t, wants(t, e.Close(soon(t)), ErrUnquiesced).Error(), "RDMA", "RetainedResources")
	if regions, _ := nativeUse(t, e); regions != 1 || n.Calls(simverbs.CallDeregister) != 1 {
		t.Errorf("%d regions are charged, deregistering was tried %d times; want 1 and 1", regions, n.Calls(simverbs.CallDeregister))
	}
	kinds := map[string]int{}
	for _, k := range e.RetainedResources() {
		kinds[k.Kind]++
	}
	if kinds["RDMA registration"] != 1 || kinds["RDMA object"] == 0 {
		t.Errorf("retained are %v", e.RetainedResources())
	}
	wants(t, e.Close(soon(t)), ErrUnquiesced) // the same answer again
}

// field case F-56
func TestPagesThatAreMappedAnewAtAnOldAddressAreTheOnesThatMove(t *testing.T) {
	p := newRDMAPair(t, 11, Config{}, Config{}, 64<<10)
	address := uint64(0)
	for round := range 3 {
		m, err := Allocate(256 << 10)
		must(t, err)
		if address != 0 && m.Address() != address {
			t.Logf("the system mapped %#x after %#x", m.Address(), address)
		}
		address = m.Address()
		pattern(m, 100+round)
		r, err := p.requester.Register(m, 0, 256<<10, LocalOnly)
		must(t, err)
		write := p.overRDMA(Write, 0, 64<<10)
		write.Local = m.Address() + 1000
		_, err = p.requester.SubmitAndWait(soon(t), []Request{write})
		must(t, err)
		if !bytes.Equal(p.remote.Bytes(), m.Bytes()[1000:1000+64<<10]) {
			t.Errorf("round %d sent other pages than those that are mapped", round)
		}
		must(t, p.requester.Unregister(soon(t), r))
		must(t, m.Close())
	}
}

// proves
func TestAFailedRollbackKeepsTheMemoryAndSaysSo(t *testing.T) {
	s := newRDMASim(t, 12, simverbs.Hardware)
	keepsOnPurpose(t, 1)
	s.deliberate["source"] = true
	n := s.native("source", hostA)
	e, err := Open(s.rdmaConfig(n, hostA, Config{}))
	must(t, err)
	s.drive(e)
	m, err := Allocate(4096)
	must(t, err)
	s.fabric.Plan(
		simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallRegister, Index: 2, Errno: syscall.ENOMEM},
		simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallDeregister, Errno: syscall.EBUSY})
	_, err = e.Register(m, 0, 4096, ReadWrite)
	mentions(t, wants(t, err, ErrUnquiesced).Error(), "ibv_reg_mr", "1 memory regions could not be taken back")
	if e.tracker.Mirror().Count() != 0 || gauge(t, e, "RDMA memory regions").Used != 1 || gauge(t, e, "retained registrations").Used != 0 {
		t.Errorf("visible %d, gauges %+v", e.tracker.Mirror().Count(), e.Stats().Gauges)
	}
	must(t, m.Close())
	if kept := e.RetainedResources(); len(kept) < 2 || kept[0].Kind != "RDMA registration" {
		t.Errorf("retained are %v", kept)
	}
	wants(t, e.Close(soon(t)), ErrUnquiesced)
}
