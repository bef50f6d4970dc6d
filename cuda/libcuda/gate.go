package libcuda

import "sync/atomic"

const (
	// callsMax bounds how many calls of one kind are inside the driver, each on a thread of its own while it stays.
	callsMax = 16
	// waitingMax bounds how many more may wait. They cost a goroutine and no thread.
	waitingMax = 1024
)

// A gate lets callsMax calls in at once.
type gate struct {
	places  chan struct{} // a token for each call inside
	waiting atomic.Int64
}

func newGate() *gate { return &gate{places: make(chan struct{}, callsMax)} }

// enter waits for a place; with patience also when too many wait already.
func (g *gate) enter(call string, patience bool) error {
	select {
	case g.places <- struct{}{}:
		return nil
	default:
	}
	if n := g.waiting.Add(1); n > waitingMax && !patience {
		g.waiting.Add(-1)
		return &Busy{Call: call, Inside: callsMax, Waiting: waitingMax}
	}
	g.places <- struct{}{}
	g.waiting.Add(-1)
	return nil
}

func (g *gate) leave() { <-g.places }
