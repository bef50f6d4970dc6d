package cuda_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
)

// proves C-1
func TestAnUnusableDriverIsATypedErrorAtOpen(t *testing.T) {
	for _, c := range []struct {
		options simcuda.Options
		plan    string
		want    error
		text    string
	}{
		{simcuda.Options{Version: 11020}, "", cuda.ErrOldDriver, "install one for CUDA 11.3"},
		{simcuda.Options{None: true}, "", cuda.ErrNoDevice, "CUDA_VISIBLE_DEVICES"},
		{simcuda.Options{}, "(fail-call (call cuDeviceGet) (result CUDA_ERROR_SYSTEM_DRIVER_MISMATCH))", &cuda.CallError{Result: cuda.DriverMismatch}, "cuDeviceGet"},
	} {
		d := simcuda.New(1, c.options)
		plan, err := simcuda.ParsePlan(c.plan)
		if err != nil {
			t.Fatal(err)
		}
		d.Plan(plan...)
		p, err := cuda.Open(d)
		if p != nil || !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%v: %v", c.want, err)
		}
		if d.Calls(simcuda.CallAcquire) != 0 {
			t.Errorf("%v: a context was made", c.want)
		}
		d.Kill()
	}
}

// proves C-1
func TestUnusableDevicesAreRefusedByName(t *testing.T) {
	r := newRig(t, simcuda.Options{Devices: []cuda.DeviceInfo{
		{}, {Name: "shut", Memory: 1 << 20, Unified: true, Prohibited: true}, {Name: "old", Memory: 1 << 20},
	}})
	if all := r.platform.Devices(); len(all) != 3 || all[2].Ordinal != 2 || all[0].Name == "" {
		t.Errorf("%+v", all)
	}
	raw := r.driver.MakePool(2, 100)
	for ordinal, want := range map[int]error{1: cuda.ErrProhibited, 2: cuda.ErrNotUnified, 3: cuda.ErrNoDevice, -1: cuda.ErrNoDevice} {
		_, device := r.platform.Device(ordinal)
		_, allocate := r.platform.Allocate(ordinal, 1)
		_, host := r.platform.AllocateHost(ordinal, 1)
		_, context := r.platform.Context(ordinal)
		for _, err := range []error{device, allocate, host, context} {
			var facts *cuda.DeviceError
			if !errors.Is(err, want) || !errors.As(err, &facts) || facts.Ordinal != ordinal || facts.Devices != 3 {
				t.Errorf("GPU %d: %v, want %v", ordinal, err, want)
			}
		}
	}
	_, err := r.platform.Adopt(2, raw, 100, nil)
	r.is("adoption on a device without unified addresses", err, cuda.ErrNotUnified)
	if _, err := r.platform.Device(0); err != nil {
		t.Error(err)
	}
	r.driver.Unmake(raw)
	if r.driver.Calls(simcuda.CallAcquire) != 0 {
		t.Error("a context was made on the way")
	}
	r.close()
}

// All engines that open a driver share its platform, and its last user cannot leave objects unseen.
func TestADriverHasOnePlatform(t *testing.T) {
	r := newRig(t, simcuda.Options{})
	again, err := cuda.Open(r.driver)
	r.must(err)
	if again != r.platform {
		t.Error("one driver has two platforms")
	}
	m := r.allocate(100)
	r.must(again.Close())
	var left *cuda.BusyError
	if err := r.platform.Close(); !errors.As(err, &left) || left.Kept || !strings.Contains(err.Error(), "1 allocations") {
		t.Errorf("close with an allocation: %v", err)
	}
	r.must(m.Drop())
	r.close()
	other, err := cuda.Open(r.driver)
	r.must(err)
	if other == r.platform {
		t.Error("a closed platform was opened again")
	}
	r.must(other.Close())
	defer func() {
		if recover() == nil {
			t.Error("one close too many passed")
		}
	}()
	_ = other.Close()
}

// No context is made on a GPU that nobody asked for, least of all on GPU 0 (SPEC C-2).
func TestContextsAreMadeWhereTheyAreAskedFor(t *testing.T) {
	r := newRig(t, simcuda.Options{})
	active := func(want0, want1 bool) {
		t.Helper()
		for i, want := range []bool{want0, want1} {
			if got, err := r.driver.PrimaryActive(i); err != nil || got != want {
				t.Errorf("GPU %d is active %t, want %t, %v", i, got, want, err)
			}
		}
	}
	active(false, false)
	m, err := r.platform.Allocate(1, 10)
	r.must(err)
	h, err := r.platform.AllocateHost(1, 10)
	r.must(err)
	c, err := r.platform.Context(1)
	r.must(err)
	active(false, true)
	if c.Holders() != 2 || r.driver.Calls(simcuda.CallAcquire) != 1 || m.Context() != c || c.Device().Ordinal != 1 {
		t.Errorf("%v has %d holders after %d acquisitions", c, c.Holders(), r.driver.Calls(simcuda.CallAcquire))
	}
	r.must(m.Drop())
	active(false, true)
	r.must(h.Free())
	active(false, false)
	if c.Holders() != 0 || r.driver.Calls(simcuda.CallRelease) != 1 {
		t.Errorf("%v has %d holders after %d releases", c, c.Holders(), r.driver.Calls(simcuda.CallRelease))
	}
	r.close()
	defer func() {
		if recover() == nil {
			t.Error("a share was given up that nobody had")
		}
	}()
	_ = c.Drop()
}
