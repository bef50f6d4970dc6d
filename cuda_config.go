package orbitte

import "github.com/orbitte/orbitte/lanes/staging"

// stagingLaneBytes is the default of each lane's pinned memory: for each of the two roles so many chunks.
const stagingLaneBytes = 2 * staging.ChunksDefault * staging.ChunkBytesDefault

// completeStaging fills defaults in and checks, for an engine with CUDA and so many lanes. One chunk for each role and lane
// is enough to go on; two overlap copy and network.
func (l *Limits) completeStaging(lanes int) error {
	set(&l.StagingChunkBytes, staging.ChunkBytesDefault)
	set(&l.PinnedStagingBytes, uint64(lanes)*max(stagingLaneBytes, 2*l.StagingChunkBytes))
	switch {
	case l.StagingChunkBytes > payloadBytesMax:
		return invalid("Config.Limits.StagingChunkBytes is %d; it must be at most %d", l.StagingChunkBytes, payloadBytesMax)
	case l.PinnedStagingBytes > 1<<40:
		return invalid("Config.Limits.PinnedStagingBytes is %d; it must be at most %d", l.PinnedStagingBytes, uint64(1)<<40)
	case l.stagingChunks(lanes) < 1:
		return invalid("Config.Limits.PinnedStagingBytes is %d; each of the %d lanes needs two chunks of StagingChunkBytes (%d), so it must be at least %d, or 0 for the default",
			l.PinnedStagingBytes, lanes, l.StagingChunkBytes, 2*uint64(lanes)*l.StagingChunkBytes)
	}
	return nil
}

// stagingChunks is how many chunks each lane has for each role.
func (l *Limits) stagingChunks(lanes int) int {
	return int(l.PinnedStagingBytes / l.StagingChunkBytes / uint64(2*lanes))
}
