package verbstest

import (
	"bytes"
	"math/rand/v2"
	"os"
	"strconv"

	"github.com/orbitte/orbitte/verbs"
)

var randomCases = []conformance{
	{"RandomListsFollowTheModel", randomLists},
}

// randomLists posts lists of writes and reads at random places, signaled or not, and holds both memories against a model
// that carries the work out in order (IBTA 9.5; a READ's bytes are used behind a fence only). ORBITTE_SEED replays it.
func randomLists(r *rig) {
	seed := rand.Uint64()
	if text := os.Getenv("ORBITTE_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	r.Logf("SEED=%d (replay: ORBITTE_SEED=%d)", seed, seed)
	random := rand.New(rand.NewPCG(seed, 5))
	const size = 40000
	a, _ := r.connect(shape{})
	here, there := r.a.region(size, 0, localOnly), r.b.region(size, 0, everyone)
	fillCounting(here.bytes, byte(seed))
	fillCounting(there.bytes, byte(seed>>8))
	mine, theirs := bytes.Clone(here.bytes), bytes.Clone(there.bytes)
	id, due := uint64(0), []uint64(nil)
	for range 60 {
		var list []verbs.SendWork
		for range 1 + random.IntN(12) {
			id++
			n := random.IntN(1 << random.IntN(15))
			from, to := random.IntN(size-n), random.IntN(size-n)
			w := write(id, here, from, n, there.address+uint64(to), there.remote)
			w.Flags = verbs.Fence
			if random.IntN(3) == 0 {
				w.Operation = verbs.Read
				copy(mine[from:from+n], theirs[to:to+n])
			} else {
				copy(theirs[to:to+n], mine[from:from+n])
			}
			if random.IntN(2) == 0 {
				w.Flags |= verbs.Signaled
				due = append(due, id)
			}
			list = append(list, w)
		}
		if last := &list[len(list)-1]; last.Flags&verbs.Signaled == 0 {
			last.Flags |= verbs.Signaled
			due = append(due, id)
		}
		a.post(list...)
		a.await(len(due), 0)
	}
	for i, c := range a.sent {
		a.check(c, due[i], []verbs.WorkStatus{verbs.WorkSuccess})
	}
	if !bytes.Equal(here.bytes, mine) || !bytes.Equal(there.bytes, theirs) {
		r.Error("memory differs from the model")
	}
}
