package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/libcuda"
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/libibverbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// listing is a driver that can only be asked what is there: anything else, such as a context, panics.
type listing struct {
	cuda.Calls
	gpus []cuda.DeviceInfo
}

func (l listing) Library() cuda.Library {
	return cuda.Library{Name: "libcuda", Path: "/usr/lib/libcuda.so.1", Version: 12040}
}

func (l listing) Devices() ([]cuda.DeviceInfo, error) { return l.gpus, nil }

// withGPUs puts a driver in the place of the machine's.
func withGPUs(t *testing.T, calls cuda.Calls, err error) {
	t.Helper()
	loadCUDA = func() (cuda.Calls, error) { return calls, err }
	t.Cleanup(func() { loadCUDA = libcuda.Load })
}

func withoutNICs(t *testing.T) {
	t.Helper()
	loadVerbs = func() (verbs.Calls, error) { return nothing{}, nil }
	t.Cleanup(func() { loadVerbs = libibverbs.Load })
}

// GPUs are shown with what the driver says and how far the RDMA devices are, without a context on any of them; a host
// without RDMA is a usable one.
//
// field case F-70
func TestDevicesShowsGPUsAndMakesNoContext(t *testing.T) {
	sysfs = fstest.MapFS{
		"bus/pci/devices/0000:19:00.0":                                   {Data: []byte("../../../devices/pci0000:17/0000:17:01.0/0000:19:00.0"), Mode: fs.ModeSymlink},
		"class/infiniband/mlx5_0":                                        {Data: []byte("../../devices/pci0000:17/0000:17:01.0/0000:18:00.0/infiniband/mlx5_0"), Mode: fs.ModeSymlink},
		"devices/pci0000:17/0000:17:01.0/0000:19:00.0/numa_node":         {Data: []byte("1\n")},
		"devices/pci0000:17/0000:17:01.0/0000:18:00.0/infiniband/mlx5_0": {Mode: fs.ModeDir},
	}
	t.Cleanup(func() { sysfs = os.DirFS("/sys") })
	withDevices(t, simverbs.DeviceSpec{Name: "mlx5_0"}, simverbs.DeviceSpec{Name: "mlx5_1"})
	withGPUs(t, listing{gpus: []cuda.DeviceInfo{
		{Ordinal: 0, Name: "NVIDIA H200", UUID: [16]byte{0xab, 15: 1}, PCI: "0000:19:00.0", NUMANode: 1, Memory: 141 << 30, Major: 9, Unified: true,
			GPUDirect: true, DMABuf: true, WriteOrderedAll: true, CopyEngines: 3},
		{Ordinal: 1, Name: "NVIDIA H200", NUMANode: -1, Memory: 141 << 30, Major: 9, Unified: true, Prohibited: true},
	}}, nil)
	status, out, remarks := devicesRun()
	if status != exitDone || remarks != "" {
		t.Fatalf("status %d, %s", status, remarks)
	}
	for _, want := range []string{"libcuda 12.4 /usr/lib/libcuda.so.1", "NVIDIA H200", "0000:19:00.0", "144384 MiB", "9.0", "GPU-ab000000-0000-0000-0000-000000000001",
		"peer memory yes, virtual memory no, DMA-BUF yes, write ordering all devices, flush no", "mlx5_0 is 2 steps away", "nvidia-smi -c 0"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	withoutNICs(t)
	status, out, _ = devicesRun("--json")
	var view devicesView
	if err := json.Unmarshal([]byte(out), &view); err != nil || status != exitDone || len(view.CUDA.GPUs) != 2 || view.Why == "" {
		t.Fatalf("without RDMA: status %d, %v, %s", status, err, out)
	}
	if first, second := view.CUDA.GPUs[0], view.CUDA.GPUs[1]; !first.Usable || second.Usable || second.Why == "" || first.GPUDirect.Ordering != "all devices" {
		t.Errorf("the GPUs are %+v and %+v", first, second)
	}
}

// A missing driver, and one without a GPU, are said with what to do, beside what RDMA lacks.
//
// field case F-70
func TestDevicesSaysWhyThereIsNoGPU(t *testing.T) {
	withoutNICs(t)
	for want, missing := range map[string]struct {
		calls cuda.Calls
		err   error
	}{
		"libcuda.so.1 is not there":           {nil, errors.New("libcuda.so.1 is not there")},
		"check nvidia-smi":                    {listing{}, nil},
		"GPU 2: it has no unified addressing": {listing{gpus: []cuda.DeviceInfo{{Ordinal: 2}}}, nil},
	} {
		withGPUs(t, missing.calls, missing.err)
		status, _, remarks := devicesRun("--json")
		if status != exitFailed || !strings.Contains(remarks, want) || !strings.Contains(remarks, errNoCUDA.Error()) || !strings.Contains(remarks, "rdma link add") {
			t.Errorf("status %d, no %q in %s", status, want, remarks)
		}
	}
}

func TestDescribeNamesTheGPUOfARegion(t *testing.T) {
	for want, r := range map[string]orbitte.Region{"host": {GPU: -1}, "cuda:1": {Type: orbitte.MemoryCUDA, GPU: 1}, "cuda": {Type: orbitte.MemoryCUDA, GPU: -1}} {
		if got := memoryOf(&r); got != want {
			t.Errorf("%+v is %q, want %q", r, got, want)
		}
	}
}
