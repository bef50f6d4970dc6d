package orbitte

import "fmt"

// CUDAStats is a reading of an engine's CUDA. What belongs to the driver is shared by all engines of the process.
type CUDAStats struct {
	// Library says which driver carries it, and which CUDA version it has: "libcuda 12.4 /usr/lib/libcuda.so.1".
	Library string
	// GPUs lists those that the process sees, by ordinal.
	GPUs []GPU

	// The process's native objects on the driver, retained ones included.
	Contexts, Allocations, AllocatedBytes, Adopted, Pinned, PinnedBytes int64
	Streams, Events, Signals, Retained                                  int64

	// This engine's staging: pinned bytes and chunks of all lanes, of them in use, transfers that wait for a first chunk,
	// copies started and not confirmed, and what is retained because a copy's end is not proven.
	StagingBytes                                                    uint64
	Chunks, ChunksInUse, Waiting, CopiesInFlight, RetainedTransfers int64
	// Since the engine was opened: confirmed copies and their bytes, callbacks that were heard of, copies that the safety
	// timer found since no callback came, failed ones, those drained after a failure, and transfers whose deadline passed
	// while they waited for a chunk.
	Copies, CopiedBytes, Callbacks, SafetyTimer, Failed, Drained, WaitsExpired uint64
}

// GPU is one device as the engine sees it.
type GPU struct {
	Ordinal int
	Name    string
	// Usable is false for a GPU on which no context may be made, or without unified addressing.
	Usable bool
	// Holders counts the owners in this process that share its primary context; 0: none is held.
	Holders int
}

func cudaVersion(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

// stats reads the platform and the stages; nil without CUDA.
func (p *cudaPart) stats() *CUDAStats {
	if p == nil {
		return nil
	}
	library, c := p.platform.Library(), p.platform.Counts()
	s := &CUDAStats{
		Library:  joinWords(library.Name, cudaVersion(library.Version), library.Path),
		Contexts: c.Contexts, Allocations: c.Allocations, AllocatedBytes: c.AllocatedBytes, Adopted: c.Adopted, Pinned: c.Pinned, PinnedBytes: c.PinnedBytes,
		Streams: c.Streams, Events: c.Events, Signals: c.Signals, Retained: c.Retained,
	}
	for _, d := range p.platform.Devices() {
		gpu := GPU{Ordinal: d.Ordinal, Name: d.Name}
		if context, err := p.platform.Context(d.Ordinal); err == nil {
			gpu.Usable, gpu.Holders = true, context.Holders()
		}
		s.GPUs = append(s.GPUs, gpu)
	}
	for _, stage := range p.stages {
		t := stage.Stats()
		s.StagingBytes += t.PinnedBytes
		s.Chunks += t.Chunks
		s.ChunksInUse += t.InUse
		s.Waiting += t.Waiting
		s.CopiesInFlight += t.Flying
		s.RetainedTransfers += t.Retained
		s.Copies += t.Copies
		s.CopiedBytes += t.CopiedBytes
		s.Callbacks += t.Callbacks
		s.SafetyTimer += t.TimerFound
		s.Failed += t.Failed
		s.Drained += t.Drained
		s.WaitsExpired += t.WaitsExpired
	}
	return s
}
