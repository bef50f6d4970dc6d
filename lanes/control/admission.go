package control

import (
	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
)

// Admission bounds what one engine serves at a time, over all its lanes (SPEC T-6): frames being
// handled and frames that wait for a handler. Those that only end something need neither: their streams bound them. It is
// made before the lanes start and then fixed.
type Admission struct {
	// Gate counts the admitted frames; fenced, it refuses every new one (SPEC G-6).
	Gate            *lanes.Gate
	Handlers, Queue *budgets.Budget
	servers         []*Server
}

// released wakes the lanes on which frames wait for a handler.
func (a *Admission) released() {
	for _, server := range a.servers {
		if server.waiting.Load() > 0 {
			// A stopped loop has no waiting frames that could still be served.
			_ = server.lane.Post(&server.retry, server)
		}
	}
}

// Fence refuses every further frame, and answers those that wait.
func (a *Admission) Fence() {
	a.Gate.Fence()
	a.released()
}
