package orbitte

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/segments"
)

// Memory on a GPU has an address and no bytes; it takes the GPU's context and no other one, and gives it back.
//
// proves C-2, M-2
func TestDeviceMemoryHasAnAddressAndNoBytes(t *testing.T) {
	s := newCUDASim(t, 1)
	d := s.process("alone", hostA, simcuda.Options{})
	m, err := AllocateDevice(d, 1, 1<<20+7)
	must(t, err)
	if m.Bytes() != nil || m.Len() != 1<<20+7 || m.Type() != MemoryCUDA || m.GPU() != 1 || m.Address() == 0 {
		t.Errorf("%d bytes, %d long, %v on GPU %d at %#x", len(m.Bytes()), m.Len(), m.Type(), m.GPU(), m.Address())
	}
	must(t, m.Prefault())
	active(t, d, false, true)
	for i, b := range peek(t, d, m) {
		if b != 0 {
			t.Fatalf("byte %d is %#x, want zero", i, b)
		}
	}
	must(t, m.Close())
	must(t, m.Close())
	wants(t, m.Prefault(), ErrClosed)
	active(t, d, false, false)
	host := allocated(t, 10)
	if host.Type() != MemoryHost || host.GPU() != -1 {
		t.Errorf("host memory is %v on GPU %d", host.Type(), host.GPU())
	}
}

// active checks which GPUs have a primary context.
func active(t testing.TB, d *simcuda.Driver, want ...bool) {
	t.Helper()
	for ordinal, want := range want {
		got, err := d.PrimaryActive(ordinal)
		must(t, err)
		if got != want {
			t.Errorf("GPU %d has a primary context: %t, want %t", ordinal, got, want)
		}
	}
}

// Pinned host memory is host memory: it has bytes, and an engine without CUDA takes it.
//
// proves C-2
func TestPinnedHostMemoryIsHostMemory(t *testing.T) {
	s := newCUDASim(t, 1)
	d := s.process("alone", hostA, simcuda.Options{})
	m, err := AllocatePinnedHost(d, 0, 4099)
	must(t, err)
	if m.Type() != MemoryHost || m.GPU() != -1 || len(m.Bytes()) != 4099 {
		t.Errorf("%v on GPU %d with %d bytes", m.Type(), m.GPU(), len(m.Bytes()))
	}
	pattern(m, 3)
	e := s.engine(d, Config{})
	r := registered(t, e, m, ReadWrite)
	must(t, m.Close()) // the registration keeps it
	if d.Live().Pinned != 1 {
		t.Fatal("freed while it is registered")
	}
	must(t, e.Unregister(soon(t), r))
	if left := d.Live(); left != (simcuda.Live{}) {
		t.Errorf("left after the last registration: %+v", left)
	}
}

// What is no device memory of a primary context is refused with the reason and what to do, and nothing is kept.
//
// proves C-2
func TestAdoptionRefusesWhatIsNoDeviceMemory(t *testing.T) {
	s := newCUDASim(t, 1)
	d := s.process("alone", hostA, simcuda.Options{})
	keep := onGPU(t, d, 0, 1<<16) // its context is there
	host := allocated(t, 4096)
	pinned, err := AllocatePinnedHost(d, 0, 4096)
	must(t, err)
	defer pinned.Close()
	managed, virtual := d.MakeManaged(0, 4096), d.MakeVirtual(1, 4096, true)
	context := d.NewContext(0)
	foreign := d.MakeForeign(context, 4096)
	freed, err := AllocateDevice(d, 0, 4096)
	must(t, err)
	gone := freed.Address()
	must(t, freed.Close())
	before := d.Live()
	for name, x := range map[string]struct {
		ordinal int
		pointer uint64
		length  int
		cause   error
	}{
		"host memory":           {0, host.Address(), 4096, cuda.ErrUnknown},
		"an address of nobody":  {0, 0x1000, 1, cuda.ErrUnknown},
		"freed memory":          {0, gone, 4096, cuda.ErrUnknown},
		"pinned memory":         {0, pinned.Address(), 4096, cuda.ErrHostMemory},
		"managed memory":        {0, uint64(managed), 4096, cuda.ErrManaged},
		"of another context":    {0, uint64(foreign), 4096, cuda.ErrForeign},
		"on another GPU":        {1, keep.Address(), 4096, cuda.ErrOrdinal},
		"longer than it is":     {0, keep.Address() + 1, 1 << 16, cuda.ErrExtent},
		"virtual, on another":   {0, uint64(virtual), 4096, cuda.ErrOrdinal},
		"longer, on any of all": {AnyGPU, uint64(virtual), 4097, cuda.ErrExtent},
	} {
		m, err := AdoptDevice(d, x.ordinal, x.pointer, x.length, nil)
		own := wants(t, err, ErrInvalid)
		var refusal *cuda.AdoptionError
		if m != nil || !errors.Is(err, x.cause) || !errors.As(err, &refusal) || refusal.Pointer != cuda.Pointer(x.pointer) || own.Op != "AdoptDevice" {
			t.Errorf("%s: %v", name, err)
		}
		mentions(t, err.Error(), "nothing was adopted", "cuMemAlloc")
	}
	for _, length := range []int{0, -1} {
		_, err := AdoptDevice(d, 0, keep.Address(), length, nil)
		wants(t, err, ErrInvalid)
		_, err = AllocateDevice(d, 0, length)
		wants(t, err, ErrInvalid)
		_, err = AllocatePinnedHost(d, 0, length)
		wants(t, err, ErrInvalid)
	}
	if after := d.Live(); after != before {
		t.Errorf("refusals left something: %+v, before %+v", after, before)
	}
	m, err := AdoptDevice(d, AnyGPU, uint64(virtual), 4096, nil)
	must(t, err)
	if m.GPU() != 1 {
		t.Errorf("virtual memory is on GPU %d", m.GPU())
	}
	must(t, m.Close())
	d.Unmake(managed)
	d.Unmake(virtual)
	d.Unmake(foreign)
	d.EndContext(context)
}

// Aliases of one allocation are one memory object with one lease table, whoever made them, and in all engines; the
// allocation ends with the last of them.
//
// proves C-2, M-9, M-3
func TestAliasesOfAnAllocationShareOneLeaseTable(t *testing.T) {
	s := newCUDASim(t, 1)
	d := s.process("alone", hostA, simcuda.Options{})
	whole, err := AllocateDevice(d, 0, 1000)
	must(t, err)
	part, err := AdoptDevice(d, 0, whole.Address()+100, 300, nil)
	must(t, err)
	if part.backing != whole.backing || part.Address() != whole.Address()+100 || part.Len() != 300 {
		t.Fatalf("%v at %#x is another object than %v", part.backing, part.Address(), whole.backing)
	}
	one, other := s.engine(d, Config{CUDA: d}), s.engine(d, Config{CUDA: d})
	first, second := registered(t, one, whole, ReadWrite), registered(t, other, part, ReadWrite)
	if second.Address() != whole.Address()+100 || second.Length() != 300 {
		t.Errorf("the part is registered as %d bytes at %#x", second.Length(), second.Address())
	}
	lease, err := first.inner.Lease(399, 1, segments.Exclusive)
	must(t, err)
	if _, err := second.inner.Lease(0, 300, segments.Shared); !errors.Is(err, segments.ErrConflict) {
		t.Errorf("a conflicting lease through the alias: %v", err)
	}
	free, err := second.inner.Lease(0, 299, segments.Exclusive)
	must(t, err)
	free.Return()
	lease.Return()
	_, err = other.Register(part, 1, 300, ReadWrite) // inside the allocation, and outside the part
	if own := wants(t, err, ErrInvalid); own.Index != 0 || !errors.Is(err, segments.ErrRange) {
		t.Errorf("a range behind the adopted part: %v", err)
	}
	must(t, whole.Close())
	must(t, one.Unregister(soon(t), first))
	if d.Live().Allocations != 1 {
		t.Fatal("freed while an alias is there")
	}
	must(t, part.Close())
	must(t, other.Unregister(soon(t), second))
	if left := d.Live().Allocations; left != 0 {
		t.Errorf("%d allocations are left", left)
	}
}

// The owner of adopted memory lives as long as the memory, and frees it itself.
func TestAdoptedMemoryIsNotFreed(t *testing.T) {
	s := newCUDASim(t, 1)
	d := s.process("alone", hostA, simcuda.Options{})
	theirs := d.MakePool(1, 5000)
	m, err := AdoptDevice(d, 1, uint64(theirs)+1, 4000, t)
	must(t, err)
	must(t, m.Close())
	if !d.Peek(theirs, make([]byte, 5000)) {
		t.Error("somebody else's memory was freed")
	}
	d.Unmake(theirs)
}

// What is missing is said before anything is made: no driver, no GPU, an old driver, a GPU that prohibits contexts, memory.
//
// proves C-1; field case F-70
func TestMemoryOfAMissingDeviceIsRefusedWithWhatIsMissing(t *testing.T) {
	s := newCUDASim(t, 1)
	prohibited := cuda.DeviceInfo{Name: "mine", Prohibited: true, Unified: true, Memory: 1 << 30}
	fine := s.process("fine", hostA, simcuda.Options{Devices: []cuda.DeviceInfo{prohibited, {}}, Memory: 1 << 20})
	old := s.process("old", hostA, simcuda.Options{Version: 10020})
	none := s.process("none", hostA, simcuda.Options{None: true})
	for _, x := range []struct {
		driver  cuda.Calls
		ordinal int
		length  int
		class   error
		words   string
	}{
		{nil, 0, 1, ErrUnavailable, "cuda/libcuda.Load"},
		{none, 0, 1, ErrUnavailable, "no such GPU"},
		{old, 0, 1, ErrUnavailable, "too old"},
		{fine, 0, 1, ErrUnavailable, "prohibits contexts"},
		{fine, 2, 1, ErrUnavailable, "CUDA_VISIBLE_DEVICES"},
		{fine, -1, 1, ErrUnavailable, "no such GPU"},
		{fine, 1, 1 << 21, ErrExhausted, "CUDA_ERROR_OUT_OF_MEMORY"},
	} {
		_, err := AllocateDevice(x.driver, x.ordinal, x.length)
		wants(t, err, x.class)
		mentions(t, err.Error(), x.words)
		if x.class == ErrUnavailable && !strings.Contains(err.Error(), "orbitte devices") {
			t.Errorf("no remedy in %v", err)
		}
	}
	active(t, fine, false, false)
	for _, d := range []*simcuda.Driver{old, none} {
		_, err := Open(s.config(s.processes[d], Config{CUDA: d}, "10.0.0.1:0"))
		wants(t, err, ErrUnavailable)
	}
}

// A driver that refuses to free memory keeps it, once and for all, and says so.
//
// proves C-3, G-9
func TestMemoryThatTheDriverKeepsIsListed(t *testing.T) {
	s := newCUDASim(t, 1)
	d := s.process("alone", hostA, simcuda.Options{})
	s.deliberate[d] = true
	m, err := AllocateDevice(d, 0, 100)
	must(t, err)
	d.Plan(simcuda.Fault{Kind: simcuda.FailCall, Call: simcuda.CallFree, Result: cuda.Unknown, Effect: cuda.Maybe})
	count, bytes := segments.Mappings()
	before := RetainedByCUDA()
	err = m.Close()
	wants(t, err, ErrUnquiesced)
	must(t, m.Close())
	if list := newlyRetained(before); len(list) != 1 || list[0].Kind != "allocation" || list[0].Reason == "" {
		t.Errorf("retained: %v", list)
	}
	if c, b := segments.Mappings(); c != count || b != bytes {
		t.Error("its lease table is gone")
	}
	deliberate.Add(1)
	deliberateBytes.Add(100)
}

// newlyRetained is what CUDA retains now and did not before. Tests of this process retain things on purpose, and the list's
// order of drivers means nothing.
func newlyRetained(before []Resource) []Resource {
	list := RetainedByCUDA()
	for _, r := range before {
		if i := slices.Index(list, r); i >= 0 {
			list = slices.Delete(list, i, i+1)
		}
	}
	return list
}
