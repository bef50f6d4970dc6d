package rdma

import (
	"errors"
	"syscall"
	"testing"

	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// proves
// field case F-70
func TestOpenTakesWhatIsAllowedAndSaysWhyTheRestIsNot(t *testing.T) {
	devices := []simverbs.DeviceSpec{{Name: "mlx5_0"}, {Name: "mlx5_1", Accessible: errors.New("no")}, {Name: "mlx5_2", NUMANode: 1}, {Name: "mlx5_10"}}
	for _, c := range []struct {
		name   string
		config Config
		nics   []string // by stable ID; empty: not usable
	}{
		{"all", Config{}, []string{"mlx5_0", "", "mlx5_2", "mlx5_10"}},
		{"whitelist before blacklist", Config{Filter: verbs.Filter{Whitelist: []string{"mlx5_2", "mlx5_10"}, Blacklist: []string{"mlx5_2"}}}, []string{"mlx5_2", "mlx5_10"}},
		{"blacklist", Config{Filter: verbs.Filter{Blacklist: []string{"mlx5_0"}}}, []string{"", "mlx5_2", "mlx5_10"}},
		{"pin", Config{Pins: verbs.PinDevice("mlx5_2")}, []string{"mlx5_2"}},
		{"pin of one that cannot be opened", Config{Pins: verbs.PinDevice("mlx5_1")}, nil},
		{"pin of one that is not there", Config{Pins: verbs.PinDevice("mlx5_9")}, nil},
		{"nothing left", Config{Filter: verbs.Filter{Whitelist: []string{"x"}}}, nil},
	} {
		r := newRig(t, simverbs.Hardware)
		s := r.host("a", siteOptions{devices: devices})
		err := s.tryOpen(siteOptions{config: c.config})
		if c.nics == nil {
			var e *verbs.SelectionError
			if !errors.As(err, &e) || s.transport != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		must(t, err)
		paths := s.transport.Paths()
		if len(s.transport.Slots()) != len(c.nics) {
			t.Errorf("%s: %d slots", c.name, len(s.transport.Slots()))
		}
		seen := 0
		for nic, name := range c.nics {
			d := s.transport.Device(uint8(nic))
			if name == "" {
				if d != nil || s.transport.Slots()[nic].Err == nil {
					t.Errorf("%s: NIC %d is usable", c.name, nic)
				}
				continue
			}
			p := paths.Paths[seen]
			seen++
			if d == nil || d.Name != name || p.NIC != uint8(nic) || p.Name != name || p.PD != d.Identity || p.State != netproto.PathActive || p.GID != [16]byte(d.Context.Route().GID.GID) {
				t.Errorf("%s: NIC %d is %v, published as %+v", c.name, nic, d, p)
			}
		}
		if seen != len(paths.Paths) || s.transport.Device(63) != nil {
			t.Errorf("%s: %d paths", c.name, len(paths.Paths))
		}
		r.finish()
	}
}

// proves R-1
func TestMaskLimitsDispatchOnlyAndTheNodeIsAHint(t *testing.T) {
	r := newRig(t, simverbs.Hardware)
	node := 1
	a := r.site("a", siteOptions{config: Config{Mask: 1 << 1, PreferredNUMANode: &node}, devices: []simverbs.DeviceSpec{{Name: "x0"}, {Name: "x1"}, {Name: "x2", NUMANode: 1}}})
	b := r.site("b", siteOptions{devices: []simverbs.DeviceSpec{{Name: "x0"}, {Name: "x1"}, {Name: "x2"}}})
	tiers := a.transport.HostTiers(-1)
	if tiers[2] >= tiers[0] || a.transport.HostTiers(0)[0] >= a.transport.HostTiers(0)[2] {
		t.Errorf("tiers %v by hint, %v by node", tiers[:3], a.transport.HostTiers(0))
	}
	for range 3 {
		p, err := a.lanes[0].rails.Choose(b.transport.Paths().Paths, &tiers)
		if err != nil || p.Local != 1 || p.Remote != 1 {
			t.Fatalf("%v, %v", p, err)
		}
	}
	if g := a.register(r.memory(4096), false); a.native.Live().Regions != 3 {
		t.Errorf("the mask limits registration: %v", g)
	}
	a.transport.devices[1].Charge(5)
	b.transport.devices[0].Charge(100)
	if p, err := b.lanes[0].rails.Choose(a.transport.Paths().Paths, &Tiers{}); err != nil || p.Local == 0 {
		t.Errorf("the loaded NIC is taken: %v, %v", p, err)
	}
	a.transport.devices[1].Discharge(5)
	b.transport.devices[0].Discharge(100)
	r.finish()
}

// A construction that fails, and whose cleanup fails as well, keeps what it has and takes no work.
//
// proves R-2
func TestPartialConstructionThatCannotBeUndoneIsListed(t *testing.T) {
	r := newRig(t, simverbs.Hardware)
	s := r.host("a", siteOptions{devices: oneDevice})
	r.fabric.Plan(
		simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallAllocateDomain, Errno: syscall.ENOMEM},
		simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallCloseDevice})
	err := s.tryOpen(siteOptions{})
	var e *verbs.SelectionError
	if !errors.As(err, &e) || !errors.Is(err, syscall.ENOMEM) {
		t.Fatalf("%v", err)
	}
	if s.transport == nil || len(s.transport.Retained()) != 1 {
		t.Fatal("the context that could not be closed is not listed")
	}
	if _, err := s.transport.Register(4096, 4096, false); !errors.Is(err, ErrClosed) {
		t.Errorf("it takes a registration: %v", err)
	}
}
