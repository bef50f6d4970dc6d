package rdma

import (
	"testing"
	"time"

	"github.com/orbitte/orbitte/netproto"
)

// proves R-3
func TestAPairThatCouldNotBeConnectedComesLastUntilItsTimeIsOver(t *testing.T) {
	rails := []LocalNIC{rail(0, "a"), rail(1, "b")}
	remote := []netproto.Path{path(0, "a"), path(1, "b")}
	peer := netproto.Epoch{1}
	s := Selector{Peer: peer}
	bar := func(local, to uint8, now int64) {
		failed := Gap{Peer: peer, Local: local, Remote: to, LocalGID: ipv4, RemoteGID: ipv4}
		s.Gaps, _ = widen(s.Gaps, failed, now)
	}
	take := func(local, to uint8, barred bool) {
		t.Helper()
		p, err := s.Choose(rails, remote, &Tiers{0: 0, 1: 3}, &Loads{})
		if err != nil || p.Local != local || p.Remote != to || (p.Barred != 0) != barred {
			t.Errorf("%v, barred until %d, %v; want NIC %d to NIC %d", p, p.Barred, err, local, to)
		}
	}
	take(0, 0, false)
	bar(0, 0, 1)
	take(0, 1, false) // the same device reaches another one perhaps
	bar(0, 1, 2)
	take(1, 1, false) // a farther device is better than none
	s.Peer[0]++
	take(0, 0, false) // another process
	s.Peer[0]--
	bar(1, 1, 3)
	bar(1, 0, 4)
	take(0, 0, true) // all are barred: the first whose time ends
	bar(0, 0, 5)     // twice as long from now on
	take(0, 1, true)
	s.Now = 2 + int64(gapFirst)
	take(0, 1, false)
	remote[0].GID[15]++ // another address
	take(0, 0, false)
}

// proves R-3
func TestWhatIsRememberedOfPairsIsBoundedInTimeAndNumber(t *testing.T) {
	var gaps []Gap
	var last Gap
	now := int64(1)
	for i, want := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 5 * time.Minute, 5 * time.Minute} {
		gaps, last = widen(gaps, Gap{Local: 3}, now)
		if last.Times != i+1 || last.Since != 1 || time.Duration(last.Until-now) != want {
			t.Errorf("failure %d: %+v, want %v", i+1, last, want)
		}
		now += 10
	}
	if _, other := widen(gaps, Gap{Local: 3, LocalGID: ipv4}, now); other.Times != 1 {
		t.Errorf("another address has the failures of the old one: %+v", other)
	}
	for i := range 2 * gapsMax {
		gaps, _ = widen(gaps, Gap{Peer: netproto.Epoch{byte(i), byte(i >> 8)}}, now+int64(i))
	}
	if len(gaps) != gapsMax || gaps[gapsMax-1].Peer != (netproto.Epoch{0xff, 1}) {
		t.Errorf("%d gaps, want %d with the newest", len(gaps), gapsMax)
	}
	if gaps, _ = widen(gaps, Gap{}, now+int64(time.Hour)); len(gaps) != 1 {
		t.Errorf("%d gaps after an hour, want 1", len(gaps))
	}
}
