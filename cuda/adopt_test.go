package cuda_test

import (
	"errors"
	"runtime"
	"sync"
	"testing"
	"weak"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
)

// framework is another user of the primary context, as a machine-learning framework is.
func (r *rig) framework(ordinal int) cuda.ContextHandle {
	r.Helper()
	h, err := r.driver.AcquirePrimary(ordinal)
	r.must(err)
	return h
}

// proves C-2
func TestAdoptionRefusesWhatIsNotDeviceMemoryOfThePrimaryContext(t *testing.T) {
	r := newRig(t, simcuda.Options{})
	foreign := r.driver.NewContext(0)
	stranger := r.driver.MakeForeign(foreign, 5000)
	managed := r.driver.MakeManaged(0, 5000)
	try := func(what string, p cuda.Pointer, bytes uint64, ordinal int, want error) {
		t.Helper()
		m, err := r.platform.Adopt(ordinal, p, bytes, nil)
		var facts *cuda.AdoptionError
		if m != nil || !errors.Is(err, want) || !errors.Is(err, cuda.ErrAdoption) || !errors.As(err, &facts) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	try("memory of a stranger's context", stranger, 10, 0, cuda.ErrForeign)
	if r.driver.Calls(simcuda.CallAcquire) != 0 {
		t.Error("a primary context was made to refuse memory")
	}
	h := r.framework(0)
	raw := r.driver.MakeForeign(h, 5000)
	host, err := r.driver.AllocateHost(h, 100)
	r.must(err)
	try("memory of a stranger's context beside the primary one", stranger, 10, 0, cuda.ErrForeign)
	try("managed memory", managed, 10, 0, cuda.ErrManaged)
	try("pinned memory", cuda.Pointer(host), 10, 0, cuda.ErrHostMemory)
	try("an address of nobody", 4096, 10, 0, cuda.ErrUnknown)
	try("an address behind the allocation", raw+5000, 1, 0, cuda.ErrUnknown)
	try("memory of another GPU", raw, 10, 1, cuda.ErrOrdinal)
	try("a range that leaves the allocation", raw+4999, 2, 0, cuda.ErrExtent)
	try("a range that wraps around", raw, ^uint64(0), 0, cuda.ErrExtent)
	try("nothing", raw, 0, 0, cuda.ErrExtent)
	r.plan("(fail-call (call cuPointerGetAttributes) (result CUDA_ERROR_NOT_INITIALIZED))")
	try("a driver that does not answer", raw, 10, 0, &cuda.CallError{Result: cuda.NotInitialized})
	r.plan("(fail-call (call cuDevicePrimaryCtxGetState))")
	try("a driver that does not know its contexts", raw, 10, 0, &cuda.CallError{Result: cuda.Unknown})
	m, err := r.platform.Adopt(0, raw+4999, 1, nil)
	r.must(err)
	r.must(m.Drop())
	r.must(r.driver.FreeHost(h, host))
	r.must(r.driver.ReleasePrimary(0))
	r.close()
}

// proves C-2
func TestVirtualAndPoolMemoryIsAdoptedForWhatItCanDo(t *testing.T) {
	poor := cuda.DeviceInfo{Name: "poor", Memory: 1 << 30, Unified: true, GPUDirect: true, FlushHost: true}
	none := cuda.DeviceInfo{Name: "none", Memory: 1 << 30, Unified: true}
	r := newRig(t, simcuda.Options{Devices: []cuda.DeviceInfo{{}, poor, none}})
	raw := func(ordinal int) cuda.Pointer { return r.driver.MakeForeign(r.framework(ordinal), 8192) }
	cases := []struct {
		what    string
		pointer cuda.Pointer
		ordinal int
		want    cuda.Abilities
	}{
		{"an ordinary allocation", raw(0), 0, cuda.Abilities{Register: true, Export: true, SyncMemOps: true, FlushWrites: true, Ordered: true}},
		{"virtual memory made for it", r.driver.MakeVirtual(0, 8192, true), 0, cuda.Abilities{Register: true, Export: true, FlushWrites: true, Ordered: true}},
		{"virtual memory", r.driver.MakeVirtual(0, 8192, false), 0, cuda.Abilities{FlushWrites: true, Ordered: true, Missing: "x"}},
		{"pool memory", r.driver.MakePool(0, 8192), 0, cuda.Abilities{FlushWrites: true, Ordered: true, Missing: "x"}},
		{"an allocation without DMA-BUF", raw(1), 1, cuda.Abilities{Register: true, SyncMemOps: true, FlushWrites: true}},
		{"virtual memory without GPUDirect for it", r.driver.MakeVirtual(1, 8192, true), 1, cuda.Abilities{FlushWrites: true, Missing: "x"}},
		{"a GPU without GPUDirect", raw(2), 2, cuda.Abilities{SyncMemOps: true, Missing: "x"}},
	}
	for _, c := range cases {
		m, err := r.platform.Adopt(c.ordinal, c.pointer, 8192, nil)
		r.must(err)
		a := m.Abilities()
		if (a.Missing != "") != (c.want.Missing != "") {
			t.Errorf("%s: missing is %q", c.what, a.Missing)
		}
		if a.Missing = c.want.Missing; a != c.want {
			t.Errorf("%s: %+v, want %+v", c.what, a, c.want)
		}
		for range 2 {
			if err := m.SetSyncMemOps(); (err == nil) != a.SyncMemOps {
				t.Errorf("%s: SYNC_MEMOPS: %v", c.what, err)
			}
		}
		if err := m.FlushWrites(false); (err == nil) != a.FlushWrites {
			t.Errorf("%s: flush: %v", c.what, err)
		}
		descriptor, err := m.ExportRange(m.Pointer(), 4096)
		if (err == nil) != a.Export && m.Pointer()%4096 == 0 {
			t.Errorf("%s: export: %d, %v", c.what, descriptor, err)
		}
		_, err = m.ExportRange(m.Pointer()+4096, 8192)
		r.is(c.what+": export of too much", err, cuda.ErrRange)
		r.must(m.Prepare())
		h, bytes := r.pinned(8192)
		for i := range bytes {
			bytes[i] = byte(i)
		}
		p, err := m.Start(up(m, h), h, nil)
		r.must(err)
		r.finish(p)
		got := make([]byte, 8192)
		if !r.driver.Peek(m.Pointer(), got) || string(got) != string(bytes) {
			t.Errorf("%s: the bytes did not arrive", c.what)
		}
		r.must(h.Free())
		r.must(m.Drop())
		r.driver.Unmake(c.pointer)
	}
	if n := r.driver.Calls(simcuda.CallSetAttribute); n != 3+2*4 {
		t.Errorf("SYNC_MEMOPS was set %d times", n)
	}
	for i := range 3 {
		r.must(r.driver.ReleasePrimary(i))
	}
	r.close()
}

// proves C-2
func TestAliasesThatComeAtOnceMeet(t *testing.T) {
	r := newRig(t, simcuda.Options{})
	raw := r.driver.MakeForeign(r.framework(0), 4096)
	other, err := cuda.Open(r.driver)
	r.must(err)
	var all [16]*cuda.Memory
	var group sync.WaitGroup
	for round := range 20 {
		for i := range all {
			group.Go(func() {
				p := []*cuda.Platform{r.platform, other}[i%2]
				m, err := p.Adopt(0, raw+cuda.Pointer(i*round), 1, nil)
				if err != nil {
					t.Error(err)
					return
				}
				if err := m.Prepare(); err != nil {
					t.Error(err)
				}
				all[i] = m
			})
		}
		group.Wait()
		for _, m := range all {
			if m != all[0] {
				t.Fatalf("round %d: aliases are %v and %v", round, m, all[0])
			}
		}
		if n := r.platform.Counts(); n.Adopted != 1 || n.Streams != 1 || n.Contexts != 1 || all[0].Holders() != 16 {
			t.Errorf("round %d: %+v with %d holders", round, n, all[0].Holders())
		}
		for i := range all {
			group.Go(func() {
				if err := all[i].Drop(); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
	}
	r.must(other.Close())
	r.must(r.driver.ReleasePrimary(0))
	r.close()
}

// An address that was freed and given out again is another allocation (SPEC C-2): the old object copies nothing any more.
func TestMemoryThatWasFreedBehindOurBackIsNoticed(t *testing.T) {
	r := newRig(t, simcuda.Options{})
	context := r.framework(0)
	raw := r.driver.MakeForeign(context, 4096)
	old, err := r.platform.Adopt(0, raw, 4096, nil)
	r.must(err)
	r.must(old.Prepare())
	r.must(old.Verify())
	h, _ := r.pinned(4096)
	r.driver.Unmake(raw)
	again := r.driver.MakeForeign(context, 4000)
	if again != raw {
		t.Fatalf("the address was not given out again: %#x, %#x", raw, again)
	}

	fresh, err := r.platform.Adopt(0, again, 4000, nil) // seen by adoption
	r.must(err)
	if fresh == old {
		t.Error("a new allocation shares the object of a freed one")
	}
	_, err = old.Start(up(old, h), h, nil)
	r.is("a copy of freed memory", err, cuda.ErrStale)
	r.is("a look at freed memory", old.Verify(), cuda.ErrStale)
	_, err = fresh.Start(up(fresh, h), old, nil)
	r.is("a copy before Prepare", err, cuda.ErrFenced)
	r.must(fresh.Prepare())
	_, err = fresh.Start([]cuda.Copy{{To: fresh.Pointer(), From: old.Pointer(), Bytes: 10}}, old, nil)
	r.is("a copy from freed memory", err, cuda.ErrStale)
	r.must(old.Drop())

	r.must(fresh.Verify())
	r.driver.Unmake(again) // seen by looking
	var facts *cuda.StaleError
	if err := fresh.Verify(); !errors.As(err, &facts) || facts.Was == 0 || facts.Is != 0 {
		t.Errorf("%v", err)
	}
	r.must(fresh.Drop())

	mine := r.allocate(4096) // and what is not ours any more is not freed
	address := mine.Pointer()
	r.driver.Unmake(address)
	stranger := r.driver.MakeForeign(context, 4096)
	if stranger != address {
		t.Fatalf("the address was not given out again: %#x, %#x", stranger, address)
	}
	r.is("the end of an allocation that somebody else freed", mine.Drop(), cuda.ErrStale)
	if !r.driver.Peek(stranger, make([]byte, 4096)) {
		t.Error("a stranger's memory was freed")
	}
	r.driver.Unmake(stranger)
	r.must(h.Free())
	r.must(r.driver.ReleasePrimary(0))
	r.close()
}

// Memory whose copies are not proven ended is refused to every later adoption, also when nobody knows its object any more.
//
// proves C-3
func TestUnquiescedMemoryIsNotAdoptedAgain(t *testing.T) {
	r := newRig(t, simcuda.Options{})
	raw := r.driver.MakeForeign(r.framework(0), 4096)
	owner := new([100]byte)
	alive := weak.Make(owner)
	func() {
		m, err := r.platform.Adopt(0, raw, 4096, owner)
		r.must(err)
		r.must(m.Prepare())
		h, _ := r.pinned(4096)
		p, err := m.Start(up(m, h), h, nil)
		r.must(err)
		r.plan("(fail-call (call cuStreamSynchronize) (count -1))")
		r.is("a drain", p.Drain(), cuda.ErrUnquiesced)
	}()
	owner = nil
	_, err := r.platform.Allocate(0, 5000) // its zeros are not proven either
	r.is("an allocation", err, cuda.ErrUnquiesced)
	for range 10 {
		runtime.GC()
		runtime.Gosched()
	}
	if alive.Value() == nil {
		t.Error("the owner of retained memory was let go")
	}
	_, err = r.platform.Adopt(0, raw+5, 1, nil)
	r.is("adoption of memory in doubt", err, cuda.ErrUnquiesced)
	_, err = r.platform.Adopt(0, raw+8192, 1, nil) // the allocation lies behind it
	r.is("adoption of an allocation in doubt", err, cuda.ErrUnquiesced)
	if n := r.platform.Counts(); n.Adopted != 1 || n.Allocations != 1 || n.Pinned != 1 || n.Contexts != 1 || n.LostOwners != 0 {
		t.Errorf("%+v", n)
	}
}

type companion struct{ dropped *int }

func (c companion) Drop() { *c.dropped++ }

func TestOwnersAndCompanionsLiveAsLongAsTheMemory(t *testing.T) {
	r := newRig(t, simcuda.Options{})
	raw := r.driver.MakeForeign(r.framework(0), 4096)
	owner := new([100]byte)
	alive := weak.Make(owner)
	one, err := r.platform.Adopt(0, raw, 4096, owner)
	r.must(err)
	two, err := r.platform.Adopt(0, raw+1, 10, []int{1}) // an owner that cannot be compared
	r.must(err)
	owner = nil
	made, dropped := 0, 0
	for _, m := range []*cuda.Memory{one, two} {
		c, err := m.Companion(func() (cuda.Companion, error) { made++; return companion{&dropped}, nil })
		if err != nil || c != (companion{&dropped}) {
			t.Error(c, err)
		}
	}
	r.must(one.Drop())
	runtime.GC()
	if made != 1 || dropped != 0 || alive.Value() == nil {
		t.Errorf("made %d, dropped %d, owner %v", made, dropped, alive.Value() != nil)
	}
	r.must(two.Drop())
	runtime.GC()
	if dropped != 1 || alive.Value() != nil {
		t.Errorf("after the last: dropped %d, owner alive %v", dropped, alive.Value() != nil)
	}
	m := r.allocate(10)
	if _, err := m.Companion(func() (cuda.Companion, error) { return nil, cuda.ErrRange }); err != cuda.ErrRange {
		t.Error(err)
	}
	r.must(m.Drop())
	r.driver.Unmake(raw)
	r.must(r.driver.ReleasePrimary(0))
	r.close()
	defer func() {
		if recover() == nil {
			t.Error("a Drop too many passed")
		}
	}()
	_ = m.Drop()
}
