//go:build cgo

package libibverbs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/verbs"
)

// installed loads the real library and finds a device with an active port; the soft-RoCE gate brings two.
func installed(t testing.TB) (*library, verbs.DeviceInfo) {
	t.Helper()
	l, err := load("libibverbs.so.1")
	if errors.Is(err, ErrNoLibrary) {
		t.Skipf("library: %v", err)
	}
	check(t, err)
	devices, err := l.Devices()
	check(t, err)
	for _, d := range devices {
		if d.Accessible != nil {
			continue
		}
		h := must(l.OpenDevice(d.Name))(t)
		port, err := l.Port(h, 1)
		check(t, errors.Join(err, l.CloseDevice(h)))
		if port.State == verbs.PortActive && port.Ethernet {
			return l, d
		}
	}
	t.Skip("device: no accessible RDMA device with an active Ethernet port here; make vm has two")
	return nil, verbs.DeviceInfo{}
}

func TestRealDevicesAndGIDsAreThoseOfSysfs(t *testing.T) {
	l, _ := installed(t)
	devices := must(l.Devices())(t)
	names := must(os.ReadDir("/sys/class/infiniband"))(t)
	if len(names) != len(devices) {
		t.Errorf("%d devices, sysfs has %d", len(devices), len(names))
	}
	for _, d := range devices {
		if d.SysfsPath != "/sys/class/infiniband/"+d.Name || d.GUID == 0 {
			t.Errorf("device %+v", d)
		}
		h := must(l.OpenDevice(d.Name))(t)
		limits := must(l.DeviceLimits(h))(t)
		if limits.Ports < 1 || limits.Pairs < 1 || limits.QueueDepth < 1 || limits.Regions < 1 || limits.RegionBytes == 0 || limits.ReadAtomic < 1 {
			t.Errorf("%s: limits %+v", d.Name, limits)
		}
		for port := range limits.Ports {
			info := must(l.Port(h, uint8(port+1)))(t)
			got := must(l.GIDs(h, uint8(port+1)))(t)
			want := sysfsGIDs(d.SysfsPath, uint8(port+1), info.GIDs)
			if !slices.Equal(got, want) || len(got) == 0 {
				t.Errorf("%s port %d:\n%+v\nsysfs has\n%+v", d.Name, port+1, got, want)
			}
			t.Logf("%s: %+v, port %d %+v, %d GIDs", d.Name, limits, port+1, info, len(got))
		}
		if _, err := l.Port(h, uint8(limits.Ports+1)); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: a port too many: %v", d.Name, err)
		}
		if _, ok, err := l.NextAsync(h); ok || err != nil {
			t.Errorf("%s: an event of its own: %v, %v", d.Name, ok, err)
		}
		check(t, l.CloseDevice(h))
	}
}

// software says that a device is none of hardware, so that a test may disturb it.
func software(t *testing.T, d verbs.DeviceInfo) {
	t.Helper()
	if d.PCI != "" {
		t.Skipf("hardware: %s is a real adapter; this test changes its node's permission and is for soft-RoCE", d.Name)
	}
}

func TestARealDeviceWithoutPermissionIsListedAndSaysSo(t *testing.T) {
	_, d := installed(t)
	software(t, d)
	if first := word("/sys/class/infiniband_verbs/uverbs0/ibdev"); first != d.Name {
		t.Skipf("device: the first node is of %q, not of %s", first, d.Name)
	}
	node := filepath.Join(nodeFolder, "uverbs0")
	before := must(os.Stat(node))(t).Mode()
	check(t, os.Chmod(node, 0o600))
	t.Cleanup(func() { check(t, os.Chmod(node, before)) })
	asNobody(t, "open", "DEVICE="+d.Name)
}

func childOpen() error {
	l, err := load("libibverbs.so.1")
	if err != nil {
		return err
	}
	devices, err := l.Devices()
	if err != nil {
		return err
	}
	name := os.Getenv("DEVICE")
	i := slices.IndexFunc(devices, func(d verbs.DeviceInfo) bool { return d.Name == name })
	if i < 0 {
		return fmt.Errorf("%s is not listed: %+v", name, devices)
	}
	_, err = l.OpenDevice(name)
	var p *Permission
	for _, err := range []error{devices[i].Accessible, err} {
		if !errors.Is(err, ErrPermission) || !errors.Is(err, syscall.EACCES) || !errors.As(err, &p) || p.Node != "/dev/infiniband/uverbs0" {
			return fmt.Errorf("it does not name the node: %w", err)
		}
	}
	var native *verbs.CallError
	if !errors.As(err, &native) || native.Call != "ibv_open_device" {
		return fmt.Errorf("it hides the call: %w", err)
	}
	return nil
}

// field case F-62
func TestARealRegistrationAboveTheMemlockLimitNamesIt(t *testing.T) {
	_, d := installed(t)
	asNobody(t, "register", "LIBRARY=libibverbs.so.1", "DEVICE="+d.Name)
}

// A loop is a pair of a real device connected with itself, with registered memory.
type loop struct {
	bench
	memory  []byte
	region  verbs.RegionHandle
	local   verbs.LocalKey
	remote  verbs.RemoteKey
	ownPair verbs.PairNumber
}

const loopDepth = 128

func newLoop(t testing.TB) *loop {
	t.Helper()
	l, d := installed(t)
	k := &loop{bench: bench{l: l}}
	k.device = must(l.OpenDevice(d.Name))(t)
	k.domain = must(l.AllocateDomain(k.device))(t)
	k.channel = must(l.CreateChannel(k.device))(t)
	k.sends = must(l.CreateQueue(k.device, 1024, k.channel))(t)
	k.receives = must(l.CreateQueue(k.device, 1024, k.channel))(t)
	var err error
	k.pair, k.ownPair, err = l.CreatePair(k.domain, verbs.PairOptions{Sends: k.sends, Receives: k.receives, SendDepth: loopDepth, ReceiveDepth: loopDepth})
	check(t, err)
	k.memory, err = unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	check(t, err)
	const all = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessWindowBind
	k.region, k.local, k.remote, err = l.Register(k.domain, addressOf(k.memory), uint64(len(k.memory)), all)
	check(t, err)
	k.connect(t)
	t.Cleanup(func() {
		check(t, l.ModifyPair(k.pair, verbs.Transition{To: verbs.PairError}))
		check(t, l.DestroyPair(k.pair))
		check(t, l.Deregister(k.region))
		check(t, errors.Join(l.DestroyQueue(k.sends), l.DestroyQueue(k.receives), l.DestroyChannel(k.channel), l.FreeDomain(k.domain), l.CloseDevice(k.device)))
		check(t, unix.Munmap(k.memory))
	})
	return k
}

func (k *loop) connect(t testing.TB) {
	t.Helper()
	gids := must(k.l.GIDs(k.device, 1))(t)
	i := slices.IndexFunc(gids, func(g verbs.GIDEntry) bool { return g.Type == verbs.GIDRoCEv2 })
	if i < 0 {
		t.Skip("device: no RoCE v2 address")
	}
	for _, now := range []verbs.Transition{
		{To: verbs.PairInit, Port: 1, Access: verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessLocalWrite},
		{
			To: verbs.PairReadyToReceive, Port: 1, Remote: k.ownPair, ReceiveStart: 7, MTU: 1024, SourceGID: gids[i].Index, RemoteGID: gids[i].GID,
			HopLimit: 64, ReadsAnswered: 4, ReceiverNotReady: 12,
		},
		{To: verbs.PairReadyToSend, SendStart: 7, Timeout: 14, Retries: 3, NotReadyRetries: 3, ReadsAsked: 4},
	} {
		check(t, k.l.ModifyPair(k.pair, now))
		if got := must(k.l.QueryPair(k.pair))(t); got != now.To {
			t.Fatalf("the pair is in %d, want %d", got, now.To)
		}
	}
}

// take polls until so many sends and receives came.
func (k *loop) take(t testing.TB, sends, receives int) (s, r []verbs.Completion) {
	t.Helper()
	until(t, fmt.Sprintf("%d and %d completions", sends, receives), func() bool {
		more, others := k.takeAll(t)
		s, r = append(s, more...), append(r, others...)
		return len(s) >= sends && len(r) >= receives
	})
	for _, c := range slices.Concat(s, r) {
		if c.Status != verbs.WorkSuccess || c.Pair != k.ownPair {
			t.Fatalf("completion %+v", c)
		}
	}
	return s, r
}

func TestARealDeviceTakesListsAndGivesTheirCompletionsInOrder(t *testing.T) {
	k := newLoop(t)
	base := addressOf(k.memory)
	const n, piece = 100, 1000 // several lists of the binding
	var work []verbs.SendWork
	for i := range n {
		for j := range piece {
			k.memory[i*piece+j] = byte(i + j)
		}
		work = append(work, verbs.SendWork{
			ID: uint64(i) + 1, Operation: verbs.Write, Flags: verbs.Signaled, Address: base + uint64(i*piece), Length: piece, LocalKey: k.local,
			Remote: base + 500_000 + uint64(i*piece), RemoteKey: k.remote,
		})
	}
	if got, err := k.l.PostSend(k.pair, work); got != n || err != nil {
		t.Fatal(got, err)
	}
	sent, _ := k.take(t, n, 0)
	if !slices.Equal(ids(sent), count(n)) || sent[0].Operation != verbs.CompletedWrite {
		t.Errorf("completions %v, the first %+v", ids(sent), sent[0])
	}
	if !slices.Equal(k.memory[:n*piece], k.memory[500_000:500_000+n*piece]) {
		t.Error("the bytes differ")
	}
}

func TestARealDeviceRaisesOneEventForAnArmedQueue(t *testing.T) {
	k := newLoop(t)
	if q, ok, err := k.l.NextEvent(k.channel); ok || err != nil {
		t.Fatal(q, ok, err)
	}
	check(t, k.l.Arm(k.receives))
	if n, err := k.l.PostReceive(k.pair, receives(3)); n != 3 || err != nil { // of address 0: messages are empty
		t.Fatal(n, err)
	}
	work := []verbs.SendWork{{ID: 1, Operation: verbs.Send, Flags: verbs.Signaled}, {ID: 2, Operation: verbs.Send, Flags: verbs.Signaled}}
	if n, err := k.l.PostSend(k.pair, work); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	var queue verbs.QueueHandle
	until(t, "an event", func() bool {
		q, ok, err := k.l.NextEvent(k.channel)
		check(t, err)
		queue = q
		return ok
	})
	if queue != k.receives {
		t.Errorf("the event names %#x, want the queue of receives %#x", queue, k.receives)
	}
	_, received := k.take(t, 2, 2)
	if received[0].Operation != verbs.CompletedReceive || received[0].Length != 0 {
		t.Errorf("received %+v", received)
	}
	if _, ok, err := k.l.NextEvent(k.channel); ok || err != nil {
		t.Error("a second event:", ok, err)
	}
}

func TestARealWindowIsBoundAgainAndAgain(t *testing.T) {
	k := newLoop(t)
	limits := must(k.l.DeviceLimits(k.device))(t)
	if !limits.WindowsType2B {
		t.Skip("device: no memory windows of type 2B")
	}
	window, key, err := k.l.AllocateWindow(k.domain)
	check(t, err)
	base := addressOf(k.memory)
	for round := range 20 {
		key = key&^0xff | verbs.RemoteKey(uint8(key)+1)
		work := []verbs.SendWork{
			{ID: 1, Operation: verbs.BindWindow, Flags: verbs.Signaled, Window: window, Region: k.region, Remote: base + 8192, Span: 4096, RemoteKey: key, Access: verbs.AccessRemoteWrite},
			{ID: 2, Operation: verbs.Write, Flags: verbs.Signaled, Address: base, Length: 4096, LocalKey: k.local, Remote: base + 8192, RemoteKey: key},
			{ID: 3, Operation: verbs.LocalInvalidate, Flags: verbs.Signaled | verbs.Fence, RemoteKey: key},
		}
		if round%2 == 1 { // two binds in one call
			again := slices.Clone(work)
			key = key&^0xff | verbs.RemoteKey(uint8(key)+1)
			for i := range again {
				again[i].RemoteKey = key
			}
			work = append(work, again...)
		}
		k.memory[0] = byte(round + 1)
		if n, err := k.l.PostSend(k.pair, work); n != len(work) || err != nil {
			t.Fatal(n, err)
		}
		sent, _ := k.take(t, len(work), 0)
		if sent[0].Operation != verbs.CompletedBind || sent[1].Operation != verbs.CompletedWrite || sent[2].Operation != verbs.CompletedLocalInvalidate {
			t.Errorf("round %d: %+v", round, sent)
		}
		if k.memory[8192] != byte(round+1) {
			t.Errorf("round %d: the window's bytes did not arrive", round)
		}
	}
	check(t, k.l.FreeWindow(window))
}

// proves R-17
func TestARealDeviceSaysWhichWorkDidNotFit(t *testing.T) {
	k := newLoop(t)
	work := receives(4 * loopDepth)
	n, err := k.l.PostReceive(k.pair, work)
	if n < loopDepth || n >= len(work) || err == nil {
		t.Fatalf("of %d receives %d were taken: %v", len(work), n, err)
	}
	if n2, err := k.l.PostReceive(k.pair, work[:1]); n2 != 0 || err == nil {
		t.Errorf("after a full queue: %d, %v", n2, err)
	}
	check(t, k.l.ModifyPair(k.pair, verbs.Transition{To: verbs.PairError}))
	taken := 0
	until(t, "all flushed", func() bool {
		_, received := k.takeAll(t)
		for _, c := range received {
			taken++
			if c.ID != uint64(taken) || c.Status != verbs.WorkFlushed {
				t.Fatalf("the %d. is %+v", taken, c)
			}
		}
		return taken >= n
	})
	if taken != n {
		t.Errorf("%d were flushed, %d accepted", taken, n)
	}
}

func BenchmarkRealPollEmpty(b *testing.B) {
	k := newLoop(b)
	out := make([]verbs.Completion, 64)
	for b.Loop() {
		if sent, received, err := k.l.Poll(k.sends, k.receives, out); sent+received != 0 || err != nil {
			b.Fatal(sent, received, err)
		}
	}
}
