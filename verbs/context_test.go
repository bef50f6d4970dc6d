package verbs_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// hostOf has four devices: mlx5_0 whose port is down, mlx5_1 that the process may not open, mlx5_2, and mlx5_10.
func hostOf(f *simverbs.Fabric) *simverbs.Process {
	port := []simverbs.PortSpec{{Network: "n"}}
	return f.Host("h",
		simverbs.DeviceSpec{Name: "mlx5_10", Ports: port},
		simverbs.DeviceSpec{Name: "mlx5_0", Ports: []simverbs.PortSpec{{Network: "n", Down: true}}},
		simverbs.DeviceSpec{Name: "mlx5_2", Ports: port},
		simverbs.DeviceSpec{Name: "mlx5_1", Ports: port, Accessible: syscall.EACCES},
	).Process("p")
}

// proves
func TestFailedAndPausedSlotsKeepTheirNumbers(t *testing.T) {
	p := hostOf(newFabric(simverbs.Hardware, 1))
	slots, err := verbs.Discover(p, verbs.Filter{}, verbs.Pins{})
	if err != nil || len(slots) != 4 {
		t.Fatal(err)
	}
	for i, want := range []string{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_10"} {
		if slots[i].Info.Name != want {
			t.Errorf("NIC %d is %s, want %s", i, slots[i].Info.Name, want)
		}
		if c := slots[i].Context; c != nil && c.NIC() != i {
			t.Errorf("%s believes to be NIC %d", want, c.NIC())
		}
	}
	if state, why := slots[0].Context.State(); state != verbs.Paused || !strings.Contains(why, "down") {
		t.Errorf("inactive port: %s, %q", state, why)
	}
	if slots[1].Context != nil || !errors.Is(slots[1].Err, syscall.EACCES) || !errors.Is(slots[1].Err, verbs.ErrSelection) {
		t.Errorf("%+v", slots[1])
	}
	if state, _ := slots[2].Context.State(); state != verbs.Active || slots[2].Context.Route().GID.Index != 1 {
		t.Errorf("%s over %s", state, slots[2].Context.Route())
	}
	for _, s := range slots {
		if s.Context != nil {
			if err := s.Context.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if !p.Live().Empty() {
		t.Errorf("%+v", p.Live())
	}
}

// proves R-1
func TestAPinIsOpenedStrictly(t *testing.T) {
	p := hostOf(newFabric(simverbs.Hardware, 1))
	slots, err := verbs.Discover(p, verbs.Filter{}, verbs.PinDevice("mlx5_2"))
	if err != nil || len(slots) != 1 || slots[0].Context.Route().GID.Index != 0 {
		t.Fatalf("%+v %v", slots, err)
	}
	if err := slots[0].Context.Close(); err != nil {
		t.Fatal(err)
	}
	port, index := uint8(2), 9
	for want, pins := range map[string]verbs.Pins{
		"port 2":        {Device: "mlx5_2", Port: &port},
		"GID index 9":   {Device: "mlx5_2", GIDIndex: &index},
		"may not open":  {Device: "mlx5_1"},
		`"mlx5_7"`:      {Device: "mlx5_7"},
		"process sees ": {Device: "mlx5_7"},
	} {
		slots, err := verbs.Discover(p, verbs.Filter{}, pins)
		if !errors.Is(err, verbs.ErrSelection) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
		for _, s := range slots {
			if s.Context != nil {
				t.Error("a context in place of the pinned one")
			}
		}
	}
	if !p.Live().Empty() {
		t.Errorf("%+v", p.Live())
	}
}

// proves R-2
func TestPartialConstructionIsUndoneOrKeptAndFenced(t *testing.T) {
	for _, call := range []string{"ibv_open_device", "ibv_query_device", "ibv_query_port", "ibv_query_gid_ex"} {
		for _, stuck := range []bool{false, true} {
			f := newFabric(simverbs.Hardware, 1)
			p := f.Host("h").Process("p")
			twin := &tamper{Calls: p, refuse: func(c string) error {
				if c == call || stuck && c == "ibv_close_device" {
					return errno(c, syscall.EIO)
				}
				return nil
			}}
			devices, _ := p.Devices()
			context, err := verbs.Open(twin, 3, devices[0], verbs.Pins{})
			if !errors.Is(err, syscall.EIO) {
				t.Fatalf("%s: %v", call, err)
			}
			if kept := stuck && call != "ibv_open_device"; kept != (context != nil) || kept == p.Live().Empty() {
				t.Fatalf("%s, stuck %v: context %v, alive %+v", call, stuck, context, p.Live())
			}
			if context == nil {
				continue
			}
			if state, why := context.State(); state != verbs.Fenced || !strings.Contains(why, call) {
				t.Errorf("%s %q", state, why)
			}
			if _, err := context.AllocateDomain(1); !errors.Is(err, verbs.ErrFenced) {
				t.Error(err)
			}
			if len(context.Retained()) != 1 || !errors.Is(context.Close(), verbs.ErrRetained) {
				t.Error("not listed as retained")
			}
		}
	}
}

// proves R-2
func TestOnePortThatFailsDoesNotHideTheOther(t *testing.T) {
	f := newFabric(simverbs.Hardware, 1)
	p := f.Host("h", simverbs.DeviceSpec{Name: "mlx5_0", Ports: []simverbs.PortSpec{
		{Network: "a", Down: true}, {Network: "b", GIDs: []verbs.GIDEntry{}}, {Network: "c"}, {Network: "d"},
	}}).Process("p")
	devices, _ := p.Devices()
	c, err := verbs.Open(p, 0, devices[0], verbs.Pins{})
	if err != nil || c.Route().Port != 3 {
		t.Fatalf("%v %v", c, err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// proves
func TestRouteRecoversUnderTheSameDomainAndRegionsWhenOldPairsAreGone(t *testing.T) {
	everywhere(t, func(t *testing.T, f *simverbs.Fabric) {
		a, b := newEnd(t, f, "a", 64), newEnd(t, f, "b", 64)
		qa, qb := connect(a, b, 4)
		device := a.context.Device().Name
		port := f.Host("a").Device(device).Port(1)
		old := a.context.Route()
		moved := old.GID
		moved.Index = 5
		port.RemoveGID(old.GID.Index)
		port.SetGID(moved)
		v, err := a.context.Refresh()
		if err != nil || v.Keep || !strings.Contains(v.Why, "is empty") {
			t.Fatalf("%+v %v", v, err)
		}
		a.context.Pause(v.Why)
		if _, err := a.domain.CreatePair(verbs.PairPlan{Sends: a.sends, Receives: a.recvs, SendDepth: 1, ReceiveDepth: 1}); !errors.Is(err, verbs.ErrFenced) || !strings.Contains(err.Error(), "paused") {
			t.Fatalf("a pair on a paused context: %v", err)
		}
		paused, err := a.domain.Register(addressOf(a.memory), 4096, verbs.AccessLocalWrite)
		a.check(err)
		if v, err = a.context.Refresh(); err != nil || !v.Usable || v.Route.GID != moved {
			t.Fatalf("%+v %v", v, err)
		}
		if err := a.context.Resume(v.Route); !errors.Is(err, verbs.ErrBusy) || !strings.Contains(err.Error(), "1 queue pairs of the old route") {
			t.Fatal(err)
		}
		a.check(qa.Drain())
		settle(f)
		a.poll()
		a.check(qa.Detach())
		a.check(qa.Destroy())
		a.check(a.context.Resume(v.Route))
		if state, _ := a.context.State(); state != verbs.Active || a.context.Route().GID != moved {
			t.Fatal(state, a.context.Route())
		}
		if v, err := a.context.Refresh(); err != nil || !v.Keep {
			t.Fatalf("%+v %v", v, err)
		}
		q2, p2 := connect(a, b, 4)
		a.check(q2.PostSend([]verbs.Work{send(1, a, 0, 0, verbs.Write)}))
		if got := a.one(f); got.Status != verbs.WorkSuccess {
			t.Fatalf("%+v", got)
		}
		a.check(paused.Destroy())
		a.check(a.closeAll(f, nil, q2))
		b.check(b.closeAll(f, nil, qb, p2))
		if live := f.Live(); len(live) > 0 {
			t.Fatal(live)
		}
	})
}

// proves R-19
func TestEventsReachWhatTheyName(t *testing.T) {
	f := newFabric(simverbs.Hardware, 2)
	a := newEnd(t, f, "a", 64)
	port := f.Host("a").Device(a.context.Device().Name).Port(1)
	port.Down()
	event, ok, err := a.context.NextEvent()
	if err != nil || !ok || event.Kind.Reach() != verbs.ReachPort {
		t.Fatalf("%+v %v %v", event, ok, err)
	}
	if v, err := a.context.Refresh(); err != nil || v.Keep || v.Usable || !strings.Contains(v.Why, "down") {
		t.Fatalf("%+v %v", v, err)
	}
	q := a.pair(4)
	a.check(q.Attach())
	if a.sends.Touch(verbs.AsyncEvent{Kind: verbs.AsyncQueueError, Queue: 1 << 40}) || q.Fenced() != "" {
		t.Fatal("another queue's error reached this one")
	}
	if !touchAny(a, verbs.AsyncPairFatal) || q.Fenced() != "queue pair fatal" {
		t.Fatalf("%q", q.Fenced())
	}
	a.tamper.refuse = refusing("ibv_get_async_event", 0)
	if _, _, err := a.context.NextEvent(); err == nil {
		t.Fatal("no error")
	}
	if state, why := a.context.State(); state != verbs.Fenced || !strings.Contains(why, "events cannot be read") {
		t.Fatal(state, why)
	}
	if err := a.context.Resume(a.context.Route()); !errors.Is(err, verbs.ErrFenced) {
		t.Fatal(err)
	}
	a.check(a.closeAll(f, nil, q))
}

// touchAny offers an event about each of the first handles that the twin gave out.
func touchAny(e *end, kind verbs.AsyncKind) bool {
	for h := range 100 {
		if e.sends.Touch(verbs.AsyncEvent{Kind: kind, Pair: verbs.PairHandle(h)}) {
			return true
		}
	}
	return false
}

// proves R-19
func TestFatalDeviceStaysFenced(t *testing.T) {
	f := newFabric(simverbs.Hardware, 2)
	a := newEnd(t, f, "a", 64)
	f.Host("a").Device(a.context.Device().Name).Remove()
	for {
		event, ok, err := a.context.NextEvent()
		if err != nil || !ok {
			t.Fatalf("no fatal event: %v", err)
		}
		if event.Kind == verbs.AsyncDeviceFatal {
			break
		}
	}
	if state, why := a.context.State(); state != verbs.Fenced || why != "device fatal" {
		t.Fatal(state, why)
	}
	a.context.Pause("later")
	if state, why := a.context.State(); state != verbs.Fenced || why != "device fatal" {
		t.Fatal(state, why)
	}
}

// field case F-56
func TestRegionStaysUntilItsUsersReturnIt(t *testing.T) {
	f := newFabric(simverbs.Hardware, 2)
	a := newEnd(t, f, "a", 64)
	r, err := a.domain.Register(addressOf(a.memory), 100, verbs.AccessLocalWrite)
	a.check(err)
	if !r.Covers(addressOf(a.memory)+99, 1) || r.Covers(addressOf(a.memory)+99, 2) || r.Covers(addressOf(a.memory)-1, 1) || r.Covers(addressOf(a.memory)+50, 1<<64-1) {
		t.Fatal("Covers is wrong about its ends")
	}
	if !r.Lend() || r.Uses() != 1 {
		t.Fatal("not lent")
	}
	r.Retire()
	if r.Lend() || r.Uses() != 1 || !errors.Is(r.Destroy(), verbs.ErrBusy) {
		t.Fatal("a retired region takes users, or ends under one")
	}
	r.Return()
	mustPanic(t, "0 users", "1 or more", r.Return)
	r2, err := a.domain.Register(addressOf(a.memory), 100, verbs.AccessLocalWrite)
	a.check(err)
	if !r2.Lend() {
		t.Fatal("not lent")
	}
	var busy *verbs.BusyError
	if err := r2.Destroy(); !errors.As(err, &busy) || busy.Kept || r2.Lend() {
		t.Fatalf("%v, and it may still be lent", err)
	}
	r2.RetainUse()
	if err := r2.Destroy(); !errors.As(err, &busy) || !busy.Kept {
		t.Fatal(err)
	}
	if listed := a.context.Retained(); len(listed) != 1 {
		t.Fatalf("%+v", listed)
	}
}

func TestAddressOfAConnectionNamesThePortOfThePair(t *testing.T) {
	f := newFabric(simverbs.Hardware, 2)
	a, b := newEnd(t, f, "a", 64), newEnd(t, f, "b", 64)
	spy := &moves{Calls: a.process}
	a.tamper.Calls = spy
	qa, qb := connect(a, b, 4)
	if len(spy.ports) != 3 || spy.ports[0] != 1 || spy.ports[1] != 1 { // soft-RoCE refuses port 0 there
		t.Fatalf("ports of the moves: %v", spy.ports)
	}
	a.check(a.closeAll(f, nil, qa))
	b.check(b.closeAll(f, nil, qb))
}

type moves struct {
	verbs.Calls
	ports []uint8
}

func (m *moves) ModifyPair(h verbs.PairHandle, t verbs.Transition) error {
	if t.To != verbs.PairError {
		m.ports = append(m.ports, t.Port)
	}
	return m.Calls.ModifyPair(h, t)
}
