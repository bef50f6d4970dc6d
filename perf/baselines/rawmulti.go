package baselines

import (
	"errors"
	"runtime"
	"sync"
	"time"
)

// Streams is several raw streams to one server, each with a thread at both ends.
type Streams []*Stream

// ConnectAll opens n streams.
func ConnectAll(address string, n int) (Streams, error) {
	var all Streams
	for range n {
		s, err := Connect(address)
		if err != nil {
			all.Close()
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// Close ends them all.
func (all Streams) Close() {
	for _, s := range all {
		s.Close()
	}
}

// Bulk moves the command's blocks, shared out evenly over the streams (their number rounded up), each stream in its own
// part of the memory, which must hold MemoryBytes of the size for each.
func (all Streams) Bulk(c Command, block []byte) (time.Duration, error) {
	each := c
	each.Count = (c.Count + uint32(len(all)) - 1) / uint32(len(all))
	errs := make([]error, len(all))
	var group sync.WaitGroup
	begin := make(chan struct{})
	for i, s := range all {
		part := block[uint64(i)*MemoryBytes(c.Size):][:MemoryBytes(c.Size)]
		group.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			<-begin
			_, errs[i] = s.Bulk(each, part)
		})
	}
	start := time.Now()
	close(begin)
	group.Wait()
	return time.Since(start), errors.Join(errs...)
}

// Blocks is how many blocks Bulk really moves.
func (all Streams) Blocks(count uint32) uint64 {
	n := uint32(len(all))
	return uint64((count + n - 1) / n * n)
}
