package field

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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

// Whichever descriptor of Open is the first that is missing, the error is the one of what ran out; no kernel is taken in the
// place of another one, also by Auto.
//
// field case F-36
func TestOpenWithoutDescriptorsFailsTyped(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		settings settings
		kernel   string
	}{
		"epoll":    {settings{Kernel: orbitte.Epoll, Lanes: 2}, "epoll"},
		"io_uring": {settings{Kernel: orbitte.IOUring, Lanes: 2}, "io_uring"},
		"auto":     {settings{Pinned: true, Lanes: 2}, "io_uring"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if x.kernel == "io_uring" {
				needRings(t)
			}
			c := spawn(t, "starved")
			ask[[]string](c, "close", engineOf{ask[opened](c, "open", x.settings).Engine}) // the runtime has its own descriptors then
			failed := 0
			for limit := uint64(3); ; limit++ {
				if err := unix.Prlimit(c.cmd.Process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: 1024}, nil); err != nil {
					t.Fatal(err)
				}
				o, err := try[opened](c, "open", x.settings)
				if err == nil {
					if o.Kernel != x.kernel {
						t.Errorf("with %d descriptors the kernel is %s (%s)", limit, o.Kernel, o.Reason)
					}
					break
				}
				failed++
				text := err.Error()
				if !errors.Is(err, orbitte.ErrExhausted) || !strings.Contains(text, "too many open files") || !strings.Contains(text, "RLIMIT_NOFILE") || strings.Contains(text, "seccomp") {
					t.Errorf("with %d descriptors: %v", limit, err)
				}
			}
			if failed < 8 { // of two lanes
				t.Errorf("only %d opens failed", failed)
			}
		})
	}
}

// Memory for rings is what old systems give few of, for good: Auto takes epoll and says why, by order it is a lack of memory.
//
// field case F-36
func TestOpenWithoutMemoryForRingsFailsTyped(t *testing.T) {
	t.Parallel()
	needRings(t)
	c := spawn(t, "no memory", seccompVariable+"="+strconv.Itoa(int(unix.ENOMEM)))
	_, err := try[opened](c, "open", settings{Kernel: orbitte.IOUring})
	if !errors.Is(err, orbitte.ErrExhausted) || !strings.Contains(err.Error(), "RLIMIT_MEMLOCK") || strings.Contains(err.Error(), "seccomp") {
		t.Errorf("by order: %v", err)
	}
	if o := ask[opened](c, "open", settings{Pinned: true}); o.Kernel != "epoll" || !strings.Contains(o.Reason, "RLIMIT_MEMLOCK") {
		t.Errorf("the kernel is %s (%s)", o.Kernel, o.Reason)
	}
}
