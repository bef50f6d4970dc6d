//go:build cgo && !vm

package libibverbs

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/orbitte/orbitte/verbs"
)

// transition fills in everything; the stand-in checks that exactly the state's own arrives.
var transition = verbs.Transition{
	Port: 3, Access: verbs.AccessRemoteWrite | verbs.AccessRemoteRead,
	Remote: 0xabcdef, ReceiveStart: 0x123456, MTU: 2048, SourceGID: 5, RemoteGID: verbs.GID{0: 0xfd, 15: 9}, RemoteLID: 77,
	HopLimit: 64, TrafficClass: 104, ServiceLevel: 2, ReadsAnswered: 8, ReceiverNotReady: 12,
	SendStart: 0x654321, Timeout: 14, Retries: 6, NotReadyRetries: 5, ReadsAsked: 7,
}

func TestTransitionsCarryWhatTheirStateNeeds(t *testing.T) {
	b := newBench(t)
	for _, to := range []verbs.PairState{
		verbs.PairReset, verbs.PairInit, verbs.PairReadyToReceive, verbs.PairReadyToSend, verbs.PairDraining, verbs.PairError,
	} {
		now := transition
		now.To = to
		if err := b.l.ModifyPair(b.pair, now); err != nil {
			t.Errorf("to %d: %v", to, err)
		}
		if got, err := b.l.QueryPair(b.pair); got != to || err != nil {
			t.Errorf("the pair is in %d (%v), want %d", got, err, to)
		}
	}
	for _, wrong := range []verbs.Transition{{MTU: 1000}, {MTU: 0}, {MTU: 1024, SourceGID: 256}} {
		wrong.To = verbs.PairReadyToReceive
		if err := b.l.ModifyPair(b.pair, wrong); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
}

// A failing is one function of the library that fails, and the call that shows it.
type failing struct {
	function string // as the stand-in calls it
	reported string // the call in the error
	null     bool   // it says so by NULL
	call     func(*bench) error
}

var failings = []failing{
	{"ibv_get_device_list", "ibv_get_device_list", true, func(b *bench) error { _, err := b.l.Devices(); return err }},
	{"ibv_open_device", "ibv_open_device", true, func(b *bench) error { _, err := b.l.OpenDevice("fake0"); return err }},
	{"ibv_close_device", "ibv_close_device", false, func(b *bench) error { return b.l.CloseDevice(b.device) }},
	{"ibv_query_device", "ibv_query_device", false, func(b *bench) error { _, err := b.l.DeviceLimits(b.device); return err }},
	{"query_port", "ibv_query_port", false, func(b *bench) error { _, err := b.l.Port(b.device, 1); return err }},
	{"_ibv_query_gid_table", "ibv_query_gid_table", false, func(b *bench) error { _, err := b.l.GIDs(b.device, 1); return err }},
	{"ibv_alloc_pd", "ibv_alloc_pd", true, func(b *bench) error { _, err := b.l.AllocateDomain(b.device); return err }},
	{"ibv_dealloc_pd", "ibv_dealloc_pd", false, func(b *bench) error { return b.l.FreeDomain(b.domain) }},
	{"ibv_create_comp_channel", "ibv_create_comp_channel", true, func(b *bench) error { _, err := b.l.CreateChannel(b.device); return err }},
	{"ibv_destroy_comp_channel", "ibv_destroy_comp_channel", false, func(b *bench) error { return b.l.DestroyChannel(b.channel) }},
	{"ibv_create_cq", "ibv_create_cq", true, func(b *bench) error { _, err := b.l.CreateQueue(b.device, 1, 0); return err }},
	{"ibv_destroy_cq", "ibv_destroy_cq", false, func(b *bench) error { return b.l.DestroyQueue(b.sends) }},
	{"ibv_create_qp", "ibv_create_qp", true, func(b *bench) error {
		_, _, err := b.l.CreatePair(b.domain, verbs.PairOptions{Sends: b.sends, Receives: b.receives})
		return err
	}},
	{"ibv_modify_qp", "ibv_modify_qp", false, func(b *bench) error { return b.l.ModifyPair(b.pair, verbs.Transition{To: verbs.PairError}) }},
	{"ibv_query_qp", "ibv_query_qp", false, func(b *bench) error { _, err := b.l.QueryPair(b.pair); return err }},
	{"ibv_destroy_qp", "ibv_destroy_qp", false, func(b *bench) error { return b.l.DestroyPair(b.pair) }},
	{"ibv_reg_mr", "ibv_reg_mr", true, func(b *bench) error { _, _, _, err := b.l.Register(b.domain, 4096, 1, 0); return err }},
	{"ibv_reg_mr_iova2", "ibv_reg_mr", true, func(b *bench) error {
		_, _, _, err := b.l.Register(b.domain, 4096, 1, verbs.AccessRelaxed)
		return err
	}},
	{"ibv_reg_dmabuf_mr", "ibv_reg_dmabuf_mr", true, func(b *bench) error {
		_, _, _, err := b.l.RegisterDescriptor(b.domain, 0, 1, 4096, 3, 0)
		return err
	}},
	{"alloc_mw", "ibv_alloc_mw", true, func(b *bench) error { _, _, err := b.l.AllocateWindow(b.domain); return err }},
	{"req_notify_cq", "ibv_req_notify_cq", false, func(b *bench) error { return b.l.Arm(b.sends) }},
	{"ibv_get_cq_event", "ibv_get_cq_event", false, func(b *bench) error { _, _, err := b.l.NextEvent(b.channel); return err }},
	{"ibv_get_async_event", "ibv_get_async_event", false, func(b *bench) error { _, _, err := b.l.NextAsync(b.device); return err }},
}

func TestEachFailureIsACallErrorWithItsErrno(t *testing.T) {
	b := newBench(t)
	region, _, _, err := b.l.Register(b.domain, 4096, 1, 0)
	check(t, err)
	window, _, err := b.l.AllocateWindow(b.domain)
	check(t, err)
	all := append([]failing{
		{"ibv_dereg_mr", "ibv_dereg_mr", false, func(b *bench) error { return b.l.Deregister(region) }},
		{"dealloc_mw", "ibv_dealloc_mw", false, func(b *bench) error { return b.l.FreeWindow(window) }},
	}, failings...)
	for _, f := range all {
		ways := map[string]syscall.Errno{"-1:16": syscall.EBUSY, "-1:0": syscall.EIO}
		readsErrno := f.null || strings.HasPrefix(f.function, "ibv_get_") // these never return an errno
		if !readsErrno {
			ways["16:0"], ways["-16:0"] = syscall.EBUSY, syscall.EBUSY
			if f.function == "_ibv_query_gid_table" {
				delete(ways, "16:0") // a count
			}
		}
		for way, want := range ways {
			t.Setenv("FAKE_FAIL", f.function+":"+way)
			err := f.call(b)
			t.Setenv("FAKE_FAIL", "")
			var native *verbs.CallError
			if !errors.As(err, &native) || native.Call != f.reported || native.Errno != want || native.Object == "" {
				t.Errorf("%s, %s: got %v, want %s of errno %d", f.function, way, err, f.reported, int(want))
			}
		}
		if f.null && f.call(b) != nil {
			t.Errorf("%s: it fails also when the library does not", f.function)
		}
	}
	check(t, b.l.Deregister(region))
	check(t, b.l.FreeWindow(window))
}

func TestZeroHandlesAreRefusedAndNotFollowed(t *testing.T) {
	l := loadFake(t)
	one := []verbs.SendWork{{Operation: verbs.Write}}
	for name, call := range map[string]func() error{
		"CloseDevice":     func() error { return l.CloseDevice(0) },
		"DeviceLimits":    func() error { _, err := l.DeviceLimits(0); return err },
		"Port":            func() error { _, err := l.Port(0, 1); return err },
		"GIDs":            func() error { _, err := l.GIDs(0, 1); return err },
		"NextAsync":       func() error { _, _, err := l.NextAsync(0); return err },
		"AllocateDomain":  func() error { _, err := l.AllocateDomain(0); return err },
		"FreeDomain":      func() error { return l.FreeDomain(0) },
		"CreateChannel":   func() error { _, err := l.CreateChannel(0); return err },
		"NextEvent":       func() error { _, _, err := l.NextEvent(0); return err },
		"CreateQueue":     func() error { _, err := l.CreateQueue(0, 1, 0); return err },
		"Arm":             func() error { return l.Arm(0) },
		"CreatePair":      func() error { _, _, err := l.CreatePair(0, verbs.PairOptions{}); return err },
		"ModifyPair":      func() error { return l.ModifyPair(0, verbs.Transition{}) },
		"QueryPair":       func() error { _, err := l.QueryPair(0); return err },
		"Register":        func() error { _, _, _, err := l.Register(0, 1, 1, 0); return err },
		"Descriptor":      func() error { _, _, _, err := l.RegisterDescriptor(0, 0, 1, 1, 1, 0); return err },
		"AllocateWindow":  func() error { _, _, err := l.AllocateWindow(0); return err },
		"FreeWindow":      func() error { return l.FreeWindow(0) },
		"PostSend":        func() error { _, err := l.PostSend(0, one); return err },
		"PostReceive":     func() error { _, err := l.PostReceive(0, []verbs.ReceiveWork{{}}); return err },
		"AsyncDescriptor": func() error { return descriptorError(l.AsyncDescriptor(0)) },
		"Channel":         func() error { return descriptorError(l.ChannelDescriptor(0)) },
	} {
		if err := call(); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s of nothing: %v", name, err)
		}
	}
}

func descriptorError(descriptor int) error {
	if descriptor == -1 {
		return syscall.EINVAL
	}
	return fmt.Errorf("descriptor %d", descriptor)
}

func TestLimitsAndPortsAreTranslated(t *testing.T) {
	b := newBench(t)
	limits, err := b.l.DeviceLimits(b.device)
	check(t, err)
	want := verbs.Limits{
		Firmware: "1.2.3", Pairs: 11, PairWork: 12, SGE: 13, Queues: 14, QueueDepth: 15, Regions: 16, Windows: 17, Domains: 18,
		ReadAtomic: 19, RegionBytes: 1 << 40, Ports: 2, WindowsType2B: true, RelaxedOrdering: true,
	}
	if limits != want {
		t.Errorf("got %+v, want %+v", limits, want)
	}
	port := verbs.PortInfo{State: verbs.PortActive, Ethernet: true, MTU: 1024, GIDs: 8, LID: 7, MaxMessage: 1 << 30, BitsPerSecond: 100e9}
	if got, err := b.l.Port(b.device, 2); got != port || err != nil {
		t.Errorf("got %+v (%v), want %+v", got, err, port)
	}
	t.Setenv("FAKE_PLAIN", "1") // an old context has no query_port of its own
	plain, err := b.l.OpenDevice("fake0")
	check(t, err)
	if got, err := b.l.Port(plain, 2); got != port || err != nil {
		t.Errorf("by the old function: got %+v (%v), want %+v", got, err, port)
	}
	t.Setenv("FAKE_FAIL", "ibv_query_port:22:0")
	if _, err := b.l.Port(plain, 2); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("by the old function, failing: %v", err)
	}
	t.Setenv("FAKE_FAIL", "")
	check(t, b.l.CloseDevice(plain))
}

func TestRegistrationTakesTheFunctionThatItsAccessNeeds(t *testing.T) {
	const plain, relaxed = verbs.AccessLocalWrite | verbs.AccessWindowBind, verbs.AccessLocalWrite | verbs.AccessRelaxed
	for _, old := range []bool{false, true} {
		var flags []string
		if old {
			flags = []string{"-DOLD"}
		}
		b := newBench(t, flags...)
		register := func(a verbs.Access) (access verbs.LocalKey, function verbs.RemoteKey) {
			h, access, function, err := b.l.Register(b.domain, 4096, 100, a)
			check(t, err)
			check(t, b.l.Deregister(h))
			return access, function
		}
		if a, f := register(plain); a != verbs.LocalKey(plain) || f != 1 {
			t.Errorf("old %v, plain: access %#x by function %d", old, a, f)
		}
		want, by := verbs.LocalKey(relaxed), verbs.RemoteKey(2)
		if old { // the flag is optional: without the function it is left out
			want, by = verbs.LocalKey(verbs.AccessLocalWrite), 1
		}
		if a, f := register(relaxed); a != want || f != by {
			t.Errorf("old %v, relaxed: access %#x by function %d", old, a, f)
		}
		h, _, key, err := b.l.RegisterDescriptor(b.domain, 2, 100, 4096, 3, plain)
		if old {
			if !errors.Is(err, syscall.EOPNOTSUPP) {
				t.Errorf("a descriptor with an old library: %v", err)
			}
			continue
		}
		if err != nil || key != 2<<8+3 {
			t.Errorf("a descriptor: %v, it arrived as %#x", err, key)
			continue
		}
		check(t, b.l.Deregister(h))
	}
}
