package cudatest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"

	"github.com/orbitte/orbitte/cuda"
)

var randomCases = []conformance{
	{"AWalkOfOwnersFollowsTheModel", walk},
}

const (
	cells    = 6
	cellSize = 3001 // no multiple of anything
)

// object is a memory object or pinned memory with what its bytes must be.
type object struct {
	memory  *cuda.Memory
	pinned  *cuda.Pinned
	holders int
	start   cuda.Pointer
	model   []byte
	busy    [cells]bool
	flying  int
}

func (o *object) partner() cuda.Partner {
	if o.pinned != nil {
		return o.pinned
	}
	return o.memory
}

// flight is an operation with what it does to the model.
type flight struct {
	pending  cuda.Pending
	to, from *object
	toCell   int
	fromCell int
	at, n    int // inside the cells
}

// walker is a random walk over owners, held against the model.
type walker struct {
	*rig
	random   *rand.Rand
	platform *cuda.Platform
	objects  []*object
	flights  []*flight
	signal   *cuda.Signal
}

// walk makes, adopts, copies, confirms, drains and drops at random; in the end every byte is compared. ORBITTE_SEED
// replays it.
func walk(r *rig) {
	seed := rand.Uint64()
	if text := os.Getenv("ORBITTE_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	r.Logf("SEED=%d (replay: ORBITTE_SEED=%d go test -run '%s')", seed, seed, r.Name())
	w := &walker{rig: r, random: rand.New(rand.NewPCG(seed, 9)), platform: r.platform()}
	var err error
	w.signal, err = w.platform.OpenSignal()
	r.must(err)
	for range 600 {
		w.step()
	}
	for len(w.flights) > 0 {
		w.land(0)
	}
	for len(w.objects) > 0 {
		w.compare(w.objects[0])
		w.end(0)
	}
	w.signal.Close()
}

func (w *walker) step() {
	switch n := w.random.IntN(20); {
	case len(w.objects) < 2 || n == 0 && len(w.objects) < 8:
		w.add()
	case n == 1:
		w.alias()
	case n == 2:
		if i := w.random.IntN(len(w.objects)); w.objects[i].flying == 0 {
			w.compare(w.objects[i])
			w.end(i)
		}
	case n < 13:
		w.launch()
	case len(w.flights) > 0:
		w.land(w.random.IntN(len(w.flights)))
	}
}

func (w *walker) add() {
	ordinal := w.Ordinals[w.random.IntN(len(w.Ordinals))]
	o := &object{holders: 1, model: make([]byte, cells*cellSize)}
	var err error
	if w.random.IntN(2) == 0 {
		o.pinned, err = w.platform.AllocateHost(ordinal, cells*cellSize)
		w.must(err)
		o.start = cuda.Pointer(o.pinned.Address())
		counting(o.model, byte(w.random.IntN(256)))
		copy(view(o.pinned.Address(), cells*cellSize), o.model)
	} else {
		o.memory, err = w.platform.Allocate(ordinal, cells*cellSize)
		w.must(err)
		o.start = o.memory.Pointer()
	}
	w.objects = append(w.objects, o)
}

// alias adopts a part of a memory object of ours.
func (w *walker) alias() {
	o := w.objects[w.random.IntN(len(w.objects))]
	if o.memory == nil {
		return
	}
	offset := w.random.IntN(cells * cellSize)
	m, err := w.platform.Adopt(cuda.AnyOrdinal, o.start+cuda.Pointer(offset), 1, w)
	w.must(err)
	if m != o.memory {
		w.Fatalf("an alias of %v is %v", o.memory, m)
	}
	o.holders++
}

func (o *object) freeCell(random *rand.Rand) int {
	i := random.IntN(cells)
	if o.busy[i] {
		return -1
	}
	return i
}

// launch starts an operation between two cells that no other operation touches.
func (w *walker) launch() {
	f := &flight{to: w.objects[w.random.IntN(len(w.objects))], from: w.objects[w.random.IntN(len(w.objects))]}
	if f.to == f.from || f.to.memory == nil && f.from.memory == nil {
		return
	}
	f.toCell, f.fromCell = f.to.freeCell(w.random), f.from.freeCell(w.random)
	if f.toCell < 0 || f.fromCell < 0 {
		return
	}
	f.at = w.random.IntN(cellSize)
	f.n = 1 + w.random.IntN(cellSize-f.at)
	owner, partner := f.to, f.from
	if owner.memory == nil || partner.memory != nil && w.random.IntN(2) == 0 {
		owner, partner = partner, owner
	}
	signal := w.signal
	if w.random.IntN(3) == 0 {
		signal = nil
	}
	first := w.random.IntN(f.n + 1) // in two copies, or one
	copies := slices.DeleteFunc([]cuda.Copy{f.part(0, first), f.part(first, f.n)}, func(c cuda.Copy) bool { return c.Bytes == 0 })
	var err error
	f.pending, err = owner.memory.Start(copies, partner.partner(), signal)
	w.must(err)
	f.to.busy[f.toCell], f.from.busy[f.fromCell] = true, true
	f.to.flying++
	f.from.flying++
	w.flights = append(w.flights, f)
}

func (f *flight) part(begin, end int) cuda.Copy {
	return cuda.Copy{
		To:   f.to.start + cuda.Pointer(f.toCell*cellSize+f.at+begin),
		From: f.from.start + cuda.Pointer(f.fromCell*cellSize+f.at+begin), Bytes: uint64(end - begin),
	}
}

// land ends an operation, by its event or by draining.
func (w *walker) land(i int) {
	f := w.flights[i]
	if w.random.IntN(8) == 0 {
		w.must(f.pending.Drain())
	} else {
		w.finish(f.pending)
	}
	copy(f.to.model[f.toCell*cellSize+f.at:][:f.n], f.from.model[f.fromCell*cellSize+f.at:])
	f.to.busy[f.toCell], f.from.busy[f.fromCell] = false, false
	f.to.flying--
	f.from.flying--
	w.flights = slices.Delete(w.flights, i, i+1)
	if w.random.IntN(4) == 0 {
		_, err := w.signal.Take()
		w.must(err)
	}
}

// compare holds an object's bytes against the model.
func (w *walker) compare(o *object) {
	if o.pinned != nil {
		w.same(o.pinned.String(), view(o.pinned.Address(), cells*cellSize), o.model)
		return
	}
	h, err := w.platform.AllocateHost(w.Ordinals[0], cells*cellSize)
	w.must(err)
	w.finish(w.start(o.memory, cuda.Pointer(h.Address()), o.start, cells*cellSize, h, nil))
	w.same(fmt.Sprint(o.memory), view(h.Address(), cells*cellSize), o.model)
	w.must(h.Free())
}

func (w *walker) end(i int) {
	o := w.objects[i]
	if o.pinned != nil {
		w.must(o.pinned.Free())
	}
	for o.memory != nil && o.holders > 0 {
		o.holders--
		w.must(o.memory.Drop())
	}
	w.objects = slices.Delete(w.objects, i, i+1)
}
