package simkernel

import (
	"fmt"

	"github.com/orbitte/orbitte/reactor"
)

// Task is a function that the world runs in its rounds, see World.Add and World.AddFor.
//
//	in line ──did nothing, and each of its kernels waits──▶ resting
//	    ▲──────completion, Wake, instant reached, Ready────────┘
type Task struct {
	world   *World
	step    func() bool
	kernels []*Kernel // none: in line for ever
	inLine  bool
	removed bool
	call    *call // nil: none
}

// Add gives the world something to run in each step, such as the Progress of an engine in manual mode.
// It says whether it did anything; when nothing did, the clock moves.
func (w *World) Add(step func() bool) *Task { return w.AddFor(step) }

// AddFor gives the world something to run when one of these kernels, which no other task has, may have
// something for it: an operation that can go on, a Wake, or the end of the instant until which it waits.
// The function is meant to end in a Poll of each of its kernels that says until when it would wait
// (Engine.Progress with a duration, not 0): when it did nothing and each kernel waits, the task rests and
// costs nothing. Otherwise it is run in each step, as by Add. Without kernels AddFor is Add.
//
// A loop in manual mode that rests calls Wake for the first letter posted to it; what else is done to
// it from outside, such as arming a timer, needs Ready.
func (w *World) AddFor(step func() bool, kernels ...*Kernel) *Task {
	t := &Task{world: w, step: step, kernels: kernels}
	for _, k := range kernels {
		if k.task != nil && !k.task.removed {
			panic(fmt.Sprintf("simkernel: a kernel of process %q was added for a second function; it has one already", k.process.name))
		}
		k.task = t
	}
	t.enlist()
	return t
}

// Ready puts the task in line, so that the next step runs it.
func (t *Task) Ready() {
	if t.enlist() {
		t.world.roused = t.world.rounds
	}
}

// Remove takes the task out of its world; a step in progress runs it no more either.
func (t *Task) Remove() { t.removed = true }

// enlist puts the task in line and says whether it was not there before. During a round it waits for
// the next one.
func (t *Task) enlist() bool {
	if t.inLine || t.removed {
		return false
	}
	t.inLine = true
	t.world.line = append(t.world.line, t)
	return true
}

// rests says whether nothing is left to do until one of the kernels is roused.
func (t *Task) rests() bool {
	w := t.world
	for _, k := range t.kernels {
		if k.dead {
			continue
		}
		if k.until <= w.Now() || k.ready.first != nil || k.woken.Load() {
			return false
		}
	}
	return len(t.kernels) > 0
}

// round runs the tasks in line, in an order drawn from the seed, and says whether any did something.
// Polls inside note what they wait for instead of waiting.
func (w *World) round() bool {
	w.stepping = true
	w.rounds++
	defer func() { w.stepping = false }()
	w.attend()
	n := len(w.line) // those roused from here on come behind
	for i := n - 1; i > 0; i-- {
		j := w.random.IntN(i + 1)
		w.line[i], w.line[j] = w.line[j], w.line[i]
	}
	worked := false
	for i := range n {
		t := w.line[i]
		did := !t.removed && t.run()
		worked = worked || did
		if t.removed || !did && t.rests() {
			t.inLine = false
			w.line[i] = nil
		}
	}
	w.closeUp()
	if worked {
		w.fruitless = 0
	}
	return worked
}

// closeUp takes those who left out of the line; the others keep their order.
func (w *World) closeUp() {
	kept := w.line[:0]
	for _, t := range w.line {
		if t != nil {
			kept = append(kept, t)
		}
	}
	clear(w.line[len(kept):])
	w.line = kept
}

// attend rouses the kernels that were woken and those whose instant has come, and says whether anyone
// got work since it went to wait in the last round.
func (w *World) attend() bool {
	for k := w.wakes.Swap(nil); k != nil; {
		following := k.wokenNext
		k.wokenNext = nil
		k.inWakes.Store(false)
		if k.woken.Load() {
			k.rouse()
		}
		k = following
	}
	for w.waits.next() <= w.Now() {
		k := w.waits.kernels[0]
		w.waits.remove(k)
		k.rouse()
	}
	return w.roused == w.rounds
}

// rouse follows something that the kernel's next Poll will find.
func (k *Kernel) rouse() {
	w := k.world
	if k.task != nil && k.task.enlist() || k.until > reactor.Past && k.noted == w.rounds {
		w.roused = w.rounds
	}
}

// Wake may be called from any goroutine.
func (k *Kernel) Wake() {
	k.woken.Store(true)
	if !k.inWakes.CompareAndSwap(false, true) {
		return
	}
	for {
		k.wokenNext = k.world.wakes.Load()
		if k.world.wakes.CompareAndSwap(k.wokenNext, k) {
			return
		}
	}
}

// note keeps until when a Poll inside a step would have waited.
func (k *Kernel) note(until reactor.Instant) {
	k.until, k.noted = until, k.world.rounds
	if until < reactor.Forever {
		k.world.waits.add(k)
	}
}

// unnote follows a Poll, which waits anew or not at all, and the kernel's end.
func (k *Kernel) unnote() {
	k.until = reactor.Past
	k.world.waits.remove(k)
}

// waitHeap is a binary heap of waiting kernels by (until, number). Each knows its place, counted from 1.
type waitHeap struct{ kernels []*Kernel }

func (h *waitHeap) next() reactor.Instant {
	if len(h.kernels) == 0 {
		return reactor.Forever
	}
	return h.kernels[0].until
}

func (h *waitHeap) before(i, j int) bool {
	a, b := h.kernels[i], h.kernels[j]
	return a.until < b.until || a.until == b.until && a.number < b.number
}

func (h *waitHeap) swap(i, j int) {
	h.kernels[i], h.kernels[j] = h.kernels[j], h.kernels[i]
	h.kernels[i].waitPlace, h.kernels[j].waitPlace = i+1, j+1
}

func (h *waitHeap) add(k *Kernel) {
	h.remove(k)
	h.kernels = append(h.kernels, k)
	k.waitPlace = len(h.kernels)
	h.rise(len(h.kernels) - 1)
}

func (h *waitHeap) rise(i int) {
	for ; i > 0 && h.before(i, (i-1)/2); i = (i - 1) / 2 {
		h.swap(i, (i-1)/2)
	}
}

func (h *waitHeap) remove(k *Kernel) {
	if k.waitPlace == 0 {
		return
	}
	i, last := k.waitPlace-1, len(h.kernels)-1
	k.waitPlace = 0
	if i != last {
		h.kernels[i] = h.kernels[last]
		h.kernels[i].waitPlace = i + 1
	}
	h.kernels[last] = nil
	h.kernels = h.kernels[:last]
	if i == last {
		return
	}
	h.rise(i)
	for {
		child := 2*i + 1
		if child >= last {
			return
		}
		if child+1 < last && h.before(child+1, child) {
			child++
		}
		if !h.before(child, i) {
			return
		}
		h.swap(i, child)
		i = child
	}
}
