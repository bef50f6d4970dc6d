package rdma

import (
	"errors"
	"syscall"
	"testing"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// proves, U-1
func TestViewHasItsRegionsOnEveryUsableDevice(t *testing.T) {
	r := newRig(t, simverbs.Hardware)
	a := r.site("a", siteOptions{devices: []simverbs.DeviceSpec{
		{Name: "mlx5_0"}, {Name: "mlx5_1", Ports: []simverbs.PortSpec{{Network: "n", Down: true}}}, {Name: "mlx5_2", Accessible: errors.New("no")}, {Name: "mlx5_3"},
	}, config: Config{Mask: 1}})
	m := r.memory(8192)
	budget := &a.transport.config.Budgets
	local, remote := a.register(m, false), a.register(m, true)
	for _, nic := range []uint8{0, 1, 3} {
		one, none := local.On(nic)
		two, parent := remote.On(nic)
		if one == nil || none != nil || two == nil || parent == nil || one == two || two == parent {
			t.Errorf("NIC %d: %v, %v, %v, %v", nic, one, none, two, parent)
		}
		if parent.RemoteKey() == 0 || !parent.Covers(m.Address(), m.Length()) {
			t.Errorf("NIC %d: the parent is %v", nic, parent)
		}
	}
	if x, y := remote.On(2); x != nil || y != nil {
		t.Error("regions on a device that could not be opened")
	}
	if live := a.native.Live(); live.Regions != 9 || budget.CachedRegions.Used() != 9 || budget.CachedBytes.Used() != 9*8192 {
		t.Errorf("%d regions, charged %d with %d bytes", live.Regions, budget.CachedRegions.Used(), budget.CachedBytes.Used())
	}
	again := a.register(m, true)
	if again != remote || a.native.Live().Regions != 9 {
		t.Error("an equal view is not shared")
	}
	r.finish()
}

// proves R-5
func TestFailedRegistrationLeavesNothingOrSaysWhatItLeaves(t *testing.T) {
	for fail := range 4 {
		for _, refused := range []bool{false, true} {
			r := newRig(t, simverbs.SoftRoCE)
			a := r.site("a", siteOptions{})
			r.fabric.Plan(simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallRegister, Index: fail, Errno: syscall.ENOMEM})
			if refused && fail > 0 {
				r.fabric.Plan(simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallDeregister})
			}
			m := r.memory(8192)
			g, err := a.transport.Register(m.Address(), m.Length(), true)
			if g != nil || !errors.Is(err, syscall.ENOMEM) {
				t.Fatalf("%v, %v", g, err)
			}
			var rollback *RollbackError
			left := 0
			if errors.As(err, &rollback) {
				left = rollback.Kept
			}
			if want := map[bool]int{true: min(fail, 1)}[refused]; left != want {
				t.Errorf("region %d of 4 failed, deregistering refused %v: %v", fail, refused, err)
			}
			budget := &a.transport.config.Budgets
			if live := a.native.Live().Regions; live != left || int(budget.CachedRegions.Used()) != left || int(budget.CachedBytes.Used()) != 8192*left {
				t.Errorf("%d regions are left, charged %d", live, budget.CachedRegions.Used())
			}
			if left == 0 {
				a.register(m, true)
				r.finish()
			} else {
				r.settleUp()
			}
		}
	}
}

// proves R-7, U-3
// field case F-56
func TestRetiredViewGoesWithItsLastUserAndIsNeverSharedAgain(t *testing.T) {
	r := newRig(t, simverbs.Hardware)
	a := r.site("a", siteOptions{})
	m := r.memory(8192)
	g, err := a.transport.Register(m.Address(), m.Length(), true)
	must(t, err)
	twice, err := a.transport.Register(m.Address(), m.Length(), true)
	must(t, err)
	if !g.Lend() || twice != g {
		t.Fatal("an active view is not lent, or not shared")
	}
	var done []error
	end := func(err error) { done = append(done, err) }
	g.Retire(end)
	if len(done) != 1 || !g.Lend() {
		t.Fatal("the first of two references ended the view")
	}
	g.Return()
	g.Retire(end)
	r.pass(1e9)
	if len(done) != 1 || g.Lend() || g.Uses() != 1 || a.native.Live().Regions != 4 {
		t.Fatalf("with a user left: done %v, %d uses, %d regions", done, g.Uses(), a.native.Live().Regions)
	}
	fresh, err := a.transport.Register(m.Address(), m.Length(), true)
	must(t, err)
	if fresh == g || a.native.Live().Regions != 8 {
		t.Error("the retired view was shared again")
	}
	g.Return()
	r.until("the end", func() bool { return len(done) == 2 })
	if done[1] != nil || a.native.Live().Regions != 4 || a.transport.config.Budgets.CachedRegions.Used() != 4 {
		t.Errorf("%v, %d regions", done, a.native.Live().Regions)
	}
	if n := testing.AllocsPerRun(100, func() {
		fresh.Lend()
		fresh.On(1)
		fresh.Return()
	}); n != 0 {
		t.Errorf("lending allocates %v times", n)
	}
	var exhausted *budgets.Exhausted
	big := r.memory(32 << 20)
	if _, err := a.transport.Register(big.Address(), big.Length(), true); !errors.As(err, &exhausted) || exhausted.Budget != "cached bytes" {
		t.Errorf("past the budget: %v", err)
	}
	if a.native.Live().Regions != 4 || a.transport.config.Budgets.CachedRegions.Used() != 4 {
		t.Error("a refusal left something")
	}
	fresh.Retire(end)
	r.finish()
}

// A registration whose end the library refuses keeps its charge; one that is still in use when the transport closes
// keeps its domain and context, and both are said.
//
// proves
func TestRegionsThatCannotEndKeepWhatTheyStandOn(t *testing.T) {
	r := newRig(t, simverbs.Hardware)
	a := r.site("a", siteOptions{})
	m := r.memory(4096)
	g, err := a.transport.Register(m.Address(), m.Length(), false)
	must(t, err)
	r.fabric.Plan(simverbs.Fault{Kind: simverbs.FailCall, Call: simverbs.CallDeregister})
	var done []error
	g.Retire(func(err error) { done = append(done, err) })
	r.until("the refusal", func() bool { return len(done) == 1 })
	if !errors.Is(done[0], verbs.ErrRetained) || a.transport.config.Budgets.CachedRegions.Used() != 1 {
		t.Errorf("%v, %d charged", done[0], a.transport.config.Budgets.CachedRegions.Used())
	}
	retained := r.close()
	if len(retained) != 1 || len(a.transport.Retained()) != 3 { // region, domain, context
		t.Errorf("closing said %v; retained %v", retained, a.transport.Retained())
	}
	if live := a.native.Live(); live.Devices != 1 || live.Domains != 1 || live.Regions != 1 || live.Queues != 0 {
		t.Errorf("left: %+v", live)
	}
	r.endLoops()
}
