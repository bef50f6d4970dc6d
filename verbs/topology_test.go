package verbs

import (
	"errors"
	"io/fs"
	"slices"
	"testing"
	"testing/fstest"
)

// machine is a sysfs of two nodes: mlx5_0 beside the GPU under one switch, mlx5_1 elsewhere in node 0, mlx5_10 in node 1,
// and a soft-RoCE device. "mlx5_1" and "mlx5_10" share characters, not components.
func machine() fs.FS {
	link := func(to string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(to), Mode: fs.ModeSymlink} }
	node := func(n string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(n + "\n")} }
	return fstest.MapFS{
		"class/infiniband/mlx5_0":      link("../../devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/infiniband/mlx5_0"),
		"class/infiniband/mlx5_1":      link("../../devices/pci0000:10/0000:10:03.0/0000:1a:00.0/infiniband/mlx5_1"),
		"class/infiniband/mlx5_10":     link("../../devices/pci0000:80/0000:80:01.0/0000:81:00.0/infiniband/mlx5_10"),
		"class/infiniband/rxe0":        link("../../devices/virtual/infiniband/rxe0"),
		"class/infiniband/odd":         link("../../elsewhere/odd"),
		"bus/pci/devices/0000:19:00.0": link("../../../devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:19:00.0"),
		"devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/numa_node": node("0"),
		"devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:19:00.0/numa_node": node("0"),
		"devices/pci0000:10/0000:10:03.0/0000:1a:00.0/numa_node":              node("0"),
		"devices/pci0000:80/0000:80:01.0/0000:81:00.0/numa_node":              node("1"),
	}
}

func spots(t *testing.T, names ...string) []Spot {
	t.Helper()
	var all []Spot
	for _, name := range names {
		s, err := LocateNIC(machine(), name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

// proves R-3
func TestNICsAreSortedByTheirWayToMemory(t *testing.T) {
	nics := spots(t, "mlx5_0", "mlx5_1", "mlx5_10", "rxe0")
	if got := HostTiers(0, nics); !slices.Equal(got, []Tier{TierNear, TierNear, TierFar, TierFar}) {
		t.Errorf("host memory of node 0: %v", got)
	}
	if got := HostTiers(-1, nics); !slices.Equal(got, []Tier{TierFar, TierFar, TierFar, TierFar}) {
		t.Errorf("host memory of an unknown node: %v", got)
	}
	gpu, err := LocatePCI(machine(), "0000:19:00.0")
	if err != nil {
		t.Fatal(err)
	}
	if got := DeviceTiers(gpu, nics); !slices.Equal(got, []Tier{TierNear, TierNode, TierFar, TierFar}) {
		t.Errorf("device memory: %v", got)
	}
	if got := DeviceTiers(gpu, spots(t, "mlx5_1", "rxe0")); !slices.Equal(got, []Tier{TierNear, TierFar}) {
		t.Errorf("device memory, the nearest is far and another unknown: %v", got)
	}
	if got := DeviceTiers(NowhereKnown, nics); !slices.Equal(got, []Tier{TierFar, TierFar, TierFar, TierFar}) {
		t.Errorf("device at an unknown place: %v", got)
	}
}

// proves R-3
func TestDistanceCountsPathComponents(t *testing.T) {
	nics := spots(t, "mlx5_0", "mlx5_1", "mlx5_10", "rxe0")
	if d, ok := nics[0].Distance(nics[1]); !ok || d != 5 {
		t.Errorf("within one root: %d %v", d, ok)
	}
	if _, ok := nics[1].Distance(nics[2]); ok {
		t.Error("two roots have a distance")
	}
	if _, ok := nics[0].Distance(nics[3]); ok {
		t.Error("an unknown place has a distance")
	}
	if d, ok := nics[0].Distance(nics[0]); !ok || d != 0 {
		t.Errorf("to itself: %d %v", d, ok)
	}
}

func TestPlacesThatCannotBeReadAreUnknown(t *testing.T) {
	if s, err := LocateNIC(machine(), "absent"); !errors.Is(err, fs.ErrNotExist) || s.Node != -1 || s.Path != nil {
		t.Errorf("absent: %+v %v", s, err)
	}
	if s, err := LocateNIC(machine(), "odd"); err == nil || s.Node != -1 {
		t.Errorf("outside of devices: %+v %v", s, err)
	}
}
