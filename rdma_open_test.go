package orbitte

import (
	"errors"
	"syscall"
	"testing"

	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// proves R-1, U-3
func TestRDMAConfigurationIsCheckedAndNamesFieldValueAndRemedy(t *testing.T) {
	number := func(n int) *int { return &n }
	calls := simverbs.NewFabric(1, simverbs.Options{}).Host("h").Process("p")
	for _, c := range []struct {
		config Config
		words  []string
	}{
		{Config{RDMA: &RDMAConfig{}}, []string{"Config.Verbs is nil", "libibverbs.Load"}},
		{Config{Verbs: calls}, []string{"Config.RDMA is nil", "&RDMAConfig{}"}},
		{Config{Verbs: calls, RDMA: &RDMAConfig{Port: number(0)}}, []string{"Config.RDMA.Port is 0", "1 to 255"}},
		{Config{Verbs: calls, RDMA: &RDMAConfig{Port: number(256)}}, []string{"Config.RDMA.Port is 256"}},
		{Config{Verbs: calls, RDMA: &RDMAConfig{GIDIndex: number(-1)}}, []string{"Config.RDMA.GIDIndex is -1", "nil for the best"}},
		{Config{Verbs: calls, RDMA: &RDMAConfig{PreferredNUMANode: number(-1)}}, []string{"PreferredNUMANode is -1"}},
		{Config{Verbs: calls, RDMA: &RDMAConfig{HostMemory: 2}}, []string{"HostMemory is 2", "HostStaged"}},
		{Config{Verbs: calls, RDMA: &RDMAConfig{Progress: 2}}, []string{"Progress is 2", "RDMAEventDriven"}},
		{Config{Verbs: calls, RDMA: &RDMAConfig{BlockBytes: 5000}}, []string{"BlockBytes is 5000", "power of two"}},
		{Config{Verbs: calls, RDMA: &RDMAConfig{Width: 33}}, []string{"Width is 33", "1 to 32"}},
		{Config{Verbs: calls, RDMA: &RDMAConfig{ConnectTimeout: -1}}, []string{"ConnectTimeout is -1ns"}},
		{Config{Verbs: calls, RDMA: &RDMAConfig{Limits: RDMALimits{Grants: -1}}}, []string{"Limits.Grants is -1", "default of 64"}},
		{Config{Verbs: calls, RDMA: &RDMAConfig{Limits: RDMALimits{StagingBytes: 1 << 63}}}, []string{"Limits.StagingBytes"}},
		{Config{Verbs: calls, RDMA: &RDMAConfig{Limits: RDMALimits{SendWork: 9, CompletionEntries: 8}}}, []string{"SendWork is 9", "CompletionEntries only 8", "at least 18"}},
		{Config{Verbs: calls, RDMA: &RDMAConfig{Width: 9, Limits: RDMALimits{Endpoints: 8}}}, []string{"Endpoints is 8", "Width 9"}},
	} {
		_, err := Open(c.config)
		mentions(t, wants(t, err, ErrInvalid).Error(), c.words...)
	}
}

// proves R-1
func TestDefaultsAreThoseOfTheContract(t *testing.T) {
	c := &RDMAConfig{}
	must(t, c.complete())
	want := RDMALimits{64, 64, 16, 1024, 64 << 20, 64 << 20, 64, 64 << 20, 65536}
	if c.Limits != want || c.BlockBytes != 64<<10 || c.Width != 1 || c.HostMemory != HostDirect || c.Progress != RDMAPolling {
		t.Errorf("defaults are %+v, want the limits %+v, 64 KiB, width 1, direct, polling", c, want)
	}
	c = &RDMAConfig{Device: "mlx5_1"}
	if p := c.pins(); p.Device != "mlx5_1" || *p.Port != 1 || *p.GIDIndex != 0 {
		t.Errorf("a named device pins %+v, want port 1 and index 0", p)
	}
	three := 3
	c = &RDMAConfig{Device: "mlx5_1", GIDIndex: &three}
	if p := c.pins(); *p.Port != 1 || *p.GIDIndex != 3 {
		t.Errorf("an index beside the device pins %d and %d, want 1 and 3", *p.Port, *p.GIDIndex)
	}
	c = &RDMAConfig{GIDIndex: &three}
	if p := c.pins(); p.Device != "" || p.Port != nil || *p.GIDIndex != 3 {
		t.Errorf("an index alone pins %+v, want nothing else", p)
	}
}

// proves R-1, G-4
// field case F-70
func TestOpenNamesEachDeviceThatIsNotUsableAndNothingBecomesTCP(t *testing.T) {
	s := newRDMASim(t, 1, simverbs.Hardware)
	denied := s.native("denied", hostA,
		simverbs.DeviceSpec{Name: "mlx5_0", Accessible: syscall.EACCES}, simverbs.DeviceSpec{Name: "mlx5_1", Accessible: syscall.ENOENT})
	_, err := Open(s.rdmaConfig(denied, hostA, Config{}))
	own := wants(t, err, ErrUnavailable)
	mentions(t, own.Error(), "mlx5_0", "permission denied", "mlx5_1", "no such file", "orbitte devices", "no engine was opened")
	if !errors.Is(err, verbs.ErrSelection) || !errors.Is(err, syscall.ENOENT) {
		t.Errorf("%v is no selection error with its reasons", err)
	}
	good := s.native("good", hostB)
	for _, c := range []*RDMAConfig{{Device: "mlx5_7"}, {Whitelist: []string{"mlx5_9"}}, {Blacklist: []string{"mlx5_0", "mlx5_1"}}} {
		_, err := Open(s.rdmaConfig(good, hostB, Config{RDMA: c}))
		mentions(t, wants(t, err, ErrUnavailable).Error(), "mlx5_")
	}
	nine := 9
	_, err = Open(s.rdmaConfig(good, hostB, Config{RDMA: &RDMAConfig{GIDIndex: &nine}}))
	mentions(t, wants(t, err, ErrUnavailable).Error(), "mlx5_0", "mlx5_1", "9")
	for _, p := range s.processes {
		if n := p.Descriptors(); n != 0 {
			t.Errorf("a failed Open left %d descriptors", n)
		}
	}
}

// proves
func TestTheDescriptorPublishesEachDeviceWithItsState(t *testing.T) {
	s := newRDMASim(t, 2, simverbs.Hardware)
	n := s.native("source", hostA,
		simverbs.DeviceSpec{Name: "mlx5_10", NUMANode: 1}, simverbs.DeviceSpec{Name: "mlx5_2", NUMANode: -1, Ports: []simverbs.PortSpec{{Network: "x", Down: true}}},
		simverbs.DeviceSpec{Name: "mlx5_3", Accessible: syscall.EACCES}, simverbs.DeviceSpec{Name: "other"})
	e := s.rdmaEngine(n, hostA, Config{RDMA: &RDMAConfig{Blacklist: []string{"other"}, Width: 4}})
	other := s.rdmaEngine(s.native("requester", hostB), hostB, Config{})
	d := opened(t, other, e).view().Descriptor()
	if d.RDMA == nil || !d.Capabilities.Has(netproto.CapabilityRDMA) || d.RDMA.PairsMax != 4 || len(d.RDMA.Paths) != 2 {
		t.Fatalf("the descriptor has %+v", d.RDMA)
	}
	down, up := d.RDMA.Paths[0], d.RDMA.Paths[1]
	if down.Name != "mlx5_2" || down.NIC != 0 || down.State != netproto.PathPaused || down.NUMA != netproto.NUMAUnknown {
		t.Errorf("the first path is %+v, want mlx5_2 as NIC 0, paused", down)
	}
	if up.Name != "mlx5_10" || up.NIC != 2 || up.State != netproto.PathActive || up.NUMA != 1 {
		t.Errorf("the second path is %+v, want mlx5_10 as NIC 2: a failed slot never renumbers the others", up)
	}
	s.fabric.Host(hostA.String()).Device("mlx5_2").Port(1).Up()
	s.until(5e9, func() bool { return e.descriptor().RDMA.Paths[0].State == netproto.PathActive })
}
