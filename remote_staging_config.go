package orbitte

// RemoteStagingConfig lets requesters direct how memory on GPUs is staged where it is (SPEC C-8): the source pins chunks of
// staging memory, called slots, for one request, copies between slot and GPU when it is told to, and takes the slots back.
// An engine with Config.CUDA offers slots to its peers; without it, it only asks for them. The zero value takes every
// default.
//
// With Config.RDMA, slots are registered with each device that makes grants, once, before the first memory on a GPU is
// registered, which fails if that does. They count as pinned staging and not against RDMALimits.CachedRegions.
//
// Slots are lent for as long as a peer's request lasts, so they are apart from what Limits.PinnedStagingBytes sets: a slow
// peer keeps no other transfer waiting. A peer that is lost, or silent for SourceTimeout, loses its slots; each is lent
// again once the copy that touches it has ended.
type RemoteStagingConfig struct {
	// Slots are all that peers may have at a time, each of Limits.StagingChunkBytes of pinned memory, dealt out to the lanes
	// in equal parts. 0: 4 for each lane.
	Slots int
	// PeerSlots are what one peer may have of them at a time; 0: as many as its lane has. Requests that find none wait, in
	// the order in which they asked, until their deadline.
	PeerSlots int
}

const (
	slotsBudget   = "remote staging slots"
	laneSlots     = 4
	laneSlotsMost = 1024
)

// completeRemoteStaging fills defaults in and checks, for so many lanes.
func (c *Config) completeRemoteStaging(lanes int) error {
	if c.RemoteStaging == nil {
		return nil
	}
	own := *c.RemoteStaging // the caller's stays as it is
	c.RemoteStaging = &own
	set(&own.Slots, lanes*laneSlots)
	if own.Slots < lanes || own.Slots > lanes*laneSlotsMost {
		return invalid("Config.RemoteStaging.Slots is %d; each of the %d lanes needs 1 to %d, or 0 for the default of %d", own.Slots, lanes, laneSlotsMost, laneSlots)
	}
	own.Slots -= own.Slots % lanes // equal parts
	set(&own.PeerSlots, own.Slots/lanes)
	if own.PeerSlots < 1 {
		return invalid("Config.RemoteStaging.PeerSlots is %d; it must be at least 1, or 0 for as many as a lane has", own.PeerSlots)
	}
	return nil
}

// offersSlots is true exactly when peers may direct the staging here.
func (c *Config) offersSlots() bool { return c.RemoteStaging != nil && c.CUDA != nil }

// laneSlots is how many slots each lane has.
func (c *Config) laneSlots(lanes int) int {
	if !c.offersSlots() {
		return 0
	}
	return c.RemoteStaging.Slots / lanes
}

// slotBytes is the pinned memory of all slots.
func (c *Config) slotBytes() uint64 {
	if !c.offersSlots() {
		return 0
	}
	return uint64(c.RemoteStaging.Slots) * max(c.Limits.StagingChunkBytes, 1)
}
