package verbstest

import (
	"bytes"

	"github.com/orbitte/orbitte/verbs"
)

var transferCases = []conformance{
	{"WritesAndReadsOfOddSizesTouchNothingElse", oddSizes},
}

const guard = 64

// write is a WRITE of n bytes between two regions.
func write(id uint64, from region, at int, n int, to uint64, key verbs.RemoteKey) verbs.SendWork {
	return verbs.SendWork{ID: id, Operation: verbs.Write, Address: from.address + uint64(at), Length: uint32(n), LocalKey: from.local, Remote: to, RemoteKey: key}
}

func read(id uint64, into region, at int, n int, from uint64, key verbs.RemoteKey) verbs.SendWork {
	w := write(id, into, at, n, from, key)
	w.Operation = verbs.Read
	return w
}

func fillCounting(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8) ^ seed
	}
}

// oddSizes: IBTA 9.4.3 and 9.4.4: exactly the named bytes move.
func oddSizes(r *rig) {
	a, b := r.connect(shape{})
	for i, n := range []int{0, 1, 3, 1023, 1024, 1025, 4095, 64<<10 + 1, 300<<10 + 7} {
		here, there := r.a.region(n+2*guard, 0x11, localOnly), r.b.region(n+2*guard, 0x22, everyone)
		fillCounting(here.bytes[guard:guard+n], byte(i))
		a.do(write(uint64(i), here, guard, n, there.address+guard, there.remote))
		r.guarded("written", there, n, 0x22, here.bytes[guard:guard+n])
		back := r.a.region(n+2*guard, 0x33, localOnly)
		c := a.do(read(uint64(i), back, guard, n, there.address+guard, there.remote))
		if c.Operation != verbs.CompletedRead {
			r.Errorf("a READ completed as operation %d", c.Operation)
		}
		r.guarded("read", back, n, 0x33, here.bytes[guard:guard+n])
		r.a.deregister(here)
		r.a.deregister(back)
		r.b.deregister(there)
	}
	_ = b
}

// guarded checks n bytes behind a guard, and the guards on both sides.
func (r *rig) guarded(what string, m region, n int, fill byte, want []byte) {
	r.Helper()
	if !bytes.Equal(m.bytes[guard:guard+n], want) {
		r.Errorf("%d bytes %s: they differ", n, what)
	}
	for i := range guard {
		if m.bytes[i] != fill || m.bytes[guard+n+i] != fill {
			r.Fatalf("%d bytes %s: a guard byte near %d was changed", n, what, i)
		}
	}
}
