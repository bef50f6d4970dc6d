package verbs

// Channel is a completion channel: a descriptor that becomes readable when an armed queue got a completion. It belongs
// to the lane that waits on it.
type Channel struct {
	context  *Context
	handle   ChannelHandle
	attached map[QueueHandle]*CompletionQueue
	strays   uint64
	queues   family
	life     life
}

// CreateChannel makes a channel.
func (c *Context) CreateChannel() (*Channel, error) {
	c.life.mustBeOpen(c.String(), "CreateChannel")
	handle, err := c.calls.CreateChannel(c.handle)
	if err != nil {
		return nil, err
	}
	c.channels.live.Add(1)
	return &Channel{context: c, handle: handle, attached: map[QueueHandle]*CompletionQueue{}}, nil
}

func (h *Channel) String() string { return "completion channel of " + h.context.info.Name }

// Descriptor becomes readable when NextEvent has something.
func (h *Channel) Descriptor() int { return h.context.calls.ChannelDescriptor(h.handle) }

// NextEvent takes and acknowledges one event, and marks its queue as not armed; nil: there is none. An event of a queue
// that is not here is counted and passed over. A failure means that wake-ups may be lost: poll from then on.
func (h *Channel) NextEvent() (*CompletionQueue, error) {
	for {
		handle, ok, err := h.context.calls.NextEvent(h.handle)
		if err != nil || !ok {
			return nil, err
		}
		if q := h.attached[handle]; q != nil {
			q.armed = false
			return q, nil
		}
		h.strays++
	}
}

// Strays counts events that named no queue of this channel.
func (h *Channel) Strays() uint64 { return h.strays }

// Destroy ends the channel after its queues: *BusyError while one is left; a refusal of the library is final.
func (h *Channel) Destroy() error {
	if done, err := h.life.ended(); done {
		return err
	}
	if left := busy(h.String(), h.queues.allKept(), Debt{"completion queues", h.queues.live.Load()}); left != nil {
		return h.life.wait(&h.context.book, left, &h.context.channels)
	}
	return h.life.end(&h.context.book, h.String(), "ibv_destroy_comp_channel",
		func() error { return h.context.calls.DestroyChannel(h.handle) }, &h.context.channels)
}

// Retained is true exactly when the library refused to destroy it.
func (h *Channel) Retained() bool { return h.life.stage() == retained }
