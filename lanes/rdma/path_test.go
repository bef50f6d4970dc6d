package rdma

import (
	"errors"
	"flag"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"pgregory.net/rapid"
)

// seeded chooses a seed for rapid unless -rapid.seed gave one, and says how to replay.
func seeded(t *testing.T) {
	t.Helper()
	if flag.Lookup("rapid.seed").Value.String() == "0" {
		if err := flag.Set("rapid.seed", strconv.FormatInt(time.Now().UnixNano(), 10)); err != nil {
			t.Fatal(err)
		}
	}
	seed := flag.Lookup("rapid.seed").Value.String()
	t.Logf("SEED=%s replay: go test -run '^%s$' -rapid.seed=%s", seed, t.Name(), seed)
}

func gid(text string) [netproto.GIDSize]byte { return netip.MustParseAddr(text).As16() }

var ipv4, ipv6 = gid("::ffff:10.0.0.1"), gid("2001:db8::1")

func rail(nic uint8, name string) LocalNIC {
	return LocalNIC{NIC: nic, Active: true, Link: netproto.LinkEthernet, GID: ipv4, Name: name}
}

func path(nic uint8, name string) netproto.Path {
	return netproto.Path{NIC: nic, Port: 1, State: netproto.PathActive, Link: netproto.LinkEthernet, GID: ipv4, PD: 1, Name: name}
}

// proves R-3
func TestPathIsTheNearestThenTheLeastLoadedThenTheNextInTurn(t *testing.T) {
	rails := []LocalNIC{rail(0, "a"), rail(1, "b"), rail(2, "c"), rail(5, "d")}
	remote := []netproto.Path{path(0, "a"), path(1, "b"), path(2, "c"), path(3, "d")}
	var s Selector
	tiers, loads := Tiers{0: 1, 1: 0, 2: 0, 5: 0}, Loads{}
	take := func(want uint8) {
		t.Helper()
		p, err := s.Choose(rails, remote, &tiers, &loads)
		if err != nil || p.Local != want {
			t.Fatalf("%v %v, want NIC %d", p, err, want)
		}
	}
	for range 3 {
		take(1)
		take(2)
		take(5)
	}
	loads[1] = 100
	take(2)
	take(5)
	take(2)
	loads[2], loads[5] = 200, 150
	take(1)
	take(1)
	tiers[1], tiers[2], tiers[5] = 2, 2, 2
	loads[0] = 1 << 40
	take(0)
	s.Mask = 1<<2 | 1<<5
	take(5)
	rails[3].Active = false
	take(2)
}

// proves R-3
func TestRemoteNICHasTheSameNameOrElseTheSameNumberOrElseTheLowest(t *testing.T) {
	var s Selector
	var tiers Tiers
	var loads Loads
	for _, c := range []struct {
		name   string
		local  LocalNIC
		remote []netproto.Path
		want   uint8
		same   bool
	}{
		{"same name", rail(0, "b"), []netproto.Path{path(0, "a"), path(3, "b")}, 3, true},
		{"same name is paused", rail(0, "b"), []netproto.Path{path(1, "a"), {NIC: 3, Link: netproto.LinkEthernet, GID: ipv4, Name: "b"}}, 1, false},
		{"no such name, the same number", rail(3, "x"), []netproto.Path{path(2, "a"), path(3, "b"), path(1, "c")}, 3, false},
		{"the same number is paused", rail(0, "x"), []netproto.Path{{NIC: 0, Link: netproto.LinkEthernet, GID: ipv4, Name: "a"}, path(2, "b")}, 2, false},
		{"no such name", rail(0, "x"), []netproto.Path{path(4, "b"), path(2, "a")}, 2, false},
		{"same name in another family", rail(0, "a"), []netproto.Path{{NIC: 0, State: netproto.PathActive, Link: netproto.LinkEthernet, GID: ipv6, Name: "a"}, path(6, "b")}, 6, false},
	} {
		p, err := s.Choose([]LocalNIC{c.local}, c.remote, &tiers, &loads)
		if err != nil || p.Remote != c.want || p.SameName != c.same {
			t.Errorf("%s: %+v %v", c.name, p, err)
		}
	}
	ib := LocalNIC{NIC: 0, Active: true, Link: netproto.LinkInfiniBand, GID: gid("fe80::1"), Name: "a"}
	other := path(1, "b")
	other.Link, other.GID = netproto.LinkInfiniBand, ipv4
	if p, err := s.Choose([]LocalNIC{ib}, []netproto.Path{path(0, "a"), other}, &tiers, &loads); err != nil || p.Remote != 1 {
		t.Errorf("InfiniBand: %+v %v", p, err)
	}
}

// proves R-3
// field case F-70
func TestWithoutAPathTheReasonsAreCounted(t *testing.T) {
	s := Selector{Mask: 0b1110}
	paused := rail(1, "b")
	paused.Active = false
	six := rail(2, "c")
	six.GID = ipv6
	away := path(0, "a")
	away.State = netproto.PathPaused
	_, err := s.Choose([]LocalNIC{rail(0, "a"), paused, six, rail(3, "d")}, []netproto.Path{away}, &Tiers{}, &Loads{})
	var e *NoPath
	if !errors.As(err, &e) || *e != (NoPath{Rails: 4, Masked: 1, Paused: 1, Unmatched: 2, Remote: 1, RemotePaused: 1}) {
		t.Fatal(err)
	}
	if !strings.Contains(err.Error(), "no other transport is taken") || netproto.StatusOf(err) != netproto.StatusBackendUnavailable || e.Fault().Cause != lanes.Unreachable {
		t.Error(err)
	}
}

// proves R-3
func TestChosenPathIsNeverWorseThanAnyOther(t *testing.T) {
	seeded(t)
	rapid.Check(t, func(t *rapid.T) {
		var rails []LocalNIC
		var remote []netproto.Path
		var tiers Tiers
		var loads Loads
		names := []string{"a", "b", "c"}
		for nic := range rapid.IntRange(0, 6).Draw(t, "rails") {
			r := rail(uint8(nic), rapid.SampledFrom(names).Draw(t, "name"))
			r.Active = rapid.Bool().Draw(t, "active")
			if rapid.Bool().Draw(t, "six") {
				r.GID = ipv6
			}
			tiers[nic], loads[nic] = uint8(rapid.IntRange(0, 2).Draw(t, "tier")), rapid.Uint64Range(0, 3).Draw(t, "load")
			rails = append(rails, r)
		}
		for nic := range rapid.IntRange(0, 4).Draw(t, "remote") {
			p := path(uint8(nic), rapid.SampledFrom(names).Draw(t, "name"))
			p.State = netproto.PathState(rapid.IntRange(0, 1).Draw(t, "state"))
			remote = append(remote, p)
		}
		s := Selector{Mask: rapid.SampledFrom([]uint64{0, 1, 0b1010, ^uint64(0)}).Draw(t, "mask"), next: rapid.IntRange(0, 63).Draw(t, "next")}
		before := s.next
		p, err := s.Choose(rails, remote, &tiers, &loads)
		usable := 0
		for i := range rails {
			r := &rails[i]
			for j := range remote {
				if !s.allows(r.NIC) || !r.Active || !compatible(r, &remote[j]) {
					continue
				}
				usable++
				if err != nil {
					t.Fatalf("refused, and NIC %d to %d is a path", r.NIC, remote[j].NIC)
				}
				if tiers[r.NIC] < p.Tier || tiers[r.NIC] == p.Tier && loads[r.NIC] < loads[p.Local] {
					t.Fatalf("chose %v, and NIC %d is better", p, r.NIC)
				}
				if r.NIC == p.Local && remote[j].Name == r.Name && !p.SameName {
					t.Fatalf("chose %v past the same name", p)
				}
			}
		}
		if err == nil && usable == 0 {
			t.Fatalf("chose %v, which is no path", p)
		}
		if err == nil && s.next != int(p.Local)+1 || err != nil && s.next != before {
			t.Fatalf("turn went from %d to %d", before, s.next)
		}
	})
}

func TestChoosingAllocatesNothing(t *testing.T) {
	rails, remote := []LocalNIC{rail(0, "a"), rail(1, "b")}, []netproto.Path{path(0, "a"), path(1, "b")}
	var s Selector
	var tiers Tiers
	var loads Loads
	if n := testing.AllocsPerRun(100, func() { _, _ = s.Choose(rails, remote, &tiers, &loads) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
