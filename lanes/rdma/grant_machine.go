package rdma

import (
	"github.com/orbitte/orbitte/netproto"
)

// parentStage is how far all grants of one request have come, at the source (SPEC ).
//
//	[awaiting: a slot's copy] ─▶ stocking ─▶ filling (staged READ) ─▶ binding ─▶ answering ─▶ granted ──all received and DONE──▶ [commit] ─▶ ended
//	    └────────────┴──────────────────────┴──────────┴───────────┴──failure, ABANDON, deadline──▶ revoking ─▶ ended
type parentStage uint8

const (
	parentIdle     parentStage = iota
	parentAwaiting             // waits for the copy that its slot has under way (SPEC C-8)
	parentStocking
	parentFilling
	parentBinding
	parentAnswering
	parentGranted
	parentCommit
	parentRevoking
)

var parentStageNames = [...]string{"idle", "awaiting", "stocking", "filling", "binding", "answering", "granted", "committing", "revoking"}

func (s parentStage) String() string { return parentStageNames[s] }

// childPhase is how far one grant has come. Its window moves with it:
//
//	planned ─▶ binding ─▶ bound ─▶ published ─receipt─▶ received
//	   └──────────┴─────────┴──────────┴──revoked: the window is idle again, or freed─▶ gone
//	                                       └──no proof─▶ kept
type childPhase uint8

const (
	childPlanned   childPhase = iota // it has an idle window, or none yet
	childBinding                     // the BIND is with the device
	childBound                       // nobody outside knows the key
	childPublished                   // the requester may use it
	childReceived                    // the binding came, and the device reported the end of the key
	childGone                        // revoked: the authority has ended
	childKept                        // nobody can prove that
)

// settled is true exactly when the grant gives no authority any more.
func (p childPhase) settled() bool { return p == childReceived || p == childGone }

// grantTerms is what a source remembers of one grant, to hold its binding against.
type grantTerms struct {
	requester, source           netproto.Epoch
	requesterEnd, sourceEnd     netproto.Incarnation
	direction                   netproto.Operation
	profile                     netproto.GrantProfile
	parent, grant               uint64
	region, offset, length      uint64
	address                     uint64
	key                         uint32
	slice, slices               uint16
	requesterNIC, sourceNIC     uint8
	pair                        uint8
	sourceNumber, requesterPair uint32
}

// binding is the one message that ends the grant.
func (g *grantTerms) binding() netproto.Binding {
	return netproto.Binding{
		Profile: g.profile, Direction: g.direction, Requester: g.requester, Source: g.source,
		RequesterEnd: g.requesterEnd, SourceEnd: g.sourceEnd, Parent: g.parent, Grant: g.grant,
		Region: g.region, Offset: g.offset, Length: g.length, Address: g.address, Key: g.key, Slice: g.slice, Slices: g.slices,
		RequesterNIC: g.requesterNIC, SourceNIC: g.sourceNIC, Pair: g.pair, SourcePair: g.sourceNumber, RequesterPair: g.requesterPair,
	}
}

// agrees compares a message with the grant that it names, field by field (SPEC ).
func (g *grantTerms) agrees(b *netproto.Binding) bool { return *b == g.binding() }

// endedMax is how many revoked parents a lane of a source remembers.
const endedMax = 256

// endedParent is one that was revoked before its requester was done with it.
type endedParent struct {
	requester  netproto.Epoch
	generation uint64
	status     netproto.Status // why
	kept       bool            // true exactly when the device is not proven done with its range
}

// endedParents remembers the last ones that were revoked, so that a DONE which comes later is told why, and not taken for
// the word of a stranger. The oldest is forgotten first.
type endedParents struct {
	list []endedParent // a ring once it is full
	next int
}

func (e *endedParents) add(p endedParent) {
	if len(e.list) < endedMax {
		e.list = append(e.list, p)
		return
	}
	e.list[e.next] = p
	e.next = (e.next + 1) % endedMax
}

// find returns the parent with a name; nil: it was not revoked, or long ago.
func (e *endedParents) find(requester netproto.Epoch, generation uint64) *endedParent {
	for i := range e.list {
		if p := &e.list[i]; p.generation == generation && p.requester == requester {
			return p
		}
	}
	return nil
}

// answer is what its requester hears of it: why its grants ended, or, when it gives them up itself, whether they have.
func (p *endedParent) answer(abandon bool) netproto.Status {
	switch {
	case !abandon:
		return p.status
	case p.kept:
		return netproto.StatusNativeError
	}
	return netproto.StatusSuccess
}

// parentMachine decides about one parent.
type parentMachine struct {
	stage    parentStage
	phases   []childPhase
	status   netproto.Status // why it fails; success: it does not
	done     bool            // the requester said that it is done
	given    bool            // the requester gave it up
	received int
	unproven bool // true exactly when a copy between staging and a GPU is not proven to have ended
}

func (m *parentMachine) begin(children int) {
	phases := m.phases[:0]
	for range children {
		phases = append(phases, childPlanned)
	}
	*m = parentMachine{stage: parentStocking, phases: phases}
}

// all is true exactly when every child is in the phase.
func (m *parentMachine) all(p childPhase) bool {
	for _, c := range m.phases {
		if c != p {
			return false
		}
	}
	return true
}

// complete is true exactly when every receipt is here and the requester agrees, in whatever order they came.
func (m *parentMachine) complete() bool { return m.done && m.received == len(m.phases) }

// receive counts one receipt.
func (m *parentMachine) receive(i int) {
	m.phases[i] = childReceived
	m.received++
}

// fail remembers the first reason.
func (m *parentMachine) fail(s netproto.Status) {
	if m.status == netproto.StatusSuccess {
		m.status = s
	}
}

// quiet is true exactly when no child gives authority; known is false when that is not proven for some child, for good.
func (m *parentMachine) quiet() (quiet, known bool) {
	quiet, known = true, !m.unproven
	for _, c := range m.phases {
		switch {
		case c == childKept:
			known = false
		case !c.settled():
			quiet = false
		}
	}
	return quiet, known
}
