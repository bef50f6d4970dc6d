package verbs

import (
	"errors"
	"strings"
	"syscall"
	"testing"
)

// proves R-1
func TestWhitelistWinsOverBlacklist(t *testing.T) {
	cases := []struct {
		f    Filter
		name string
		want bool
	}{
		{Filter{}, "a", true},
		{Filter{Blacklist: []string{"a"}}, "a", false},
		{Filter{Blacklist: []string{"a"}}, "b", true},
		{Filter{Whitelist: []string{"a"}, Blacklist: []string{"a"}}, "a", true},
		{Filter{Whitelist: []string{"a"}}, "b", false},
	}
	for _, c := range cases {
		if got := c.f.Allows(c.name); got != c.want {
			t.Errorf("%+v allows %q: %v", c.f, c.name, got)
		}
	}
}

// proves R-1
func TestMaskHasABitForEachStableNIC(t *testing.T) {
	if !Mask(0).Has(0) || !Mask(0).Has(63) || Mask(0).Has(64) || Mask(0).Has(-1) {
		t.Error("the empty mask")
	}
	if Mask(1<<63).Has(62) || !Mask(1<<63).Has(63) || Mask(1<<63).Has(127) || Mask(1).Has(64) {
		t.Error("a mask of one NIC")
	}
}

// proves
func TestNICNumbersFollowNamesWhateverTheOrderOfTheList(t *testing.T) {
	devices := []DeviceInfo{{Name: "mlx5_10"}, {Name: "rxe0"}, {Name: "mlx5_2"}, {Name: "mlx5_02"}, {Name: "mlx5_1"}}
	got, err := Candidates(devices, Filter{Blacklist: []string{"rxe0"}}, Pins{})
	var names []string
	for _, d := range got {
		names = append(names, d.Name)
	}
	if err != nil || strings.Join(names, " ") != "mlx5_1 mlx5_02 mlx5_2 mlx5_10" {
		t.Fatalf("%v %v", names, err)
	}
}

// proves R-1
func TestAPinnedDeviceIsThatOneOrNone(t *testing.T) {
	devices := []DeviceInfo{{Name: "rxe0"}, {Name: "rxe1"}}
	if got, err := Candidates(devices, Filter{}, PinDevice("rxe1")); err != nil || len(got) != 1 || got[0].Name != "rxe1" {
		t.Fatalf("%v %v", got, err)
	}
	for _, c := range []struct {
		f    Filter
		pins Pins
		want string
	}{
		{Filter{}, PinDevice("mlx5_0"), "sees rxe0, rxe1"},
		{Filter{Blacklist: []string{"rxe1"}}, PinDevice("rxe1"), "excludes it"},
		{Filter{Whitelist: []string{"x"}}, Pins{}, "excludes all"},
	} {
		if _, err := Candidates(devices, c.f, c.pins); !errors.Is(err, ErrSelection) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if _, err := Candidates(nil, Filter{}, Pins{}); !errors.Is(err, ErrSelection) || !strings.Contains(err.Error(), "sees none") {
		t.Error(err)
	}
	if _, err := Candidates(make([]DeviceInfo, NICsMax+1), Filter{}, Pins{}); !errors.Is(err, ErrSelection) {
		t.Error(err)
	}
	if p := PinDevice("rxe1"); *p.Port != 1 || *p.GIDIndex != 0 {
		t.Error("a named device pins port 1 and index 0")
	}
}

// field case F-62
func TestMemlockRefusalNamesTheLimitAndTheFix(t *testing.T) {
	err := error(&MemlockError{Asked: 1 << 20, Limit: 64 << 10, Pinned: 4096})
	for _, want := range []string{"1048576", "65536", "4096", "ulimit -l", "LimitMEMLOCK", "nothing was registered"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
	native := &CallError{Call: "ibv_reg_mr", Object: "rxe0", Errno: syscall.ENOMEM}
	err = &MemlockError{Err: native}
	if !errors.Is(err, ErrMemlock) || !errors.Is(err, syscall.ENOMEM) {
		t.Error(err)
	}
}

func TestEveryRefusalSaysWhatAndWhatToDo(t *testing.T) {
	refused := &CallError{Call: "ibv_destroy_qp", Object: "pair", Errno: syscall.EBUSY}
	for err, wants := range map[error][]string{
		&RetainedError{"queue pair 0x11 of rxe0", "ibv_destroy_qp", refused}:          {"queue pair 0x11", "not repeated", "RetainedResources"},
		busy("domain", false, Debt{"queue pairs", 2}, Debt{"x", 0}):                   {"domain", "2 queue pairs", "end those first"},
		busy("domain", true, Debt{"queue pairs", 1}):                                  {"stays as well"},
		&FencedError{"queue pair 0x11", "fenced", "retries exceeded"}:                 {"retries exceeded", "nothing was posted", "drain"},
		&FencedError{"context rxe0", "paused", "port is down"}:                        {"wait for its port"},
		&CreditError{Queue: "send queue", Asked: 2, Used: 15, Limit: 16}:              {"asked 2", "in use 15", "limit 16", "wait"},
		&CreditError{Queue: "send queue", Asked: 17, Limit: 16}:                       {"never fit"},
		&PostError{Object: "pair", Posted: 1, Asked: 3, Err: refused}:                 {"1 of 3", "certainly not"},
		&PostError{Object: "pair", Posted: 3, Asked: 3, Unknown: true, Err: refused}:  {"all stay charged", "drain"},
		&KeyError{Object: "domain", Indices: 4, Limit: 4, Why: "the history is full"}: {"4 of 4", "max_window_key_indices"},
		&ViolationError{"pair", "two pairs have one number"}:                          {"two pairs", "fenced"},
		&SelectionError{Device: "mlx5_0", Why: "the process may not open it"}:         {"mlx5_0", "orbitte devices"},
		&RouteError{Object: "rxe0 port 1", Why: "its GID table is empty"}:             {"rxe0 port 1", "GID table", "orbitte devices"},
	} {
		for _, want := range wants {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q lacks %q", err, want)
			}
		}
	}
	if busy("domain", false, Debt{"x", 0}) != nil {
		t.Error("no debt is a refusal")
	}
	if !errors.Is(&RetainedError{Err: refused}, syscall.EBUSY) || !errors.Is(&PostError{Err: refused}, syscall.EBUSY) {
		t.Error("the system's error is hidden")
	}
}
