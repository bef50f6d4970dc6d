package cuda

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// Loops that start operations at the same moment never get the same event.
func TestASlotHasOneOwner(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8)) // the system's threads interrupt each other anywhere
	o := &object{context: &Context{platform: &Platform{}}}
	c := &copier{}
	c.free.Store(1<<Slots - 1)
	var owners [Slots]atomic.Int32
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 100_000 {
				index, ok := c.claim()
				if !ok {
					continue
				}
				if n := owners[index].Add(1); n != 1 {
					t.Errorf("slot %d has %d owners", index, n)
					return
				}
				if index%3 == 0 {
					runtime.Gosched()
				}
				owners[index].Add(-1)
				c.release(o, index)
			}
		})
	}
	group.Wait()
	if c.flying() != 0 {
		t.Errorf("%d slots are taken in the end", c.flying())
	}
}
