package graves

import (
	"reflect"
	"testing"
)

// Graves are objects of type T that have ended, in the step of the world that is under way. The zero value has none.
type Graves[T any] struct{ list []grave[T] }

// grave is where the object is, what it was, and what it was made to be.
type grave[T any] struct{ at, was, poisoned *T }

// put sets one object to another one; they may hold what must not be copied in use.
func put[T any](to, from *T) { reflect.ValueOf(to).Elem().Set(reflect.ValueOf(from).Elem()) }

// Inter poisons an object; last in its Done. Sentinel makes what no such object is; what points somewhere in use points
// nowhere in it.
func (g *Graves[T]) Inter(t *T, sentinel func() *T) {
	x := grave[T]{t, new(T), sentinel()}
	put(x.was, t)
	put(t, x.poisoned)
	g.list = append(g.list, x)
}

// Dig fails the test for each that was touched since, and gives all of them back as they ended.
func (g *Graves[T]) Dig(t testing.TB) {
	t.Helper()
	for _, x := range g.list {
		if !reflect.DeepEqual(x.at, x.poisoned) {
			t.Errorf("touched after its Done: %+v", x.at)
		}
		put(x.at, x.was)
	}
	g.list = g.list[:0]
}
