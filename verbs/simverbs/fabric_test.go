package simverbs_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

func TestTheSameSeedGivesTheSameRun(t *testing.T) {
	run := func(seed uint64) string {
		f := simverbs.NewFabric(seed, simverbs.Options{})
		a, b := couple(t, f)
		from, to := a.piece(50000, 1, everyone), b.piece(50000, 2, everyone)
		var trace strings.Builder
		for i := range 12 {
			a.post(writing(uint64(i), from, to, 1+i*4000))
			for range 5 + i {
				f.Step()
			}
			a.take()
			fmt.Fprintf(&trace, "%v %d %x\n", f.Now(), len(a.sent), bytes.Count(to.bytes, []byte{1}))
		}
		settle(f, a)
		fmt.Fprintf(&trace, "%v %v %d %#x", f.Now(), statuses(a.sent), a.number, to.remote)
		return trace.String()
	}
	seed := seedOf(t)
	first := run(seed)
	if again := run(seed); first != again {
		t.Errorf("two runs of seed %d differ:\n%s\n\n%s", seed, first, again)
	}
	if other := run(seed + 1); first == other {
		t.Error("another seed gives the same run")
	}
}

// A WRITE that fails half-way leaves some of its bytes, and no order of them is promised.
func TestAnUnfinishedWriteIsPartlyThere(t *testing.T) {
	partly, outOfOrder := 0, 0
	for seed := range uint64(40) {
		f := simverbs.NewFabric(seed, simverbs.Options{})
		a, b := couple(t, f)
		from, to := a.piece(64<<10, 1, everyone), b.piece(64<<10, 2, everyone)
		f.Plan(simverbs.Fault{Kind: simverbs.DropPair, Pair: 1, Index: 20})
		a.post(writing(1, from, to, 64<<10))
		settle(f, a)
		ended(t, a.sent, verbs.WorkRetryExceeded)
		n := bytes.Count(to.bytes, []byte{1})
		if n == 20*1024 {
			partly++
		}
		if bytes.Count(to.bytes[:n], []byte{1}) != n {
			outOfOrder++
		}
	}
	if partly != 40 || outOfOrder < 10 {
		t.Errorf("of 40 broken writes %d left 20 packets, %d out of order", partly, outOfOrder)
	}
}

func TestAKilledProcessLeavesNothingAndIsMissed(t *testing.T) {
	f := newFabric(t, simverbs.Options{})
	a, b := couple(t, f)
	from, to := a.piece(4096, 1, everyone), b.piece(4096, 2, everyone)
	a.post(writing(1, from, to, 4096))
	b.Kill()
	settle(f, a)
	ended(t, a.sent, verbs.WorkRetryExceeded)
	if bytes.Contains(to.bytes, []byte{1}) {
		t.Error("the memory of a killed process was written")
	}
	if !b.Live().Empty() {
		t.Errorf("a killed process has objects: %+v", b.Live())
	}
	if _, err := b.OpenDevice("mlx5_0"); !errors.Is(err, syscall.EIO) {
		t.Errorf("a killed process opens a device: %v", err)
	}
	if v := f.Violations(); len(v) != 0 {
		t.Errorf("calls of a killed process are violations: %v", v)
	}
	a.windUp(from)
	noneLive(t, f)
}

func TestDeviceRemovalFlushesAndLeavesDestroyCalls(t *testing.T) {
	f := newFabric(t, simverbs.Options{})
	a, b := couple(t, f)
	from, to := a.piece(64<<10, 1, everyone), b.piece(64<<10, 2, everyone)
	a.post(writing(1, from, to, 64<<10), writing(2, from, to, 64<<10))
	a.listen(verbs.ReceiveWork{ID: 3})
	for range 10 {
		f.Step()
	}
	f.Host("a").Device("mlx5_0").Remove()
	settle(f, a)
	ended(t, a.sent, flushed, flushed)
	ended(t, a.received, flushed)
	e, some, err := a.NextAsync(a.device)
	if err != nil || !some || e.Kind != verbs.AsyncDeviceFatal {
		t.Errorf("DEVICE_FATAL did not come: %+v %v %v", e, some, err)
	}
	if _, err := a.AllocateDomain(a.device); !errors.Is(err, syscall.EIO) {
		t.Errorf("a removed device makes domains: %v", err)
	}
	if list, err := a.Devices(); err != nil || len(list) != 1 {
		t.Errorf("a removed device is listed: %+v %v", list, err)
	}
	a.windUp(from)
	b.windUp(to)
	noneLive(t, f)
}

func TestPacketsThatAreLostAreSentAgain(t *testing.T) {
	for seed := range uint64(30) {
		f := simverbs.NewFabric(seed, simverbs.Options{})
		a, b := couple(t, f)
		from, to, back := a.piece(40000, 1, everyone), b.piece(40000, 2, everyone), a.piece(40000, 0, everyone)
		for i := range from.bytes {
			from.bytes[i] = byte(i * 7 / 3)
		}
		for i := range 6 {
			f.Plan(simverbs.Fault{Kind: simverbs.LosePacket, Index: int(seed)*3 + 11*i})
		}
		read := writing(2, back, to, 40000)
		read.Operation, read.Flags = verbs.Read, verbs.Signaled|verbs.Fence
		b.listen(verbs.ReceiveWork{ID: 9})
		a.post(writing(1, from, to, 40000), read, verbs.SendWork{ID: 3, Operation: verbs.Send, Flags: verbs.Signaled | verbs.Fence})
		settle(f, a, b)
		ended(t, a.sent, success, success, success)
		ended(t, b.received, success)
		if !bytes.Equal(from.bytes, to.bytes) || !bytes.Equal(from.bytes, back.bytes) {
			t.Fatalf("seed %d: bytes differ", seed)
		}
	}
}

// Without a fence a message may overtake a READ, and what it ends is missing then.
func TestAnUnfencedInvalidationMayBreakTheReadBeforeIt(t *testing.T) {
	broken := 0
	for seed := range uint64(40) {
		f := simverbs.NewFabric(seed, simverbs.Options{})
		a, b := couple(t, f)
		into, from := a.piece(64<<10, 1, everyone), b.piece(64<<10, 2, verbs.AccessLocalWrite|verbs.AccessWindowBind)
		w, key, err := b.AllocateWindow(b.domain)
		b.must(err)
		key = key&^0xff | (key+1)&0xff
		b.post(verbs.SendWork{Operation: verbs.BindWindow, Flags: verbs.Signaled, Window: w, Region: from.handle, Remote: from.address, Span: 64 << 10, RemoteKey: key, Access: verbs.AccessRemoteRead})
		b.listen(verbs.ReceiveWork{})
		settle(f, b)
		ended(t, b.sent, success)
		read := writing(1, into, from, 64<<10)
		read.Operation, read.RemoteKey = verbs.Read, key
		a.post(read, verbs.SendWork{ID: 2, Operation: verbs.SendWithInvalidate, Flags: verbs.Signaled, RemoteKey: key})
		settle(f, a)
		if a.sent[0].Status == verbs.WorkRemoteAccess {
			broken++
		}
	}
	if broken < 20 {
		t.Errorf("the READ broke in %d of 40 runs", broken)
	}
}

func TestLimitsCountAllProcessesOfAHost(t *testing.T) {
	f := newFabric(t, simverbs.Options{Limits: verbs.Limits{Regions: 3, Windows: 2, Pairs: 2, Queues: 5, Domains: 2}})
	a, other := open(t, f, "a"), open(t, f, "a")
	for range 2 {
		a.piece(4096, 0, everyone)
	}
	other.piece(4096, 0, everyone)
	if _, _, _, err := other.Register(other.domain, 1<<20, 1, everyone); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("a fourth region of three: %v", err)
	}
	if _, err := a.AllocateDomain(a.device); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("a third domain of two: %v", err)
	}
	for range 2 {
		if _, _, err := a.AllocateWindow(a.domain); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := other.AllocateWindow(other.domain); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("a third window of two: %v", err)
	}
	a.end(4, 0)
	other.end(4, 0)
	q := a.queue(4, 0)
	if _, _, err := a.CreatePair(a.domain, verbs.PairOptions{Sends: q, Receives: q, SendDepth: 1, ReceiveDepth: 1}); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("a third pair of two: %v", err)
	}
	if _, err := a.CreateQueue(a.device, 4, 0); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("a sixth queue of five: %v", err)
	}
}

func TestLockedMemoryIsLimited(t *testing.T) {
	f := newFabric(t, simverbs.Options{})
	a := open(t, f, "a")
	a.LimitLocked(10000)
	m := a.piece(8192, 0, everyone)
	if _, _, _, err := a.Register(a.domain, m.address, 4096, everyone); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("12288 bytes locked of 10000: %v", err)
	}
	a.must(a.Deregister(m.handle))
	if _, _, _, err := a.Register(a.domain, m.address, 4096, everyone); err != nil {
		t.Error(err)
	}
}

func TestUseAfterTheEndIsAViolation(t *testing.T) {
	var found []error
	f := newFabric(t, simverbs.Options{Violation: func(err error) { found = append(found, err) }})
	a, _ := couple(t, f)
	a.must(a.DestroyPair(a.pair))
	if err := a.DestroyPair(a.pair); err == nil {
		t.Error("a pair was destroyed twice")
	}
	if _, err := a.PostSend(a.pair, nil); err == nil {
		t.Error("a destroyed pair took work")
	}
	var violation *simverbs.ViolationError
	if len(found) != 2 || !errors.As(found[0], &violation) || violation.Seed != f.Seed() || violation.Host != "a" {
		t.Errorf("violations: %v", found)
	}
}

func TestSoftRoCEPanicsOnASecondInvalidation(t *testing.T) {
	var found []error
	f := newFabric(t, simverbs.Options{Personality: simverbs.SoftRoCE, Violation: func(err error) { found = append(found, err) }})
	a, _ := couple(t, f)
	_, key, err := a.AllocateWindow(a.domain)
	a.must(err)
	a.post(verbs.SendWork{Operation: verbs.LocalInvalidate, RemoteKey: key})
	settle(f, a)
	if len(found) != 1 || !strings.Contains(found[0].Error(), "panics") {
		t.Errorf("violations: %v", found)
	}
}

func TestALateSoftRoCEPairWithAWindowGoesSlowly(t *testing.T) {
	f := newFabric(t, simverbs.Options{Personality: simverbs.SoftRoCE})
	a, _ := couple(t, f)
	m := a.piece(4096, 0, verbs.AccessLocalWrite|verbs.AccessWindowBind)
	w, key, err := a.AllocateWindow(a.domain)
	a.must(err)
	a.post(verbs.SendWork{Operation: verbs.BindWindow, Window: w, Region: m.handle, Remote: m.address, Span: 1, RemoteKey: key&^0xff | (key+1)&0xff, Access: verbs.AccessRemoteRead})
	settle(f, a)
	began := f.Now()
	a.must(a.DestroyPair(a.pair))
	if took := f.Now() - began; took < 50*time.Second {
		t.Errorf("it took %v", took)
	}
	if err := a.Deregister(m.handle); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a region under the window of a destroyed pair: %v", err)
	}
	a.must(a.FreeWindow(w))
	a.must(a.Deregister(m.handle))
}

func TestAnAddressThatVanishesIsNotFoundAndStopsWork(t *testing.T) {
	for _, p := range []simverbs.Personality{simverbs.Hardware, simverbs.SoftRoCE} {
		f := newFabric(t, simverbs.Options{Personality: p})
		a, b := couple(t, f)
		from, to := a.piece(64, 1, everyone), b.piece(64, 2, everyone)
		port := f.Host("a").Device(map[simverbs.Personality]string{simverbs.Hardware: "mlx5_0", simverbs.SoftRoCE: "rxe0"}[p]).Port(1)
		port.RemoveGID(1)
		if e, some, _ := a.NextAsync(a.device); !some || e.Kind != verbs.AsyncGIDChange || e.Port != 1 {
			t.Errorf("%v: GID_CHANGE did not come: %+v", p, e)
		}
		a.post(writing(1, from, to, 64))
		settle(f, a)
		want := verbs.WorkRetryExceeded
		if p == simverbs.SoftRoCE {
			want = flushed
		}
		ended(t, a.sent, want)
		late := a.node.end(4, 0)
		a.must(a.ModifyPair(late.pair, verbs.Transition{To: verbs.PairInit, Port: 1}))
		err := a.ModifyPair(late.pair, verbs.Transition{To: verbs.PairReadyToReceive, MTU: 1024, SourceGID: 1, RemoteGID: b.gid.GID})
		if !errors.Is(err, syscall.ENODATA) {
			t.Errorf("%v: an emptied entry: %v", p, err)
		}
		port.SetGID(verbs.GIDEntry{Index: 5, GID: a.gid.GID, Type: verbs.GIDRoCEv2})
		a.must(a.ModifyPair(late.pair, verbs.Transition{To: verbs.PairReadyToReceive, MTU: 1024, SourceGID: 5, RemoteGID: b.gid.GID}))
	}
}

func TestADeadPortLosesPacketsAndComesBack(t *testing.T) {
	f := newFabric(t, simverbs.Options{})
	a, b := couple(t, f)
	from, to := a.piece(64, 1, everyone), b.piece(64, 2, everyone)
	port := f.Host("a").Device("mlx5_0").Port(1)
	port.Down()
	a.post(writing(1, from, to, 64))
	f.Advance(2 * time.Millisecond) // shorter than the retries: 4.096 µs · 2^10 each
	a.take()
	ended(t, a.sent)
	port.Up()
	settle(f, a)
	ended(t, a.sent, success)
	var kinds []verbs.AsyncKind
	for {
		e, some, err := a.NextAsync(a.device)
		a.must(err)
		if !some {
			break
		}
		kinds = append(kinds, e.Kind)
	}
	if fmt.Sprint(kinds) != fmt.Sprint([]verbs.AsyncKind{verbs.AsyncPortError, verbs.AsyncPortActive, verbs.AsyncPortActive, verbs.AsyncGIDChange}) {
		t.Errorf("events %v", kinds)
	}
}

func TestCallsAreCounted(t *testing.T) {
	f := newFabric(t, simverbs.Options{})
	a, b := couple(t, f)
	from, to := a.piece(64, 1, everyone), b.piece(64, 2, everyone)
	a.post(writing(1, from, to, 64), writing(2, from, to, 64))
	for call, want := range map[simverbs.Call]uint64{simverbs.CallPostSend: 1, simverbs.CallRegister: 1, simverbs.CallModifyPair: 3, simverbs.CallFreeDomain: 0} {
		if got := a.Calls(call); got != want {
			t.Errorf("%d calls of %s, want %d", got, call, want)
		}
	}
}

func TestPacketsToADeadPortAreLost(t *testing.T) {
	f := newFabric(t, simverbs.Options{})
	a, b := couple(t, f)
	from, to := a.piece(64, 1, everyone), b.piece(64, 2, everyone)
	a.post(writing(1, from, to, 64))
	f.Host("b").Device("mlx5_0").Port(1).Down()
	settle(f, a)
	ended(t, a.sent, verbs.WorkRetryExceeded)
	if to.bytes[0] != 2 {
		t.Error("bytes went through a dead port")
	}
}

func TestACutLinkIsNoticedAndMends(t *testing.T) {
	f := newFabric(t, simverbs.Options{})
	a, b := couple(t, f)
	from, to := a.piece(64, 1, everyone), b.piece(64, 2, everyone)
	pa, pb := f.Host("a").Device("mlx5_0").Port(1), f.Host("b").Device("mlx5_0").Port(1)
	f.Cut(pa, pb, true)
	a.post(writing(1, from, to, 64))
	f.Advance(5 * time.Millisecond)
	f.Cut(pa, pb, false)
	settle(f, a)
	ended(t, a.sent, success)
	f.Delay(pa, pb, time.Millisecond, 2*time.Millisecond)
	began := f.Now()
	a.post(writing(2, from, to, 64))
	for a.take(); len(a.sent) < 2; a.take() {
		f.Step()
	}
	if took := f.Now() - began; took < 2*time.Millisecond {
		t.Errorf("there and back on a slow link took %v", took)
	}
}

// Without Options.Mapped, memory that cannot be read is found out by reading it.
func TestMemoryThatIsNotThereIsRefused(t *testing.T) {
	f := newFabric(t, simverbs.Options{})
	a := open(t, f, "a")
	m := a.piece(3*4096, 0, everyone)
	if err := unix.Mprotect(m.bytes[4096:8192], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	for _, address := range []uint64{0, 100, m.address, m.address + 4096} {
		if _, _, _, err := a.Register(a.domain, address, 3*4096, everyone); !errors.Is(err, syscall.EFAULT) {
			t.Errorf("memory at %#x: %v", address, err)
		}
	}
}

func TestExportedMemoryIsReachedByItsAddress(t *testing.T) {
	var shared []byte
	f := newFabric(t, simverbs.Options{Export: func(_ *simverbs.Process, descriptor int, offset, length uint64) (uint64, bool) {
		return uint64(uintptr(unsafe.Pointer(&shared[offset]))), descriptor == 7 && offset+length <= uint64(len(shared))
	}})
	a, b := couple(t, f)
	from := a.piece(64, 1, everyone)
	shared = b.piece(4096, 0, everyone).bytes
	if _, _, _, err := b.RegisterDescriptor(b.domain, 0, 64, 0, 8, everyone); !errors.Is(err, syscall.EBADF) {
		t.Errorf("an unknown descriptor: %v", err)
	}
	_, _, key, err := b.RegisterDescriptor(b.domain, 1000, 64, 1<<40, 7, everyone)
	b.must(err)
	a.post(writing(1, from, piece{address: 1 << 40, remote: key}, 64))
	settle(f, a)
	ended(t, a.sent, success)
	if !bytes.Equal(shared[999:1065], append(append([]byte{0}, from.bytes...), 0)) {
		t.Error("bytes are not where the descriptor's memory is")
	}
}

// Memory of a device is registered by its address where its host has a module for that, without windows and without pages
// of the host's; elsewhere the address is nobody's.
func TestDeviceMemoryIsReachedByItsAddressWhereAModuleLetsIt(t *testing.T) {
	const device = uint64(1) << 45
	var memory []byte
	with := ""
	f := newFabric(t, simverbs.Options{Peer: func(p *simverbs.Process, address, length uint64) (uint64, bool) {
		if address < device || address-device+length > uint64(len(memory)) || p.Name() != with {
			return 0, false
		}
		return uint64(uintptr(unsafe.Pointer(&memory[address-device]))), true
	}})
	a, b := couple(t, f)
	from := a.piece(64, 1, everyone)
	memory = b.piece(4096, 0, everyone).bytes
	access := verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	if _, _, _, err := b.Register(b.domain, device+100, 64, access); !errors.Is(err, syscall.EFAULT) {
		t.Errorf("without a module: %v", err)
	}
	with = b.Name()
	if _, _, _, err := b.Register(b.domain, device+100, 64, everyone|verbs.AccessWindowBind); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("with windows: %v", err)
	}
	b.LimitLocked(1)
	_, _, key, err := b.Register(b.domain, device+100, 64, access)
	b.must(err)
	a.post(writing(1, from, piece{address: device + 100, remote: key}, 64))
	settle(f, a)
	ended(t, a.sent, success)
	if !bytes.Equal(memory[99:165], append(append([]byte{0}, from.bytes...), 0)) {
		t.Error("bytes are not where the device's memory is")
	}
}

func TestHostsHaveTheDevicesThatTheyWereGiven(t *testing.T) {
	f := newFabric(t, simverbs.Options{})
	ib := func(lid uint16) simverbs.DeviceSpec {
		return simverbs.DeviceSpec{Name: "ib0", NUMANode: 1, PCI: "0000:18:00.0", Ports: []simverbs.PortSpec{
			{Network: "other", Down: true}, {Network: "ib", InfiniBand: true, LID: lid, MTU: 2048, BitsPerSecond: 200e9},
		}}
	}
	f.Host("a", ib(3), simverbs.DeviceSpec{Name: "locked", Accessible: syscall.EACCES})
	f.Host("b", ib(4))
	p := f.Host("a").Process("p")
	list, err := p.Devices()
	if err != nil || len(list) != 2 || list[0].NUMANode != 1 || list[0].PCI != "0000:18:00.0" || list[1].Accessible == nil {
		t.Errorf("devices: %+v %v", list, err)
	}
	if _, err := p.OpenDevice("locked"); !errors.Is(err, syscall.EACCES) {
		t.Errorf("a device without permission: %v", err)
	}
	if _, err := p.OpenDevice("mlx5_0"); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("a device that is not there: %v", err)
	}
	ends := map[string]*end{}
	for _, host := range []string{"a", "b"} {
		n := &node{Process: f.Host(host).Process(host), t: t, fabric: f}
		n.device, err = n.OpenDevice("ib0")
		n.must(err)
		n.domain, err = n.AllocateDomain(n.device)
		n.must(err)
		ends[host] = n.end(8, 0)
	}
	a, b := ends["a"], ends["b"]
	down, err := a.Port(a.device, 1)
	a.must(err)
	port, err := a.Port(a.device, 2)
	a.must(err)
	if down.State != verbs.PortDown || port.State != verbs.PortActive || port.Ethernet || port.LID != 3 || port.MTU != 2048 || port.BitsPerSecond != 200e9 {
		t.Errorf("ports %+v and %+v", down, port)
	}
	for _, e := range []*end{a, b} { // by LID alone, as InfiniBand within a subnet
		peer, lid := b, uint16(4)
		if e == b {
			peer, lid = a, 3
		}
		e.must(e.ModifyPair(e.pair, verbs.Transition{To: verbs.PairInit, Port: 2, Access: verbs.AccessRemoteWrite}))
		e.must(e.ModifyPair(e.pair, verbs.Transition{To: verbs.PairReadyToReceive, Port: 2, Remote: peer.number, MTU: 2048, RemoteLID: lid}))
		e.must(e.ModifyPair(e.pair, verbs.Transition{To: verbs.PairReadyToSend, Timeout: 10, Retries: 3}))
	}
	from, to := a.piece(5000, 1, everyone), b.piece(5000, 2, everyone)
	a.post(writing(1, from, to, 5000))
	settle(f, a)
	ended(t, a.sent, success)
}

// With a clock that runs ahead, everything is late together: no timer overtakes what it waits for.
func TestALateClockBreaksNoConnection(t *testing.T) {
	clock := time.Duration(0)
	f := newFabric(t, simverbs.Options{Now: func() time.Duration { return clock }})
	a, b := couple(t, f)
	from, to := a.piece(20000, 1, everyone), b.piece(20000, 2, everyone)
	a.post(writing(1, from, to, 20000))
	clock = time.Hour
	a.take()
	ended(t, a.sent, success)
}

// A key of another domain is as good as none, on either side.
func TestDomainsKeepTheirKeysApart(t *testing.T) {
	f := newFabric(t, simverbs.Options{Personality: simverbs.Hardware})
	for what, want := range map[string]verbs.WorkStatus{"local": verbs.WorkLocalProtection, "remote": verbs.WorkRemoteAccess} {
		a, b := open(t, f, "a"), open(t, f, "b")
		ea, eb := a.end(16, 0), b.end(16, 0)
		join(ea, eb)
		stranger := map[string]*node{"local": a, "remote": b}[what]
		var err error
		stranger.domain, err = stranger.AllocateDomain(stranger.device)
		stranger.must(err)
		from, to := a.piece(64, 1, everyone), b.piece(64, 2, everyone)
		ea.post(writing(1, from, to, 64))
		settle(f, ea)
		ended(t, ea.sent, want)
		if to.bytes[0] != 2 {
			t.Errorf("%s: bytes were written", what)
		}
	}
}

func TestADeviceIsNotClosedUnderItsObjects(t *testing.T) {
	var found []error
	f := newFabric(t, simverbs.Options{Violation: func(err error) { found = append(found, err) }})
	a := open(t, f, "a")
	if err := a.CloseDevice(a.device); !errors.Is(err, syscall.EBUSY) || len(found) != 1 {
		t.Errorf("%v, violations %v", err, found)
	}
}

// What rdma_rxe does with receives that come to a pair in error, on both kernels.
func TestLateReceivesWaitForACauseToLook(t *testing.T) {
	for p, bySend := range map[simverbs.Personality]int{simverbs.SoftRoCE: 1, simverbs.OldSoftRoCE: 0} {
		f := newFabric(t, simverbs.Options{Personality: p})
		a, _ := couple(t, f)
		a.must(a.ModifyPair(a.pair, verbs.Transition{To: verbs.PairError}))
		settle(f, a)
		a.listen(verbs.ReceiveWork{ID: 1})
		settle(f, a)
		if len(a.received) != 0 {
			t.Errorf("%v: a late receive was flushed at once", p)
		}
		a.post(verbs.SendWork{Operation: verbs.Send})
		settle(f, a)
		if len(a.received) != bySend {
			t.Errorf("%v: %d late receives were flushed after a send, want %d", p, len(a.received), bySend)
		}
		a.must(a.ModifyPair(a.pair, verbs.Transition{To: verbs.PairError}))
		settle(f, a)
		ended(t, a.received, flushed)
	}
}
