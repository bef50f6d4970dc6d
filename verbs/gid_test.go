package verbs

import (
	"net/netip"
	"testing"
)

func gid(text string) GID {
	return netip.MustParseAddr(text).As16()
}

// proves
func TestAddressesAreRankedByReachThenIndex(t *testing.T) {
	entries := []GIDEntry{
		{0, gid("fe80::1"), GIDRoCEv1, "eth0"},
		{1, gid("fe80::1"), GIDRoCEv2, "eth0"},
		{2, gid("::ffff:10.1.0.5"), GIDRoCEv1, "eth0"},
		{3, gid("::ffff:172.17.0.1"), GIDRoCEv2, "docker0"},
		{4, gid("2001:db8::7"), GIDRoCEv2, ""},
		{5, gid("fd00::7"), GIDRoCEv2, "eth0"},
		{6, gid("2001:db8::7"), GIDRoCEv2, "eth0"},
		{7, gid("::ffff:192.0.2.9"), GIDRoCEv2, ""},
		{8, gid("::ffff:10.1.0.5"), GIDRoCEv2, "eth0"},
		{9, GID{}, GIDRoCEv2, "eth0"},
		{10, gid("::ffff:192.0.2.9"), GIDRoCEv2, "eth0"},
		{11, gid("::ffff:100.64.1.1"), GIDRoCEv2, "eth1"},
		{12, gid("::ffff:192.0.2.10"), GIDRoCEv2, "eth1"},
		{13, gid("2001:db8::8"), GIDRoCEv2, "cali123"},
		{14, gid("::1"), GIDRoCEv2, "lo"},
	}
	want := []int{10, 12, 8, 11, 3, 7, 6, 5, 4, 13, 1, 0, 2, 14}
	ranked := RankGIDs(entries)
	if len(ranked) != len(want) {
		t.Fatalf("%d ranked, want %d", len(ranked), len(want))
	}
	for i, r := range ranked {
		if r.Index != want[i] {
			t.Errorf("place %d: index %d (%s, %s), want %d", i, r.Index, r.GID, r.Class, want[i])
		}
		if r.Class.String() == "" {
			t.Errorf("index %d has no reason", r.Index)
		}
	}
}

// proves R-1
func TestInfiniBandAddressNeedsNoInterface(t *testing.T) {
	ranked := RankGIDs([]GIDEntry{{0, gid("fe80::2:c903:1"), GIDInfiniBand, ""}})
	if len(ranked) != 1 || ranked[0].Class != GIDNative {
		t.Fatalf("%+v", ranked)
	}
}

func TestAddressesReadAsPeopleWriteThem(t *testing.T) {
	if s := gid("::ffff:10.1.2.3").String(); s != "10.1.2.3" {
		t.Error(s)
	}
	if s := gid("2001:db8::1").String(); s != "2001:db8::1" {
		t.Error(s)
	}
}
