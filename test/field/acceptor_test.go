package field

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/netproto"
)

// Each connection is reset before, while or after the source has looked at it, with nothing, half a frame or a whole
// frame sent.
//
// proves T-7
func TestTheAcceptorSurvivesResets(t *testing.T) {
	t.Parallel()
	onKernels(t, func(t *testing.T, kernel orbitte.KernelChoice) {
		t.Parallel()
		seed := rand.Uint64()
		t.Logf("SEED=%d (bytes sent before each reset; replace rand.Uint64 to replay)", seed)
		dice := rand.New(rand.NewPCG(seed, 0))
		src := spawnSource(t, settings{Kernel: kernel, Log: true}, pageBytes)
		e := openEngine(t, orbitte.Config{Kernel: kernel})
		local := buffer(t, e, pageBytes)
		read := orbitte.Request{Operation: orbitte.Read, Segment: openSegment(t, e, src.Endpoint, src.Epoch), Local: local.Address(), Remote: src.Address, Length: pageBytes}
		frame := netproto.AppendRequest(nil, netproto.Request{Operation: netproto.OperationTCPRead, Epoch: src.Epoch, Region: 1, Length: pageBytes})
		resets := scaled(1000)
		for i := range resets {
			w := dial(t, src.Endpoint)
			if _, err := w.Write(frame[:dice.IntN(len(frame)+1)]); err != nil {
				t.Fatal(err)
			}
			if err := w.reset(); err != nil {
				t.Fatal(err)
			}
			if i%100 == 0 {
				if _, err := submit(e, 10*time.Second, read); err != nil {
					t.Fatalf("the connected peer after %d resets: %v", i+1, err)
				}
			}
		}
		late := openEngine(t, orbitte.Config{Kernel: kernel})
		read.Local, read.Segment = buffer(t, late, pageBytes).Address(), openSegment(t, late, src.Endpoint, src.Epoch)
		if _, err := submit(late, 10*time.Second, read); err != nil {
			t.Errorf("a new peer after %d resets: %v", resets, err)
		}
		if !eventually(10*time.Second, func() bool { return streams(src.child) == 2 }) {
			t.Errorf("%d connections at the source, not the two that are open", streams(src.child))
		}
		if n := len(ask[[]string](src.child, "log", nil)); n > 20 {
			t.Errorf("%d lines of log for %d resets", n, resets)
		}
		src.closeClean()
	})
}

// proves T-12
func TestStreamsOfBothEndsCarryKeepaliveAndUserTimeout(t *testing.T) {
	t.Parallel()
	onKernels(t, func(t *testing.T, kernel orbitte.KernelChoice) {
		t.Parallel()
		for _, c := range []struct {
			name string
			set  settings
			want [5]int // on, idle s, interval s, count, user timeout ms
		}{
			{"defaults", settings{Kernel: kernel}, [5]int{1, 15, 5, 3, 30_000}},
			{"configured", settings{
				Kernel: kernel, KeepaliveIdle: 2500 * time.Millisecond, KeepaliveInterval: 2 * time.Second, KeepaliveCount: 4, UserTimeout: 7 * time.Second,
			}, [5]int{1, 3, 2, 4, 7000}},
		} {
			t.Run(c.name, func(t *testing.T) {
				p := newPair(t, c.set, place{Bytes: pageBytes}, place{Bytes: pageBytes})
				for _, child := range []*child{p.at, p.from} {
					all := ask[[][5]int](child, "stream-options", nil)
					if len(all) != 1 || all[0] != c.want {
						t.Errorf("%s: %v, want %v", child.name, all, c.want)
					}
				}
				p.close()
			})
		}
	})
}
