package simkernel

import "iter"

// call is a function that runs as a coroutine of a task, so that it may wait in the middle of a world's step.
type call struct {
	resume   func() (struct{}, bool)
	yield    func(struct{}) bool
	inside   bool // it runs, and nobody else
	gaveWay  bool // it waits in Pause, not in a Poll
	finished bool
}

// Call runs f as part of the task, from the next step on: where a Poll of one of the task's kernels has to
// wait, f rests and the others go on. So calls that wait, such as OpenSegment of an engine in manual mode,
// run in many engines side by side. One call at a time; meanwhile the task's own function runs only while
// f is in Pause. A call of a killed process never returns.
func (t *Task) Call(f func()) {
	if t.call != nil {
		panic("simkernel: a task was given a call while another one has not returned")
	}
	c := &call{}
	c.resume, _ = iter.Pull(func(yield func(struct{}) bool) {
		c.yield = yield
		f()
		c.finished = true
	})
	t.call = c
	t.Ready()
}

// Pause lets the others go on, and returns once the task has been run again; only inside Call.
func (t *Task) Pause() {
	if t.call == nil || !t.call.inside {
		panic("simkernel: Pause called outside the task's Call")
	}
	t.call.wait(true)
}

func (c *call) wait(gaveWay bool) {
	c.gaveWay = gaveWay
	c.yield(struct{}{})
	c.gaveWay = false
}

// waits lets a call of the task wait in a Poll; false when none is running.
func (t *Task) waits() bool {
	if t == nil || t.call == nil || !t.call.inside {
		return false
	}
	t.call.wait(false)
	return true
}

// run is the task's part of a round. It says whether anything was done.
func (t *Task) run() bool {
	c := t.call
	if c == nil {
		return t.step()
	}
	worked := c.gaveWay && t.step()
	c.inside = true
	c.resume()
	c.inside = false
	if c.finished {
		t.call = nil
		return true
	}
	if c.gaveWay && !t.rests() { // what f did since is for the loop to see before the clock moves
		worked = t.step() || worked
	}
	return worked
}
