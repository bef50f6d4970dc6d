package lanes

import "sync/atomic"

// fenced is the top bit of a gate's word; the rest counts those inside.
const fenced = int64(1) << 62

// Gate counts work in progress and can be shut for good (SPEC G-6). All methods may be called from
// any goroutine; none blocks or allocates.
type Gate struct {
	word  atomic.Int64
	quiet chan struct{} // closed exactly once: when the gate is fenced and the last one has left
}

// NewGate returns an open gate.
func NewGate() *Gate { return &Gate{quiet: make(chan struct{})} }

// Enter counts one in, or returns false when the gate is fenced.
func (g *Gate) Enter() bool {
	for {
		word := g.word.Load()
		if word&fenced != 0 {
			return false
		}
		if g.word.CompareAndSwap(word, word+1) {
			return true
		}
	}
}

// Leave counts one out. Each Enter that returned true is paired with one Leave.
func (g *Gate) Leave() {
	switch word := g.word.Add(-1); {
	case word == fenced:
		close(g.quiet)
	case word < 0 || word == fenced-1:
		panic("lanes: a gate was left more often than entered")
	}
}

// Fence shuts the gate for good; it may be called again.
func (g *Gate) Fence() {
	for {
		word := g.word.Load()
		if word&fenced != 0 {
			return
		}
		if g.word.CompareAndSwap(word, word|fenced) {
			if word == 0 {
				close(g.quiet)
			}
			return
		}
	}
}

// Fenced is true exactly when Fence was called.
func (g *Gate) Fenced() bool { return g.word.Load()&fenced != 0 }

// Inside is the number of those that have entered and not left.
func (g *Gate) Inside() int64 { return g.word.Load() &^ fenced }

// Quiet is closed when the gate is fenced and nobody is inside.
func (g *Gate) Quiet() <-chan struct{} { return g.quiet }
