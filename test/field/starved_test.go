package field

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/orbitte/orbitte"
)

const (
	starvedDescriptors = 64
	starvedWatch       = 2 * time.Second
	starvedShare       = 0.05 // of one processor
)

// field case F-35, F-36
func TestASourceWithoutDescriptorsStaysQuietAndComesBack(t *testing.T) {
	t.Parallel()
	onKernels(t, func(t *testing.T, kernel orbitte.KernelChoice) {
		t.Parallel()
		src := spawnSource(t, settings{Kernel: kernel, Log: true}, pageBytes, nofileVariable+"=64")
		e := openEngine(t, orbitte.Config{Kernel: kernel})
		s := openSegment(t, e, src.Endpoint, src.Epoch)
		local := buffer(t, e, pageBytes)
		read := orbitte.Request{Operation: orbitte.Read, Segment: s, Local: local.Address(), Remote: src.Address, Length: pageBytes}
		var crowd []*wire
		for range 2 * starvedDescriptors {
			crowd = append(crowd, dial(t, src.Endpoint))
		}
		if !eventually(5*time.Second, func() bool {
			return ask[counters](src.child, "stats", engineOf{}).Totals.AcceptErrors > 0
		}) {
			t.Fatal("the source accepted everything: the limit does not bite")
		}
		lines, cpu := len(ask[[]string](src.child, "log", nil)), ask[time.Duration](src.child, "cpu", nil)
		for range 4 { // whoever has a stream is served all the while
			time.Sleep(starvedWatch / 4)
			if _, err := submit(e, 10*time.Second, read); err != nil {
				t.Errorf("a connected peer of the starved source: %v", err)
			}
		}
		if used := ask[time.Duration](src.child, "cpu", nil) - cpu; used > time.Duration(starvedShare*float64(starvedWatch)) {
			t.Errorf("the starved source used %v of processor time in %v", used, starvedWatch)
		}
		log := ask[[]string](src.child, "log", nil)
		if n := len(log) - lines; n > int(starvedWatch/time.Second) {
			t.Errorf("%d lines in %v:\n%s", n, starvedWatch, strings.Join(log[lines:], "\n"))
		}
		if !contains(log, "out of descriptors", "RLIMIT_NOFILE") {
			t.Errorf("no line names the cause and the remedy:\n%s", strings.Join(log, "\n"))
		}
		for _, w := range crowd {
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		}
		late := openEngine(t, orbitte.Config{Kernel: kernel})
		read.Segment, read.Local = openSegment(t, late, src.Endpoint, src.Epoch), buffer(t, late, pageBytes).Address()
		if _, err := submit(late, 10*time.Second, read); err != nil {
			t.Errorf("a new peer, once there are descriptors again: %v", err)
		}
		if !eventually(3*time.Second, func() bool { return contains(ask[[]string](src.child, "log", nil), "accepted again") }) {
			t.Error("no line says that service has resumed")
		}
		src.closeClean()
	})
}

func contains(lines []string, words ...string) bool {
next:
	for _, line := range lines {
		for _, word := range words {
			if !strings.Contains(line, word) {
				continue next
			}
		}
		return json.Valid([]byte(line))
	}
	return false
}

// field case F-36
func TestARequesterWithoutDescriptorsSaysSoAndGoesOn(t *testing.T) {
	t.Parallel()
	onKernels(t, func(t *testing.T, kernel orbitte.KernelChoice) {
		t.Parallel()
		limits := orbitte.Limits{PeerSegments: 1024}
		m := spawnManyPeers(t, byte(36+2*kernel), settings{Kernel: kernel, Limits: limits}, settings{Kernel: kernel, Limits: limits, Log: true},
			nofileVariable+"=64")
		b := m.burst(0, 2*starvedDescriptors, 1, true)
		refused := b.ErrorsByClass[orbitte.ErrExhausted.Error()]
		if b.Read == 0 || refused == 0 || b.Read+refused != b.Count {
			t.Fatalf("%d peers read, %v: %q", b.Read, b.ErrorsByClass, b.ErrorTexts)
		}
		if !strings.Contains(b.ErrorTexts[0], "too many open files") {
			t.Errorf("the error does not name the cause: %s", b.ErrorTexts[0])
		}
		cpu := ask[time.Duration](m.requester, "cpu", nil)
		time.Sleep(starvedWatch)
		if used := ask[time.Duration](m.requester, "cpu", nil) - cpu; used > time.Duration(starvedShare*float64(starvedWatch)) {
			t.Errorf("the starved requester used %v of processor time in %v", used, starvedWatch)
		}
		if log := ask[[]string](m.requester, "log", nil); len(log) > 4 {
			t.Errorf("%d lines for one burst:\n%s", len(log), strings.Join(log, "\n"))
		}
		for _, s := range b.SegmentsOpened {
			ask[bool](m.requester, "close-segment", segmentOf{Segment: s})
		}
		if b := m.burst(1000, 20, 4, true); b.Read != b.Count {
			t.Errorf("with descriptors again, %d of %d peers were read: %v %q", b.Read, b.Count, b.ErrorsByClass, b.ErrorTexts)
		}
		if left := ask[[]string](m.requester, "close", engineOf{m.own.Engine}); len(left) > 0 {
			t.Errorf("left after Close: %v", left)
		}
		m.closeClean()
	})
}

// field case F-36
func TestOpenWithoutDescriptorsFailsTyped(t *testing.T) {
	t.Parallel()
	for _, k := range kernels {
		t.Run(k.name, func(t *testing.T) {
			if k.choice == orbitte.IOUring {
				needRings(t)
			}
			c := spawn(t, "starved", nofileVariable+"=8")
			_, err := try[opened](c, "open", settings{Kernel: k.choice, Lanes: 4})
			if !errors.Is(err, orbitte.ErrSystem) && !errors.Is(err, orbitte.ErrUnavailable) && !errors.Is(err, orbitte.ErrExhausted) {
				t.Fatalf("got %v", err)
			}
			if !strings.Contains(err.Error(), "too many open files") && !strings.Contains(err.Error(), "RLIMIT_NOFILE") {
				t.Errorf("the error does not name the cause: %v", err)
			}
			c.kill()
			again := spawn(t, "fed")
			ask[opened](again, "open", settings{Kernel: k.choice, Lanes: 4})
		})
	}
}
