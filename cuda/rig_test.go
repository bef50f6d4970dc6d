package cuda_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"unsafe"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
)

// seedOf is a test's seed: from ORBITTE_SEED, or a new one. It prints how to replay.
func seedOf(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("ORBITTE_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	t.Logf("SEED=%d (replay: ORBITTE_SEED=%d go test -run '%s' ./cuda)", seed, seed, t.Name())
	return seed
}

// rig is a driver with its owners' side.
type rig struct {
	testing.TB
	driver   *simcuda.Driver
	platform *cuda.Platform
}

func newRig(t testing.TB, o simcuda.Options) *rig { return rigOf(t, seedOf(t), o) }

func rigOf(t testing.TB, seed uint64, o simcuda.Options) *rig {
	t.Helper()
	if o.Violation == nil {
		o.Violation = func(err error) { t.Error(err) }
	}
	r := &rig{TB: t, driver: simcuda.New(seed, o)}
	t.Cleanup(r.driver.Kill)
	p, err := cuda.Open(r.driver)
	if err != nil {
		t.Fatal(err)
	}
	r.platform = p
	return r
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// plan gives the driver faults in text.
func (r *rig) plan(text string) {
	r.Helper()
	faults, err := simcuda.ParsePlan(text)
	r.must(err)
	r.driver.Plan(faults...)
}

func (r *rig) allocate(bytes uint64) *cuda.Memory {
	r.Helper()
	m, err := r.platform.Allocate(0, bytes)
	r.must(err)
	return m
}

func (r *rig) pinned(bytes uint64) (*cuda.Pinned, []byte) {
	r.Helper()
	h, err := r.platform.AllocateHost(0, bytes)
	r.must(err)
	a := h.Address()
	return h, unsafe.Slice(*(**byte)(unsafe.Pointer(&a)), bytes)
}

// up and down are copies between all of a memory object and pinned memory.
func up(m *cuda.Memory, h *cuda.Pinned) []cuda.Copy {
	return []cuda.Copy{{To: m.Pointer(), From: cuda.Pointer(h.Address()), Bytes: min(m.Bytes(), h.Bytes())}}
}

func down(m *cuda.Memory, h *cuda.Pinned) []cuda.Copy {
	return []cuda.Copy{{To: cuda.Pointer(h.Address()), From: m.Pointer(), Bytes: min(m.Bytes(), h.Bytes())}}
}

// settle lets everything happen that lies ahead.
func (r *rig) settle() {
	for r.driver.Step() {
	}
}

func (r *rig) finish(p cuda.Pending) {
	r.Helper()
	r.settle()
	if done, err := p.Confirm(); !done || err != nil {
		r.Fatalf("after everything the operation is complete %t, %v", done, err)
	}
}

// empty checks that nothing is left, of the owners and of the driver.
func (r *rig) empty() {
	r.Helper()
	r.settle()
	if live := r.driver.Live(); live != (simcuda.Live{}) {
		r.Errorf("the driver has %+v", live)
	}
	if n := r.platform.Counts(); n != (cuda.Counts{SilentCopies: n.SilentCopies, OwedCallbacks: n.OwedCallbacks}) {
		r.Errorf("the owners have %+v, retained %v", n, r.platform.Retained())
	}
}

func (r *rig) close() {
	r.Helper()
	r.must(r.platform.Close())
	r.empty()
}

// kinds counts what is retained.
func (r *rig) kinds() string {
	all := map[cuda.Kind]int{}
	for _, k := range r.platform.Retained() {
		all[k.Kind]++
	}
	return fmt.Sprint(all)
}

// is checks that an error is what it should be.
func (r *rig) is(what string, err, want error) {
	r.Helper()
	if !errors.Is(err, want) {
		r.Errorf("%s: %v, want %v", what, err, want)
	}
}
