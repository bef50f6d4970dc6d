//go:build cgo

package libcuda

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/cuda"
)

func TestDevicesAreListedWithoutAContext(t *testing.T) {
	l := loadFake(t)
	bus := t.TempDir()
	check(t, os.MkdirAll(filepath.Join(bus, "0000:1c:00.0"), 0o755))
	check(t, os.WriteFile(filepath.Join(bus, "0000:1c:00.0", "numa_node"), []byte("1\n"), 0o600))
	old := l.bus
	l.bus = bus
	defer func() { l.bus = old }()
	t.Setenv("FAKE_CUDA_DEVICES", "3")
	pushes, contexts := atomic.LoadUint64(&page.pushes), atomic.LoadInt64(&page.contexts)
	all := must(l.Devices())(t)
	uuid := [16]byte{32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 0}
	want := []cuda.DeviceInfo{
		{Ordinal: 0, Name: "Fake GPU 0", UUID: uuid, PCI: "0000:1b:00.0", NUMANode: -1, Memory: 1 << 30, Major: 9, Minor: 0,
			Unified: true, VirtualMemory: true, GPUDirect: true, GPUDirectVM: true, DMABuf: true, FlushHost: true,
			WriteOrderedOwner: true, WriteOrderedAll: true, CopyEngines: 3},
		{Ordinal: 1, Name: "Fake GPU 1", UUID: uuid, PCI: "0000:1c:00.0", NUMANode: 1, Memory: 1 << 30, Major: 9, Minor: 1,
			Unified: true, WriteOrderedOwner: true, CopyEngines: 3},
		{Ordinal: 2, Name: "Fake GPU 2", UUID: uuid, PCI: "0000:1d:00.0", NUMANode: -1, Memory: 1 << 30, Major: 9, Minor: 2,
			Unified: true, Prohibited: true, CopyEngines: 3},
	}
	for i := range want {
		want[i].UUID[15] = byte(i)
		if i >= len(all) || all[i] != want[i] {
			t.Errorf("got  %+v\nwant %+v", all, want[i])
		}
	}
	if n := atomic.LoadInt64(&page.contexts) - contexts; n != 0 || atomic.LoadUint64(&page.pushes) != pushes {
		t.Errorf("listing made %d contexts", n)
	}
	page.fail(t, "cuDeviceGetAttribute", 5, uint32(cuda.Unknown), false)
	_, err := l.Devices()
	var e *cuda.CallError
	if !errors.As(err, &e) || e.Call != "cuDeviceGetAttribute" || e.Object != "GPU 0" || e.Name != "CUDA_ERROR_UNKNOWN" {
		t.Errorf("got %v", err)
	}
}

func TestPrimaryContextsAreCounted(t *testing.T) {
	l := loadFake(t)
	active := func(want bool) {
		t.Helper()
		if got := must(l.PrimaryActive(1))(t); got != want {
			t.Errorf("active: %v", got)
		}
	}
	active(false)
	a, b := must(l.AcquirePrimary(1))(t), must(l.AcquirePrimary(1))(t)
	if a != b || a == 0 {
		t.Errorf("contexts %#x and %#x", a, b)
	}
	active(true)
	check(t, l.ReleasePrimary(1))
	active(true)
	check(t, l.ReleasePrimary(1))
	active(false)
	if err := l.ReleasePrimary(1); !errors.Is(err, &cuda.CallError{Result: cuda.InvalidContext}) {
		t.Errorf("one release too many: %v", err)
	}
	var e *cuda.CallError
	if _, err := l.AcquirePrimary(9); !errors.As(err, &e) || e.Result != cuda.InvalidDevice || e.Object != "GPU 9" || e.Effect != cuda.None {
		t.Errorf("no such GPU: %v", err)
	}
	if _, err := l.PrimaryActive(-1); !errors.Is(err, &cuda.CallError{Result: cuda.InvalidDevice}) {
		t.Errorf("no such GPU: %v", err)
	}
}

// Each method of a context, as far as it ends at once.
func (b *bench) methods() map[string]func() error {
	return map[string]func() error{
		"cuMemAlloc_v2": func() error {
			p, err := b.l.Allocate(b.c, 4096)
			return errors.Join(err, b.free(p != 0, func() error { return b.l.Free(b.c, p) }))
		},
		"cuMemHostAlloc": func() error {
			p, err := b.l.AllocateHost(b.c, 4096)
			return errors.Join(err, b.free(p != 0, func() error { return b.l.FreeHost(b.c, p) }))
		},
		"cuStreamCreate": func() error {
			s, err := b.l.CreateStream(b.c)
			return errors.Join(err, b.free(s != 0, func() error { return b.l.DestroyStream(b.c, s) }))
		},
		"cuEventCreate": func() error {
			e, err := b.l.CreateEvent(b.c)
			return errors.Join(err, b.free(e != 0, func() error { return b.l.DestroyEvent(b.c, e) }))
		},
		"cuPointerSetAttribute":      func() error { return b.l.SetSyncMemOps(b.c, b.device) },
		"cuStreamSynchronize":        func() error { return b.l.Synchronize(b.c, b.stream) },
		"cuMemsetD8Async":            func() error { return b.l.Zero(b.c, b.stream, b.device, 1) },
		"cuEventQuery":               func() error { _, err := b.l.Query(b.c, b.event); return err },
		"cuFlushGPUDirectRDMAWrites": func() error { return b.l.FlushWrites(b.c, true) },
		"cuMemGetHandleForAddressRange": func() error {
			d, err := b.l.ExportRange(b.c, b.device, 4096)
			return errors.Join(err, b.free(d >= 0, func() error { return unix.Close(d) }))
		},
		"cuEventRecord": func() error { _, err := b.l.Submit(b.c, b.stream, nil, b.event, 0); return err },
	}
}

func (b *bench) free(made bool, end func() error) error {
	if !made {
		return nil
	}
	return end()
}

func TestAFailedCallTellsItsNameAndWhatItMayHaveDone(t *testing.T) {
	b := newBench(t, 0)
	for name, act := range b.methods() {
		check(t, act())
		for result, effect := range map[cuda.Result]cuda.Effect{
			cuda.InvalidValue: cuda.None, cuda.OutOfMemory: cuda.None, cuda.InvalidContext: cuda.None, cuda.NotSupported: cuda.None,
			cuda.IllegalAddress: cuda.Maybe, cuda.LaunchFailed: cuda.Maybe, cuda.ECCUncorrectable: cuda.Maybe, cuda.Unknown: cuda.Maybe,
		} {
			if name == "cuEventQuery" || name == "cuStreamSynchronize" {
				effect = cuda.None // they do nothing
			}
			page.fail(t, name, 1, uint32(result), false)
			err := act()
			var e *cuda.CallError
			if !errors.As(err, &e) || e.Call != name || e.Result != result || e.Effect != effect || e.Name == "" || e.Object == "" {
				t.Errorf("%s, %d: %v", name, result, err)
			}
		}
	}
}

func TestWhatWasMadeIsGivenAlsoWhenTheOldContextDoesNotComeBack(t *testing.T) {
	b := newBench(t, 0)
	before := page.counts()
	for name, act := range b.methods() {
		page.fail(t, "cuCtxPopCurrent_v2", 1, uint32(cuda.InvalidContext), true)
		err := act()
		var e *cuda.CallError
		if !errors.As(err, &e) || e.Call != "cuCtxPopCurrent_v2" || e.Effect != cuda.Done {
			t.Errorf("%s: %v", name, err)
		}
		set(&page.popOther, 1)
		if err := act(); !errors.As(err, &e) || e.Call != "cuCtxPopCurrent_v2" || e.Effect != cuda.Done {
			t.Errorf("%s: another context came off: %v", name, err)
		}
		page.fail(t, "cuCtxPopCurrent_v2", 1, uint32(cuda.Unknown), true)
		page.fail(t, name, 1, uint32(cuda.InvalidValue), false)
		if err := act(); !errors.As(err, &e) || e.Call != name || e.Result != cuda.InvalidValue {
			t.Errorf("%s: the first failure is the one told: %v", name, err)
		}
	}
	if after := page.counts(); after != before {
		t.Errorf("objects were made and not told: %v before, %v after", before, after)
	}
	page.fail(t, "cuCtxPopCurrent_v2", 1, uint32(cuda.Unknown), true)
	how, err := b.l.Submit(b.c, b.stream, []cuda.Copy{b.there(8)}, b.event, b.signal)
	if want := (cuda.Submitted{Copies: 1, Recorded: true, Signaled: true}); how != want || err == nil {
		t.Errorf("%+v, %v", how, err)
	}
	b.await()
	set(&page.hold, 1) // a query that finds nothing complete is no failure that hides another
	b.submit(b.there(8))
	page.fail(t, "cuCtxPopCurrent_v2", 1, uint32(cuda.Unknown), true)
	if complete, err := b.l.Query(b.c, b.event); complete || !errors.Is(err, &cuda.CallError{Result: cuda.Unknown}) {
		t.Errorf("%v, %v", complete, err)
	}
}

// The push and the pop are left out where the context is current already, and another one comes back unharmed.
func TestAContextThatIsCurrentIsLeftAlone(t *testing.T) {
	b := newBench(t, 0)
	other := newBench(t, 1)
	set(&page.preset, 1) // every thread has GPU 0's context as its own
	for name, act := range b.methods() {
		before := atomic.LoadUint64(&page.pushes)
		check(t, act())
		if got := atomic.LoadUint64(&page.pushes) - before; got != 0 {
			t.Errorf("%s pushed %d contexts over its own", name, got)
		}
	}
	for name, act := range other.methods() {
		if name == "cuFlushGPUDirectRDMAWrites" || name == "cuMemGetHandleForAddressRange" {
			continue // GPU 1 cannot
		}
		before := atomic.LoadUint64(&page.pushes)
		check(t, act())
		if atomic.LoadUint64(&page.pushes) == before {
			t.Errorf("%s ran in another GPU's context", name)
		}
	}
	other.submit(other.there(8))
	other.await()
}

func TestAMissingContextIsRefused(t *testing.T) {
	l := loadFake(t)
	_, err := l.Allocate(0, 4096)
	var e *cuda.CallError
	if !errors.As(err, &e) || e.Result != cuda.InvalidContext || e.Effect != cuda.None {
		t.Errorf("got %v", err)
	}
}

func TestAnObjectOfAnotherContextIsRefused(t *testing.T) {
	a, b := newBench(t, 0), newBench(t, 1)
	how, err := a.l.Submit(a.c, b.stream, []cuda.Copy{a.there(8)}, a.event, 0)
	if how != (cuda.Submitted{}) || !errors.Is(err, &cuda.CallError{Result: cuda.InvalidHandle}) {
		t.Errorf("a stranger's stream: %+v, %v", how, err)
	}
	how, err = a.l.Submit(a.c, a.stream, []cuda.Copy{a.there(8)}, b.event, 0)
	if how != (cuda.Submitted{Copies: 1}) || !errors.Is(err, &cuda.CallError{Result: cuda.InvalidHandle}) {
		t.Errorf("a stranger's event: %+v, %v", how, err)
	}
}

func TestAttributesTellWhatIsBehindAnAddress(t *testing.T) {
	b := newBench(t, 0)
	device := cuda.PointerInfo{Type: cuda.MemoryDevice, Context: b.c, Ordinal: 0, Bytes: 5000, GPUDirect: true}
	for _, row := range []struct {
		what string
		kind uint32
		want func(*cuda.PointerInfo)
	}{
		{"plain", 0, func(*cuda.PointerInfo) {}},
		{"managed", 1, func(p *cuda.PointerInfo) { p.Managed, p.GPUDirect = true, false }},
		{"virtual", 2, func(p *cuda.PointerInfo) { p.Virtual, p.Context, p.GPUDirect = true, 0, false }},
		{"host type", 3, func(p *cuda.PointerInfo) { p.Type, p.GPUDirect = cuda.MemoryHost, false }},
		{"no extent", 4, func(*cuda.PointerInfo) {}},
	} {
		set(&page.kind, row.kind)
		p := must(b.l.Allocate(b.c, 5000))(t)
		want := device
		want.Start = p
		row.want(&want)
		for _, offset := range []cuda.Pointer{0, 1, 4999} {
			got := must(b.l.Attributes(uint64(p + offset)))(t)
			if got.BufferID == 0 {
				t.Errorf("%s: no buffer ID", row.what)
			}
			got.BufferID = 0
			if got != want {
				t.Errorf("%s: got %+v, want %+v", row.what, got, want)
			}
		}
		if row.kind == 0 {
			check(t, b.l.SetSyncMemOps(b.c, p+17))
			if !must(b.l.Attributes(uint64(p)))(t).SyncMem {
				t.Error("SYNC_MEMOPS is not told")
			}
		}
		first := must(b.l.Attributes(uint64(p)))(t).BufferID
		check(t, b.l.Free(b.c, p))
		unknown := must(b.l.Attributes(uint64(p)))(t)
		if unknown != (cuda.PointerInfo{Ordinal: -1}) {
			t.Errorf("%s, freed: %+v", row.what, unknown)
		}
		again := must(b.l.Allocate(b.c, 5000))(t)
		if must(b.l.Attributes(uint64(again)))(t).BufferID == first {
			t.Error("another allocation has the old one's ID")
		}
		check(t, b.l.Free(b.c, again))
	}
	pinned := must(b.l.Attributes(b.host + 1))(t)
	if pinned.Type != cuda.MemoryHost || pinned.Context != b.c || pinned.Bytes != benchBytes || uint64(pinned.Start) != b.host {
		t.Errorf("pinned: %+v", pinned)
	}
	for _, result := range []cuda.Result{cuda.InvalidValue, cuda.InvalidContext} { // some drivers say this of unknown memory
		page.fail(t, "cuPointerGetAttributes", 1, uint32(result), false)
		if info, err := b.l.Attributes(12345); err != nil || info.Type != cuda.MemoryUnknown {
			t.Errorf("%+v, %v", info, err)
		}
	}
	page.fail(t, "cuPointerGetAttributes", 1, uint32(cuda.LaunchFailed), false)
	if _, err := b.l.Attributes(12345); !errors.Is(err, &cuda.CallError{Result: cuda.LaunchFailed}) {
		t.Errorf("got %v", err)
	}
	if err := b.l.SetSyncMemOps(b.c, cuda.Pointer(b.host)); !errors.Is(err, &cuda.CallError{Result: cuda.InvalidValue}) {
		t.Errorf("SYNC_MEMOPS of host memory: %v", err)
	}
}

func TestMemoryHasItsLimitsAndItsOneEnd(t *testing.T) {
	b := newBench(t, 0)
	for _, bytes := range []uint64{0, 1<<30 + 1} {
		p, err := b.l.Allocate(b.c, bytes)
		h, err2 := b.l.AllocateHost(b.c, bytes)
		if p != 0 || h != 0 || err == nil || err2 == nil {
			t.Errorf("%d bytes: %#x, %v, %#x, %v", bytes, p, err, h, err2)
		}
	}
	if _, err := b.l.Allocate(b.c, 1<<31); !errors.Is(err, &cuda.CallError{Result: cuda.OutOfMemory}) {
		t.Errorf("got %v", err)
	}
	if err := b.l.Free(b.c, b.device+1); !errors.Is(err, &cuda.CallError{Result: cuda.InvalidValue}) {
		t.Errorf("freeing the middle: %v", err)
	}
	if err := b.l.FreeHost(b.c, uint64(b.device)); !errors.Is(err, &cuda.CallError{Result: cuda.InvalidValue}) {
		t.Errorf("freeing device memory as pinned: %v", err)
	}
}

func TestARangeIsExportedAsADescriptorOfTheCaller(t *testing.T) {
	b := newBench(t, 0)
	d := must(b.l.ExportRange(b.c, b.device+4096, 8192))(t)
	if flags := must(unix.FcntlInt(uintptr(d), unix.F_GETFD, 0))(t); flags&unix.FD_CLOEXEC == 0 {
		t.Error("it outlives exec")
	}
	check(t, unix.Close(d))
	for _, bad := range [][2]uint64{{1, 4096}, {0, 100}, {0, benchBytes + 4096}} {
		if d, err := b.l.ExportRange(b.c, b.device+cuda.Pointer(bad[0]), bad[1]); d != -1 || !errors.Is(err, &cuda.CallError{Result: cuda.InvalidValue}) {
			t.Errorf("%v: %d, %v", bad, d, err)
		}
	}
	other := newBench(t, 1)
	if _, err := other.l.ExportRange(other.c, other.device, 4096); !errors.Is(err, &cuda.CallError{Result: cuda.NotSupported}) {
		t.Errorf("a GPU that cannot: %v", err)
	}
	check(t, b.l.FlushWrites(b.c, true))
	check(t, b.l.FlushWrites(b.c, false))
	if err := other.l.FlushWrites(other.c, false); !errors.Is(err, &cuda.CallError{Result: cuda.NotSupported}) {
		t.Errorf("a GPU that cannot flush: %v", err)
	}
}
