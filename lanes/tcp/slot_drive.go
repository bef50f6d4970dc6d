package tcp

import (
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/segments"
)

// Slots answers for regions that are chunks of staging memory, pinned for the peer of one session (SPEC C-8).
type Slots interface {
	// Admit checks that the session may do with the slot what the frame asks for, and lends it; the caller owes one Leave.
	// The error has a status for the wire.
	Admit(*control.Session, netproto.Request) (Slot, error)
}

// Slot is one slot on loan to a frame.
type Slot interface {
	// Range is the slot's bytes.
	Range() *segments.Registration
	// Await is true when nothing else touches the slot. Otherwise Quiet follows, unless Leave is called before.
	Await(SlotUser) bool
	// Leave ends the loan: nothing of the frame touches the slot any more. whole: all of its payload was moved.
	Leave(whole bool)
}

// SlotUser waits for a slot.
type SlotUser interface {
	// Quiet: nothing else touches the slot any more, and it may be used; or the status says why not.
	Quiet(netproto.Status)
}

// admit borrows what the frame names: a registration, or a slot that was pinned for this session.
func (s *Service) admit(session *control.Session, r netproto.Request, want netproto.Permission) (*segments.Registration, Slot, error) {
	if _, _, ok := netproto.SlotOf(r.Region); !ok || s.Slots == nil {
		registration, err := s.lane.Tracker.Admit(r.Region, r.Offset, r.Length, want)
		return registration, nil, err
	}
	slot, err := s.Slots.Admit(session, r)
	if err != nil {
		return nil, nil, err
	}
	registration := slot.Range()
	if !registration.Lend() {
		slot.Leave(false)
		return nil, nil, &segments.UnknownRegion{ID: r.Region}
	}
	return registration, slot, nil
}

// Quiet goes on with a frame that waited for its slot, or refuses it (SlotUser).
func (h *serving) Quiet(status netproto.Status) {
	if status == netproto.StatusSuccess {
		h.step()
		return
	}
	session := h.session
	h.release()
	session.Refuse(status)
}
