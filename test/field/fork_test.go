package field

import (
	"testing"

	"github.com/orbitte/orbitte"
)

// Both programs fork and exec all the while; both ranges begin and end in the middle of pages that hold other bytes.
//
// field case F-64
func TestForksDuringTransfersBreakNothing(t *testing.T) {
	t.Parallel()
	const length = 3*pageBytes - 1000
	for _, placement := range []string{"staged", "direct"} {
		t.Run(placement, func(t *testing.T) {
			onKernels(t, func(t *testing.T, kernel orbitte.KernelChoice) {
				t.Parallel()
				s := settings{Kernel: kernel, Direct: placement == "direct"}
				p := newPair(t, s, place{Bytes: length, Unaligned: true}, place{Bytes: length, Unaligned: true})
				forked := make(chan error, 2)
				for _, c := range []*child{p.at, p.from} {
					go func() {
						_, err := try[int](c, "fork", scaled(100))
						forked <- err
					}()
				}
				rounds := uint64(0)
				for left := 2; left > 0; rounds++ {
					p.exchange(rounds + 1)
					select {
					case err := <-forked:
						if err != nil {
							t.Fatal(err)
						}
						left--
					default:
					}
				}
				for _, c := range []*child{p.at, p.from} {
					if !ask[bool](c, "neighbours-intact", nil) {
						t.Errorf("%s: bytes beside the registered range were changed", c.name)
					}
				}
				t.Logf("%d rounds", rounds)
				p.close()
			})
		})
	}
}

// exchange writes a pattern, and reads another one back.
func (p *pair) exchange(round uint64) {
	p.t.Helper()
	for i, operation := range []orbitte.Operation{orbitte.Write, orbitte.Read} {
		from, to := p.from, p.at
		if operation == orbitte.Read {
			from, to = to, from
		}
		const length = 3*pageBytes - 1000
		pattern := run{Length: length, Seed: (2*round + uint64(i)) << 32}
		ask[bool](from, "fill", pattern)
		if _, err := p.transfer(operation, 0, 0, length); err != nil {
			p.t.Fatalf("round %d: %v: %v", round, operation, err)
		}
		if n := ask[int](to, "check", pattern); n != 0 {
			p.t.Fatalf("round %d: %v: %d bytes differ", round, operation, n)
		}
	}
}
