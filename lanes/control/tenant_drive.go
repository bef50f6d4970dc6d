package control

import "github.com/orbitte/orbitte/netproto"

// Tenant is something that a source keeps for the peer of one session between its frames, such as a pin (SPEC C-8). It ends
// with the session's stream at the latest. While a session has one it is not idle: it is neither evicted nor closed for
// idleness, and what bounds its stay is the tenant's own deadline. A tenant is part of its owner.
//
//	away ──Lodge──▶ lodged ──Leave──▶ away
//	                  └──stream lost──▶ away: Evicted
type Tenant struct {
	session    *Session
	owner      Landlord
	prev, next *Tenant
}

// Landlord owns a tenant.
type Landlord interface {
	// Evicted: the session's stream is gone, and its frames have ended; the tenant is away.
	Evicted()
}

// Lodge ties a tenant to the session, whose frame is being served.
func (s *Session) Lodge(t *Tenant, owner Landlord) {
	if t.session != nil {
		panic("control: Lodge of a tenant that is lodged, want away")
	}
	*t = Tenant{session: s, owner: owner, next: s.tenants}
	if s.tenants != nil {
		s.tenants.prev = t
	}
	s.tenants = t
}

// Leave unties it; nothing happens to one that is away. A session without tenants may be idle.
func (t *Tenant) Leave() {
	s := t.session
	if s == nil {
		return
	}
	t.unlink()
	if s.tenants == nil && s.state == sessionIdle && s.slips.n == 0 && s.stream.ending == nil {
		s.relax()
	}
}

// With is true exactly when the tenant is lodged with this session.
func (t *Tenant) With(s *Session) bool { return t.session == s && s != nil }

func (t *Tenant) unlink() {
	if t.prev == nil {
		t.session.tenants = t.next
	} else {
		t.prev.next = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	}
	t.session, t.prev, t.next = nil, nil, nil
}

// evict tells all owners that the stream is gone.
func (s *Session) evict() {
	for s.tenants != nil {
		t := s.tenants
		owner := t.owner
		t.unlink()
		owner.Evicted()
	}
}

// Room is where the payload of an Answer is encoded: empty, with a capacity of payloadRoom bytes.
func (s *Session) Room() []byte {
	out := s.Out()
	return out[netproto.ReplySize:netproto.ReplySize:len(out)]
}

// Answer ends the frame being served with a success, whose payload, perhaps none, was appended to Room. The session is its
// own handler until the reply is out.
func (s *Session) Answer(payload []byte) {
	if len(payload) > payloadRoom {
		panic("control: Answer with more than fits behind a header")
	}
	s.Take((*answer)(s))
	s.Send(s.Header(netproto.StatusSuccess, uint64(len(payload))), payload)
}

// payloadRoom is what fits behind a reply's header in a session's memory.
const payloadRoom = outBytes - netproto.ReplySize

// answer is the handler of a frame whose reply is on its way.
type answer Session

// Sent ends the frame (Handler).
func (a *answer) Sent(int) { (*Session)(a).Finish() }

// Received does not happen (Handler).
func (a *answer) Received(int) {}

// Lost (Handler).
func (a *answer) Lost(Loss) {}
