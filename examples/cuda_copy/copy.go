package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/orbitte/orbitte"
)

const (
	callers = 8
	rounds  = 4
	guard   = 4099    // bytes before the payload; odd, so that nothing is aligned by chance
	slot    = 6 << 20 // of each caller, guards included
)

// sizes are the payloads: less than a chunk of pinned memory, a little more than one, and several.
var sizes = []int{4097, 1<<20 + 17, 5<<20 + 3}

// crowd lets eight callers use one GPU at the same time: over the network, and inside the engine that has the memory.
func crowd(w *way, s source, ordinal int) error {
	e, err := w.open("127.0.0.1:0")
	if err != nil {
		return err
	}
	over := "over TCP"
	if w.rdma {
		over = "over RDMA"
	}
	inside := &way{driver: w.driver}
	for _, c := range []struct {
		name   string
		way    *way
		engine *orbitte.Engine
	}{{over, w, e}, {"inside the engine", inside, s.engine}} {
		began := time.Now()
		moved, path, err := all(c.way, c.engine, s, ordinal)
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", c.name, err), shut(e))
		}
		fmt.Printf("GPU %d, %s (%s): %d callers, %d rounds of %v bytes, every byte and guard checked, %.0f MB/s\n",
			ordinal, c.name, path, callers, rounds, sizes, float64(moved)/1e6/time.Since(began).Seconds())
	}
	return shut(e)
}

func shut(e *orbitte.Engine) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return e.Close(ctx)
}

// all runs the callers with one engine.
func all(w *way, e *orbitte.Engine, s source, ordinal int) (moved int, path string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	// Pinned memory is host memory that the GPU copies from and to at full speed; any other host memory will do.
	host, err := orbitte.AllocatePinnedHost(w.driver, ordinal, callers*slot)
	if err != nil {
		return 0, "", err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	r, err := e.Register(host, 0, callers*slot, orbitte.LocalOnly)
	if err != nil {
		return 0, "", err
	}
	defer func() { err = errors.Join(err, e.Unregister(ctx, r)) }()
	segment, err := e.OpenSegment(ctx, s.engine.Endpoint(), s.engine.Epoch())
	if err != nil {
		return 0, "", err
	}
	defer func() { err = errors.Join(err, e.CloseSegment(ctx, segment)) }()
	results := make(chan error, callers)
	for i := range callers {
		c := caller{ctx, w, e, segment, host.Bytes()[i*slot:][:slot], host.Address() + uint64(i*slot), s.memory.Address() + uint64(i*slot)}
		go func() { results <- c.run(i) }()
	}
	for range callers {
		err = errors.Join(err, <-results)
	}
	// The way is known for each pair of addresses, before a byte moves and after.
	path, wayErr := segment.PathOf(w.request(orbitte.Request{Operation: orbitte.Write, Segment: segment, Local: host.Address(), Remote: s.memory.Address(), Length: 1}))
	for _, n := range sizes {
		moved += callers * rounds * 3 * n
	}
	return moved, path, errors.Join(err, wayErr)
}

// caller has a slot in host memory and one on the GPU.
type caller struct {
	ctx           context.Context
	way           *way
	engine        *orbitte.Engine
	segment       *orbitte.Segment
	bytes         []byte
	local, remote uint64
}

func (c *caller) move(op orbitte.Operation, at, n int) error {
	_, err := c.engine.SubmitAndWait(c.ctx, []orbitte.Request{c.way.request(orbitte.Request{Operation: op, Segment: c.segment, Local: c.local + uint64(at), Remote: c.remote + uint64(at), Length: uint64(n)})})
	return err
}

// run writes guards and payload to the GPU, reads them back and compares.
func (c *caller) run(seed int) error {
	for round := range rounds {
		for _, n := range sizes {
			whole := c.bytes[:n+2*guard]
			want := bytes.Repeat([]byte{0xa5}, len(whole))
			copy(whole, want)
			if err := c.move(orbitte.Write, 0, len(whole)); err != nil {
				return err
			}
			fill(want[guard:][:n], seed+round)
			copy(whole, want)
			if err := c.move(orbitte.Write, guard, n); err != nil {
				return err
			}
			clear(whole)
			if err := c.move(orbitte.Read, 0, len(whole)); err != nil {
				return err
			}
			if at := differ(whole, want); at >= 0 {
				return fmt.Errorf("caller %d, round %d, %d bytes: byte %d is %#x, want %#x", seed, round, n, at-guard, whole[at], want[at])
			}
		}
	}
	return nil
}

func fill(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i*7 + i>>8*13 + seed)
	}
}

// differ is the first place where the two differ; -1: nowhere.
func differ(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}
