// Package consumer is a user's module: it embeds the engine by its public package alone.
//
// It owns one engine, its memory and its registrations, each ended by Close.
//
// It imports github.com/orbitte/orbitte and the standard library. That it compiles proves that no type of
// the rooms behind that package must be named; a test holds the import lists against it. It builds
// without cgo.
//
// A Store has two states:
//
//	serving ──Close──▶ closed
//
// It relies on go.mod's replace directive, which names the checkout that it lies in.
package consumer
