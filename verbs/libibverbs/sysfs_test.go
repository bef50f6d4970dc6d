//go:build cgo && !vm

package libibverbs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/orbitte/orbitte/verbs"
)

// tree writes files below a folder.
func tree(t *testing.T, folder string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(folder, name)
		check(t, os.MkdirAll(filepath.Dir(path), 0o755))
		check(t, os.WriteFile(path, []byte(text+"\n"), 0o644))
	}
}

func TestDevicesAreListedWithTheirPlaceAndWhetherTheyAreAccessible(t *testing.T) {
	l := loadFake(t)
	sysfs, nodes := t.TempDir(), t.TempDir()
	t.Setenv("FAKE_SYSFS", sysfs)
	t.Setenv("FAKE_DEVICES", "4")
	l.nodes = nodes
	tree(t, sysfs, map[string]string{"pci/0000:18:00.0/numa_node": "1", "pci/0000:19:00.1/numa_node": "-1", "virtual/rxe/numa_node": "0"})
	for i, target := range []string{"pci/0000:18:00.0", "pci/0000:19:00.1", "virtual/rxe"} { // fake3 has no device, as soft-RoCE
		folder := filepath.Join(sysfs, fmt.Sprintf("fake%d", i))
		check(t, os.Mkdir(folder, 0o755))
		check(t, os.Symlink(filepath.Join(sysfs, target), filepath.Join(folder, "device")))
	}
	tree(t, nodes, map[string]string{"uverbs0": "", "uverbs2": "", "uverbs3": ""})
	devices, err := l.Devices()
	check(t, err)
	want := []verbs.DeviceInfo{
		{Name: "fake0", GUID: 0x0102030405060700, NUMANode: 1, PCI: "0000:18:00.0"}, {Name: "fake1", GUID: 0x0102030405060701, NUMANode: -1, PCI: "0000:19:00.1"},
		{Name: "fake2", GUID: 0x0102030405060702, NUMANode: 0}, {Name: "fake3", GUID: 0x0102030405060703, NUMANode: -1},
	}
	for i := range want {
		want[i].SysfsPath = filepath.Join(sysfs, want[i].Name)
		got := devices[i]
		accessible := got.Accessible
		got.Accessible = nil
		if got != want[i] || (accessible == nil) == (i == 1) {
			t.Errorf("got %+v (accessible: %v), want %+v", got, accessible, want[i])
		}
	}
	var p *Permission
	if err := devices[1].Accessible; !errors.As(err, &p) || p.Device != "fake1" || p.Node != filepath.Join(nodes, "uverbs1") || !errors.Is(err, syscall.ENOENT) {
		t.Errorf("the device without a node: %v", err)
	} else {
		contains(t, err, "uverbs1", "ib_uverbs")
	}
}

func TestMoreDevicesThanExpectedAreAllListed(t *testing.T) {
	l := loadFake(t)
	for _, n := range []int{0, 1, 15, 16, 17, 33, 60} {
		t.Setenv("FAKE_DEVICES", fmt.Sprint(n))
		devices, err := l.Devices()
		if err != nil || len(devices) != n {
			t.Errorf("%d devices: listed %d, %v", n, len(devices), err)
		}
	}
}

func TestAHostWithoutRDMAHasNoDevices(t *testing.T) {
	l := loadFake(t)
	t.Setenv("FAKE_DEVICES", fmt.Sprint(-int(syscall.ENOSYS)))
	if devices, err := l.Devices(); len(devices) != 0 || err != nil {
		t.Errorf("got %v, %v", devices, err)
	}
	_, err := l.OpenDevice("mlx5_0")
	var missing *NoDevice
	var native *verbs.CallError
	if !errors.Is(err, ErrNoDevice) || !errors.As(err, &missing) || !errors.As(err, &native) || !errors.Is(err, syscall.ENODEV) {
		t.Fatalf("opening there: %v", err)
	}
	contains(t, err, `"mlx5_0"`, "no RDMA device at all", "/dev/infiniband")
	t.Setenv("FAKE_DEVICES", "2")
	_, err = l.OpenDevice("mlx5_0")
	if !errors.As(err, &missing) || !slices.Equal(missing.Seen, []string{"fake0", "fake1"}) {
		t.Fatalf("opening another device: %v", err)
	}
	contains(t, err, "there are: fake0, fake1")
	t.Setenv("FAKE_DEVICES", fmt.Sprint(-int(syscall.EPERM)))
	if _, err := l.Devices(); !errors.Is(err, syscall.EPERM) {
		t.Errorf("another reason: %v", err)
	}
}

func TestADeviceWithoutPermissionSaysSoWhenOpened(t *testing.T) {
	l := loadFake(t)
	l.nodes = t.TempDir() // no nodes
	t.Setenv("FAKE_FAIL", "ibv_open_device:0:13")
	_, err := l.OpenDevice("fake1")
	var p *Permission
	var native *verbs.CallError
	if !errors.Is(err, ErrPermission) || !errors.As(err, &p) || !errors.As(err, &native) || native.Errno != syscall.EACCES {
		t.Fatalf("got %v", err)
	}
	if p.Err != error(syscall.ENOENT) { // the node's own reason leads
		t.Errorf("the reason is %v", p.Err)
	}
	contains(t, err, "uverbs1", "has no node")
	tree(t, l.nodes, map[string]string{"uverbs1": ""}) // accessible, so that is not why
	if _, err = l.OpenDevice("fake1"); errors.Is(err, ErrPermission) || !errors.Is(err, syscall.EACCES) {
		t.Errorf("with a node that opens: %v", err)
	}
}

func TestGIDsComeFromTheLibraryOrFromSysfs(t *testing.T) {
	b := newBench(t)
	got, err := b.l.GIDs(b.device, 1)
	want := []verbs.GIDEntry{{Index: 0, GID: verbs.GID{15: 1}, Interface: "lo"}, {Index: 5, GID: verbs.GID{15: 3}, Type: verbs.GIDRoCEv2, Interface: "lo"}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("by the library: %+v, %v, want %+v", got, err, want)
	}
	sysfs := t.TempDir()
	t.Setenv("FAKE_SYSFS", sysfs)
	const zero, one, two = "0000:0000:0000:0000:0000:0000:0000:0000", "fe80:0000:0000:0000:0000:0000:0000:0001", "0000:0000:0000:0000:0000:ffff:0a4d:0001"
	tree(t, sysfs, map[string]string{
		"fake1/ports/1/link_layer": "Ethernet", "fake1/ports/2/link_layer": "InfiniBand",
		"fake1/ports/1/gids/0": one, "fake1/ports/1/gids/1": zero, "fake1/ports/1/gids/2": two, "fake1/ports/1/gids/3": "rubbish", "fake1/ports/2/gids/0": one,
		"fake1/ports/1/gid_attrs/types/0": "IB/RoCE v1", "fake1/ports/1/gid_attrs/types/2": "RoCE v2", "fake1/ports/2/gid_attrs/types/0": "IB/RoCE v1",
		"fake1/ports/1/gid_attrs/ndevs/2": "eth7",
	})
	old := newBench(t, "-DOLD")
	got, err = old.l.GIDs(old.device, 1)
	want = []verbs.GIDEntry{
		{Index: 0, GID: verbs.GID{0: 0xfe, 1: 0x80, 15: 1}, Type: verbs.GIDRoCEv1},
		{Index: 2, GID: verbs.GID{10: 0xff, 11: 0xff, 12: 0x0a, 13: 0x4d, 15: 1}, Type: verbs.GIDRoCEv2, Interface: "eth7"},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("from sysfs: %+v, %v, want %+v", got, err, want)
	}
	if got, err = old.l.GIDs(old.device, 2); err != nil || len(got) != 1 || got[0].Type != verbs.GIDInfiniBand {
		t.Errorf("from sysfs, InfiniBand: %+v, %v", got, err)
	}
	if _, err = old.l.GIDs(old.device, 3); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a port that is not there: %v", err)
	}
}

func TestRatesAreTheKernelsOwn(t *testing.T) {
	for _, row := range []struct {
		width, speed int
		want         uint64
	}{{1, 1, 2_500_000_000}, {2, 32, 100_000_000_000}, {2, 64, 200_000_000_000}, {2, 128, 400_000_000_000}, {4, 16, 112_000_000_000}, {3, 32, 0}, {2, 3, 0}} {
		if got := bitsPerSecond(row.width, row.speed); got != row.want {
			t.Errorf("width %d, speed %d: %d, want %d", row.width, row.speed, got, row.want)
		}
	}
}

func TestTheCapabilityFreesOnlyInTheFirstUserNamespace(t *testing.T) {
	const whole, part = "         0          0 4294967295\n", "         0       1000          1\n"
	const capable = "CapEff:\t000001ffffffffff\nVmPin:\t      64 kB\n"
	for _, row := range []struct {
		status, users string
		limit, pinned uint64
	}{
		{capable, whole, 1<<64 - 1, 64 << 10}, {capable, part, 0, 64 << 10},
		{strings.Replace(capable, "ff\n", "00\n", 1) + "CapEff:\t0000000000003fff\n", whole, 0, 64 << 10}, {"", "", 0, 0},
	} {
		if got := parseLocking(row.status, row.users); got.limit != row.limit || got.pinned != row.pinned {
			t.Errorf("%q, %q: %+v", row.status, row.users, got)
		}
	}
	if got := (locking{limit: 100, pinned: 30}).room(); got != 70 {
		t.Errorf("30 of 100 pinned leave %d", got)
	}
	if got := (locking{limit: 100, pinned: 130}).room(); got != 0 {
		t.Errorf("130 of 100 pinned leave %d", got)
	}
}
