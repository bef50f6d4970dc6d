package cudatest

import (
	"github.com/orbitte/orbitte/cuda"
)

var lifeCases = []conformance{
	{"TheLibrarySaysWhatItIs", library},
	{"DevicesAreListedWithoutAContext", devices},
	{"UnknownDevicesAreRefused", unknownDevices},
	{"PrimaryContextsAreCounted", balance},
	{"ObjectsComeAndGo", comeAndGo},
}

func library(r *rig) {
	if l := r.Library(); l.Name == "" || l.Version < cuda.DriverVersionMin {
		r.Errorf("library %+v", l)
	}
}

// devices: cuDeviceGetCount, cuDeviceGetAttribute.
func devices(r *rig) {
	before := map[int]bool{}
	for _, i := range r.Ordinals {
		active, err := r.PrimaryActive(i)
		r.must(err)
		before[i] = active
	}
	all, err := r.Devices()
	r.must(err)
	for i, d := range all {
		if d.Ordinal != i || d.Name == "" || d.Memory == 0 || d.UUID == [16]byte{} || d.Major == 0 {
			r.Errorf("device %d: %+v", i, d)
		}
	}
	for _, i := range r.Ordinals {
		if i >= len(all) || !all[i].Unified || all[i].Prohibited {
			r.Fatalf("GPU %d is to be tested: %+v", i, all)
		}
		if active, err := r.PrimaryActive(i); err != nil || active != before[i] {
			r.Errorf("listing devices made a context on GPU %d: %t, %v", i, active, err)
		}
	}
}

// unknownDevices: cuDeviceGet: CUDA_ERROR_INVALID_DEVICE.
func unknownDevices(r *rig) {
	for _, ordinal := range []int{-1, 4711} {
		_, err := r.AcquirePrimary(ordinal)
		r.refused("a context on a device that is not there", err, cuda.InvalidDevice, cuda.InvalidValue)
		r.refused("release on a device that is not there", r.ReleasePrimary(ordinal), cuda.InvalidDevice, cuda.InvalidValue)
		_, err = r.PrimaryActive(ordinal)
		r.refused("state of a device that is not there", err, cuda.InvalidDevice, cuda.InvalidValue)
	}
}

// balance: cuDevicePrimaryCtxRetain counts; the last cuDevicePrimaryCtxRelease ends the context.
func balance(r *rig) {
	for _, ordinal := range r.Ordinals {
		before, err := r.PrimaryActive(ordinal)
		r.must(err)
		if r.Facts.Idle.Holds && before {
			r.Errorf("somebody holds the primary context of GPU %d (%s)", ordinal, r.Facts.Idle.Why)
		}
		first, err := r.AcquirePrimary(ordinal)
		r.must(err)
		second, err := r.AcquirePrimary(ordinal)
		r.must(err)
		if first == 0 || first != second {
			r.Errorf("two references to the primary context of GPU %d: %#x, %#x", ordinal, uint64(first), uint64(second))
		}
		r.must(r.ReleasePrimary(ordinal))
		if active, err := r.PrimaryActive(ordinal); err != nil || !active {
			r.Errorf("a primary context that is held once more is active %t, %v", active, err)
		}
		r.must(r.ReleasePrimary(ordinal))
		if active, err := r.PrimaryActive(ordinal); err != nil || active != before {
			r.Errorf("a primary context was active %t before, %t after: %v", before, active, err)
		}
	}
}

// comeAndGo: objects leave nothing behind, and nothing is in their way.
func comeAndGo(r *rig) {
	for range 20 {
		h, err := r.AcquirePrimary(r.Ordinals[0])
		r.must(err)
		p, err := r.Allocate(h, 3)
		r.must(err)
		a, err := r.AllocateHost(h, 5)
		r.must(err)
		s, err := r.CreateStream(h)
		r.must(err)
		e, err := r.CreateEvent(h)
		r.must(err)
		g, err := r.OpenSignal()
		r.must(err)
		if p == 0 || a == 0 || s == 0 || e == 0 || g == 0 {
			r.Fatalf("handles %#x, %#x, %#x, %#x, %#x", uint64(p), a, uint64(s), uint64(e), uint64(g))
		}
		if owed := r.CloseSignal(g); owed != 0 {
			r.Errorf("%d callbacks are owed to a signal that was never used", owed)
		}
		r.must(r.DestroyEvent(h, e))
		r.must(r.DestroyStream(h, s))
		r.must(r.FreeHost(h, a))
		r.must(r.Free(h, p))
		r.must(r.ReleasePrimary(r.Ordinals[0]))
	}
}
