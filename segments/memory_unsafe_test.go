package segments

import (
	"errors"
	"math"
	"os"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// present reports whether the first page of a mapping is mapped.
func present(m mapping) bool {
	var core [1]byte
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(m.start), 1, uintptr(unsafe.Pointer(&core[0])))
	return errno == 0
}

// mincore tells for each page of b whether it is in memory.
func mincore(b *Backing, core []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(b.Address()), uintptr(b.Length()), uintptr(unsafe.Pointer(&core[0])))
	if errno != 0 {
		return errno
	}
	return nil
}

func misaligned(m mapping) unsafe.Pointer { return unsafe.Add(m.start, 1) }

// alias makes a second memory object of the same bytes, which no well-behaved program does.
func alias(t *testing.T, b *Backing, offset, length uint64) *Backing {
	t.Helper()
	second, err := AdoptPointer(unsafe.Pointer(&b.Bytes()[offset]), length, b)
	if err != nil {
		t.Fatal(err)
	}
	return second
}

// inaccessible maps memory that faults when it is touched, as a device pointer would.
func inaccessible(t *testing.T, length int) unsafe.Pointer {
	t.Helper()
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(length), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.MunmapPtr(p, uintptr(length)); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestTouchMakesPagesPresentOnKernelsThatCannotPopulate(t *testing.T) {
	leavesNothing(t)
	page := uint64(os.Getpagesize())
	b := mapped(t, 4*page)
	defer b.Drop()
	b.Bytes()[0] = 5
	touch(b.Bytes()[:2*page+1], page)
	core := make([]byte, 4)
	if err := mincore(b, core); err != nil {
		t.Fatal(err)
	}
	if core[0]&core[1]&core[2]&1 != 1 || core[3]&1 != 0 || b.Bytes()[0] != 5 {
		t.Fatalf("pages present: %v, first byte %d", core, b.Bytes()[0])
	}
}

// proves M-2, M-7
func TestForeignMemoryIsNeverTouched(t *testing.T) {
	leavesNothing(t)
	const length = 1<<32 + 4096
	b, err := AdoptPointer(inaccessible(t, length), length, nil)
	if err != nil {
		t.Fatal(err)
	}
	l := newLedger(10, math.MaxInt64)
	tracker := l.tracker()
	made, err := tracker.Register([]Spec{{Backing: b, Offset: 8, Length: length - 8}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := tracker.Borrow(b.Address()+1<<32, 4096)
	if err != nil || r != made[0] {
		t.Fatalf("%v, %v", r, err)
	}
	lease, err := r.Lease(0, r.Length(), Exclusive)
	if err != nil || uint64(len(lease.Bytes())) != length-8 {
		t.Fatalf("%v, %v", &lease, err)
	}
	if err := b.Prefault(0, length); err != nil {
		t.Fatal(err)
	}
	lease.Return()
	r.Return()
	tracker.RetireAll()
	b.Drop() // and the mapping is still the test's: its cleanup unmaps it
	l.owes(t, 0, 0)
}

// proves M-2
func TestOwnerOfForeignMemoryLivesUntilTheLastDrop(t *testing.T) {
	leavesNothing(t)
	b, gone := foreign(t)
	for range 3 {
		runtime.GC()
	}
	select {
	case <-gone:
		t.Fatal("the owner was collected under the memory object")
	default:
	}
	b.Drop()
	for i := 0; ; i++ {
		runtime.GC()
		runtime.Gosched()
		select {
		case <-gone:
			runtime.KeepAlive(b) // the ended object itself does not keep the owner
			return
		default:
		}
		if i == 10_000 {
			t.Fatal("the owner was kept after the last Drop")
		}
	}
}

type owner struct{ _ [32]byte }

// foreign returns foreign memory whose owner nobody else knows, and a channel that closes when the owner is
// collected.
func foreign(t *testing.T) (*Backing, <-chan struct{}) {
	array := make([]byte, 32)
	o := &owner{}
	gone := make(chan struct{})
	runtime.AddCleanup(o, func(c chan struct{}) { close(c) }, gone)
	b, err := AdoptPointer(unsafe.Pointer(&array[0]), 32, o)
	if err != nil {
		t.Fatal(err)
	}
	return b, gone
}

func TestForeignRangeThatWrapsIsRefused(t *testing.T) {
	leavesNothing(t)
	p := inaccessible(t, os.Getpagesize())
	for _, length := range []uint64{0, math.MaxUint64, math.MaxUint64 - uint64(uintptr(p)) + 1, math.MaxInt + 1} {
		if _, err := AdoptPointer(p, length, nil); !errors.Is(err, ErrMemory) {
			t.Fatalf("%d bytes: %v", length, err)
		}
	}
	if _, err := AdoptPointer(unsafe.Add(nil, -16), 17, nil); !errors.Is(err, ErrMemory) {
		t.Fatalf("at the top of the address space: %v", err)
	}
}

// Host memory of a native library is read and written like any other; its end is told, too.
func TestNativeHostMemoryKeepsItsBytesUntilItsEnd(t *testing.T) {
	leavesNothing(t)
	bytes, told := make([]byte, 100), false
	b, err := AdoptHost(uint64(uintptr(unsafe.Pointer(&bytes[0]))), 100, t, func() { told = true })
	if err != nil {
		t.Fatal(err)
	}
	b.Bytes()[99] = 7
	if bytes[99] != 7 || b.Kind() != Foreign || b.Owner() != any(t) || told {
		t.Errorf("%v, told %v", b, told)
	}
	if b.Drop(); !told {
		t.Error("nobody was told")
	}
	runtime.KeepAlive(bytes)
}
