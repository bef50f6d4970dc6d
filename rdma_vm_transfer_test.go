//go:build vm && cgo

package orbitte

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
)

var oddSizes = []int{1, 17, 4095, 64<<10 + 1, 1<<20 + 40}

// proves, G-2
// field case F-68
func TestSoftRoCEMovesOddSizesExactlyHoweverEachSideHoldsItsMemoryAndWaits(t *testing.T) {
	words := []string{"polling", "event-driven"}
	for i, c := range slices.Concat(placementsOf, placementsOf[:1]) {
		here, there := RDMAProgress(i/2%2), RDMAProgress(i%2) // the four ways to wait
		if i == 4 {
			here, there = RDMAEventDriven, RDMAEventDriven // direct once more
		}
		t.Run(fmt.Sprintf("%s %d, %s to %s", c.name, i, words[here], words[there]), func(t *testing.T) {
			g := newGate(t, RDMAConfig{HostMemory: c.source, Progress: there}, RDMAConfig{HostMemory: c.requester, Progress: here}, 1<<20+16<<10, nil)
			port := portOf(g.peer.opened.Endpoint)
			rail(t, "count", port)
			moved := 0
			for i, n := range oddSizes {
				for _, op := range []Operation{Read, Write} {
					g.move(op, 4099+i, 8191+3*i, n, 10*i+int(op), c.path)
					moved += n
				}
			}
			g.overTheRails(port, moved)
		})
	}
	proved(t, "READ and WRITE of %v bytes arrive exactly, no byte around them changes; nothing of it goes over TCP", oddSizes)
}

// move transfers n bytes and checks both memories whole.
func (g *gatePair) move(op Operation, local, remote, n, seed int, path string) {
	t := g.t
	t.Helper()
	g.fill(seed)
	here, there := bytes.Clone(g.local.Bytes()), bytes.Clone(g.peer.memory)
	report, err := g.requester.SubmitAndWait(within(t, guestPatience), []Request{g.request(op, local, remote, n)})
	if err != nil || report.Bytes != uint64(n) || !report.LocallyDrained {
		t.Fatalf("%v of %d: %+v, %v", op, n, report, err)
	}
	mentions(t, report.Path, path, "rxe")
	if op == Read {
		copy(here[local:local+n], there[remote:remote+n])
	} else {
		copy(there[remote:remote+n], here[local:local+n])
	}
	sameBytes(t, fmt.Sprintf("%v of %d here", op, n), g.local.Bytes(), here)
	sameBytes(t, fmt.Sprintf("%v of %d there", op, n), g.peer.memory, there)
}

func sameBytes(t testing.TB, what string, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("%s: byte %d is %#x, want %#x", what, i, got[i], want[i])
			return
		}
	}
}

// overTheRails checks what the guest counted: the payload over RoCE, and next to nothing over TCP.
func (g *gatePair) overTheRails(port string, moved int) {
	g.t.Helper()
	counted := sent(g.t)
	if counted["roce"] < int64(moved) {
		g.t.Errorf("%d bytes over RoCE, want the payload of %d", counted["roce"], moved)
	}
	if counted["all_tcp"] > int64(moved)/4 || counted["tcp_"+port] == 0 {
		g.t.Errorf("TCP carried %d bytes, %d of the engine's port, beside a payload of %d", counted["all_tcp"], counted["tcp_"+port], moved)
	}
	g.t.Logf("payload %d bytes; RoCE %d, TCP %d", moved, counted["roce"], counted["all_tcp"])
}

// proves
func TestSoftRoCESlicesOneTransferOverBothWires(t *testing.T) {
	g := newGate(t, RDMAConfig{}, RDMAConfig{}, 4<<20, nil)
	for _, op := range []Operation{Read, Write} {
		before := [2]int64{wireBytes(t, 1), wireBytes(t, 3)}
		g.move(op, 7, 11, 3<<20+5, int(op), "rdma, direct: rxe1 to rxe0, rxe3 to rxe2")
		for i, device := range []int{1, 3} {
			if n := wireBytes(t, device) - before[i]; n < 1<<20 {
				t.Errorf("%v: the wire of rxe%d carried %d bytes", op, device, n)
			}
		}
	}
	proved(t, "slices of one transfer go over both wires, READ and WRITE")
}

// wireBytes is what a device has sent and received.
func wireBytes(t testing.TB, device int) (n int64) {
	t.Helper()
	for _, way := range []string{"rx_bytes", "tx_bytes"} {
		text, err := os.ReadFile(fmt.Sprintf("/sys/class/net/ve%d/statistics/%s", device, way))
		must(t, err)
		b, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
		must(t, err)
		n += b
	}
	return n
}

// proves, B-1
func TestSoftRoCECarriesManyGrantsOnSharedPairs(t *testing.T) {
	const workers, each = 16, 96 << 10
	c := RDMAConfig{Width: 2, Progress: RDMAEventDriven}
	g := newGate(t, c, c, workers*each, nil)
	fillBytes(g.peer.memory, 3)
	seed := rand.Uint64()
	t.Logf("SEED=%d", seed)
	var group sync.WaitGroup
	var batches atomic.Int64
	for i := range workers {
		group.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			for range 4 {
				if err := g.exchange(random, i*each, each); err != nil {
					t.Errorf("worker %d: %v", i, err)
					return
				}
				batches.Add(1)
			}
		})
	}
	group.Wait()
	stats := g.requester.Stats()
	if stats.RDMA.ConnectionsBuilt > 8 || stats.RDMA.LateCompletions != 0 {
		t.Errorf("%d connections were built and %d completions came late", stats.RDMA.ConnectionsBuilt, stats.RDMA.LateCompletions)
	}
	proved(t, "%d batches of %d workers at once, %d grants asked over %d connections", batches.Load(), workers, stats.RDMA.GrantsAsked, stats.RDMA.ConnectionsBuilt)
}

// exchange writes a piece, reads it back to another place in one batch, and compares.
func (g *gatePair) exchange(random *rand.Rand, at, size int) error {
	half := size / 2
	n := 1 + random.IntN(half)
	from, to := g.local.Bytes()[at:at+n], g.local.Bytes()[at+half:at+half+n]
	for i := range from {
		from[i] = byte(random.Uint32())
	}
	ctx, cancel := context.WithTimeout(context.Background(), guestPatience)
	defer cancel()
	if _, err := g.requester.SubmitAndWait(ctx, []Request{g.request(Write, at, at+1, n), g.request(Read, at+half, at+1, n)}); err != nil {
		return err
	}
	if !bytes.Equal(from, to) || !bytes.Equal(from, g.peer.memory[at+1:at+1+n]) {
		return fmt.Errorf("%d bytes came back different", n)
	}
	return nil
}
