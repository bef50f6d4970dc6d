package tcp

import (
	"reflect"
	"testing"
)

// graves are transfers that have ended, in the step of the world that is under way. Whoever is told of the end may use a
// transfer again at once, on another lane even; so Done poisons it here, and dig, behind the step, shows whether anybody
// has touched it since. Then the test gets it back as it ended.
type graves struct{ list []grave }

type grave struct{ at, was *Transfer }

// sentinel is what no transfer is; what points somewhere in use points nowhere in it.
func sentinel() *Transfer {
	return &Transfer{Length: ^uint64(0), copied: 77, waiting: true, ready: true, held: true}
}

// put sets one transfer to another one.
func put(to, from *Transfer) { reflect.ValueOf(to).Elem().Set(reflect.ValueOf(from).Elem()) }

// inter poisons a transfer; last in its Done.
func (g *graves) inter(t *Transfer) {
	was := &Transfer{}
	put(was, t)
	put(t, sentinel())
	g.list = append(g.list, grave{t, was})
}

// dig gives all of them back.
func (g *graves) dig(t testing.TB) {
	t.Helper()
	for _, x := range g.list {
		if !reflect.DeepEqual(x.at, sentinel()) {
			t.Errorf("a transfer was touched after its Done: %+v", x.at)
		}
		put(x.at, x.was)
	}
	g.list = g.list[:0]
}
