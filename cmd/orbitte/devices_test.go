package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"syscall"
	"testing"

	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/libibverbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// withDevices puts a twin with devices in the place of the native library.
func withDevices(t *testing.T, devices ...simverbs.DeviceSpec) {
	t.Helper()
	process := simverbs.NewFabric(1, simverbs.Options{}).Host("here", devices...).Process("tool")
	loadVerbs = func() (verbs.Calls, error) { return process, nil }
	withGPUs(t, nil, errNoCUDA) // the machine's own have no say
	t.Cleanup(func() {
		loadVerbs = libibverbs.Load
		if left := process.Live(); !left.Empty() {
			t.Errorf("the tool left %+v open", left)
		}
	})
}

func devicesRun(args ...string) (status int, out, remarks string) {
	var o, r bytes.Buffer
	status = run(context.Background(), &console{out: &o, remarks: &r}, append([]string{"devices"}, args...))
	return status, o.String(), r.String()
}

func TestDevicesShowsWhatAnEngineWouldFindAndWhy(t *testing.T) {
	withDevices(t,
		simverbs.DeviceSpec{Name: "mlx5_10", NUMANode: 1, PCI: "0000:19:00.0"},
		simverbs.DeviceSpec{Name: "mlx5_2", NUMANode: -1, Ports: []simverbs.PortSpec{{Network: "x", Down: true}}},
		simverbs.DeviceSpec{Name: "mlx5_3", Accessible: syscall.EACCES})
	status, out, remarks := devicesRun()
	if status != exitDone || remarks != "" {
		t.Fatalf("status %d, %s", status, remarks)
	}
	for _, want := range []string{"simverbs", "locked memory", "0000:19:00.0", "type 2B", "port 1: active, Ethernet", "port 1: down", "permission denied", "link-local address", "waits for its port"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	status, out, _ = devicesRun("--json")
	var view devicesView
	if err := json.Unmarshal([]byte(out), &view); err != nil || status != exitDone || len(view.Devices) != 3 {
		t.Fatalf("status %d, %v, %s", status, err, out)
	}
	waits, denied, works := view.Devices[0], view.Devices[1], view.Devices[2]
	if waits.Name != "mlx5_2" || waits.NIC != 0 || waits.Usable || waits.Why == "" || denied.Usable || denied.NIC != 1 {
		t.Errorf("the first are %+v and %+v", waits, denied)
	}
	gids := works.Ports[0].GIDs
	if works.Name != "mlx5_10" || !works.Usable || works.NUMA != 1 || len(gids) < 2 || gids[0].Rank != 1 || !strings.HasPrefix(gids[len(gids)-1].Reason, "link-local") {
		t.Errorf("the last one is %+v", works)
	}
}

// proves R-11
func TestADeviceWithoutWindowsIsShownAsARequestersOnly(t *testing.T) {
	withDevices(t, simverbs.DeviceSpec{Name: "irdma0", NoWindows: true}, simverbs.DeviceSpec{Name: "mlx5_0"})
	status, out, _ := devicesRun("--json")
	var view devicesView
	if err := json.Unmarshal([]byte(out), &view); err != nil || status != exitDone || len(view.Devices) != 2 {
		t.Fatalf("status %d, %v, %s", status, err, out)
	}
	if d := view.Devices[0]; d.Source || !d.Usable || !strings.Contains(d.Why, "type 2B") || !strings.Contains(d.Why, "own requests only") {
		t.Errorf("the device without windows is %+v", d)
	}
	if d := view.Devices[1]; !d.Source || !d.Usable || d.Why != "" {
		t.Errorf("the other one is %+v", d)
	}
}

// field case F-70
func TestDevicesSaysWhatIsMissingAndFails(t *testing.T) {
	withGPUs(t, nil, errNoCUDA)
	loadVerbs = func() (verbs.Calls, error) {
		return nil, &libibverbs.NoLibrary{Path: "libibverbs.so.1", Loader: "no such file"}
	}
	t.Cleanup(func() { loadVerbs = libibverbs.Load })
	said := func(what, word string) {
		t.Helper()
		status, out, remarks := devicesRun()
		if status != exitFailed || !strings.Contains(out, word) || !strings.Contains(remarks, errNoRDMA.Error()) {
			t.Errorf("%s: status %d, %s%s", what, status, out, remarks)
		}
		if strings.Contains(remarks, word) || strings.Contains(remarks, "one of the devices") {
			t.Errorf("%s: said twice, or of devices that there are not: %s", what, remarks)
		}
		if status, out, _ := devicesRun("--json"); status != exitFailed || strings.Count(out, word) != 2 {
			t.Errorf("%s, in JSON: status %d, %s", what, status, out)
		}
	}
	said("without a library", "libibverbs1")
	loadVerbs = func() (verbs.Calls, error) { return nothing{}, nil }
	said("without a device", "rdma link add")
	withDevices(t, simverbs.DeviceSpec{Name: "mlx5_0", Accessible: syscall.EACCES})
	status, out, remarks := devicesRun("--json")
	if status != exitFailed || strings.Count(out, "\n") != 2 || !strings.Contains(out, `{"error":`) || !strings.Contains(remarks, "mlx5_0: it cannot be opened: permission denied") {
		t.Errorf("without a permission: status %d, %s%s", status, out, remarks)
	}
	if status, _, _ = devicesRun("mlx5_0"); status != exitUsage {
		t.Errorf("with an operand: status %d", status)
	}
}

// nothing is a library that sees no device.
type nothing struct{ verbs.Calls }

func (nothing) Devices() ([]verbs.DeviceInfo, error) { return nil, nil }

func (nothing) Library() verbs.Library { return verbs.Library{Name: "twin"} }
