package verbs

import (
	"errors"
	"strings"
	"testing"
)

var (
	activePort = PortInfo{State: PortActive, Ethernet: true, MTU: 1024}
	entryLink  = GIDEntry{0, gid("fe80::1"), GIDRoCEv2, "eth0"}
	entryIPv4  = GIDEntry{1, gid("::ffff:10.0.0.1"), GIDRoCEv2, "eth0"}
	entryMoved = GIDEntry{5, gid("::ffff:10.0.0.1"), GIDRoCEv2, "eth0"}
	entryOther = GIDEntry{1, gid("::ffff:10.0.0.2"), GIDRoCEv2, "eth0"}
)

func routeOver(e GIDEntry) Route { return Route{Port: 1, GID: e, Ethernet: true, MTU: 1024} }

// proves R-19
func TestActiveContextKeepsItsAddressOnlyWhileItIsThere(t *testing.T) {
	down := activePort
	down.State = PortDown
	cases := []struct {
		name    string
		port    PortInfo
		entries []GIDEntry
		keep    bool
		why     string
	}{
		{"unchanged", activePort, []GIDEntry{entryLink, entryIPv4}, true, ""},
		{"better one appears", activePort, []GIDEntry{entryLink, entryIPv4, {3, gid("::ffff:192.0.2.1"), GIDRoCEv2, "eth0"}}, true, ""},
		{"port down", down, []GIDEntry{entryLink, entryIPv4}, false, "port is down"},
		{"vanished", activePort, []GIDEntry{entryLink}, false, "index 1 is empty"},
		{"moved to another index", activePort, []GIDEntry{entryLink, entryMoved}, false, "index 1 is empty"},
		{"another address at the index", activePort, []GIDEntry{entryLink, entryOther}, false, "10.0.0.1"},
	}
	for _, c := range cases {
		v := judge("rxe0 port 1", routeOver(entryIPv4), false, nil, c.port, c.entries)
		if v.Keep != c.keep || !strings.Contains(v.Why, c.why) {
			t.Errorf("%s: keep %v, why %q", c.name, v.Keep, v.Why)
		}
		if v.Keep && v.Route.GID != entryIPv4 {
			t.Errorf("%s: keeps %s", c.name, v.Route)
		}
	}
}

// proves R-20
func TestPausedContextRanksAgainUnlessItIsPinned(t *testing.T) {
	zero, seven := 0, 7
	now := routeOver(entryLink)
	entries := []GIDEntry{entryLink, entryMoved}
	if v := judge("rxe0 port 1", now, true, nil, activePort, entries); !v.Usable || v.Keep || v.Route.GID != entryMoved {
		t.Errorf("automatic: %+v", v)
	}
	if v := judge("rxe0 port 1", now, true, &zero, activePort, entries); !v.Usable || v.Route.GID != entryLink {
		t.Errorf("pinned: %+v", v)
	}
	if v := judge("rxe0 port 1", now, true, &seven, activePort, entries); v.Usable || !strings.Contains(v.Why, "pinned GID index 7") {
		t.Errorf("pinned to an empty index: %+v", v)
	}
	if v := judge("rxe0 port 1", now, true, nil, PortInfo{State: PortInit}, entries); v.Usable || v.Keep {
		t.Errorf("port not active: %+v", v)
	}
}

// proves R-1
func TestPinnedIndexNeverFallsBack(t *testing.T) {
	three := 3
	_, err := chooseRoute("rxe0 port 1", 1, &three, activePort, []GIDEntry{entryLink, entryIPv4})
	var e *RouteError
	if !errors.As(err, &e) || !errors.Is(err, ErrRoute) || !strings.Contains(err.Error(), "index 3") {
		t.Fatal(err)
	}
	if _, err = chooseRoute("rxe0 port 1", 1, nil, activePort, nil); !errors.Is(err, ErrRoute) {
		t.Fatal(err)
	}
}
