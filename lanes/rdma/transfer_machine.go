package rdma

import (
	"fmt"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
)

// transferStage is how far a transfer has come, at the requester (SPEC R-13).
//
//	connecting ─▶ room ─▶ stocking ─▶ leasing ─▶ granting ─▶ moving ─▶ receipt ─▶ [commit] ─▶ [parting] ─▶ ended ─Done─▶ idle
//	     ▲                                          │ cache miss: at most twice (SPEC R-15)
//	     └──────────────────────────────────────────┘
//	connecting ──a pair of NICs could not be connected──▶ connecting over others, once
//	granting … receipt ──failure──▶ halting ─▶ [abandoning] ─▶ [parting] ─▶ ended
//	before granting    ──failure──▶ [parting] ─▶ ended
type transferStage uint8

const (
	transferIdle transferStage = iota
	transferChecking
	transferWalking // moves in parts, each a transfer of its own
	transferTurn    // waits for places for the queue pairs of its grants on a GPU
	transferConnecting
	transferRoom     // waits for receives of the peer
	transferStocking // waits for message slots, or staging
	transferLeasing
	transferGranting
	transferMoving
	transferReceipt // the source was told that all is done
	transferCommit  // staged READ: staging to local range
	transferHalting // it failed: what is with devices ends, what was granted is given back
	transferAbandoning
	transferFlushing // what devices wrote to a GPU is made visible to it
	transferParting  // private connections end
	transferEnded    // only Done is left
)

var transferStageNames = [...]string{
	"idle", "check", "parts", "waiting for queue pairs", "RDMA connection", "waiting for receives of the source", "message slots", "lease", "RDMA grant", "RDMA payload",
	"RDMA receipt", "commit", "RDMA cleanup", "RDMA abandon", "visibility to the GPU", "end of the connection", "end",
}

func (s transferStage) String() string { return transferStageNames[s] }

// parcelPhase is how far one slice has come.
//
//	planned ─▶ granted ─▶ moved ─▶ ended
//	              └─surrender: no payload ─▶ ended
//	granted, moved ──its connection failed──▶ lost ─▶ quiet, or kept
type parcelPhase uint8

const (
	parcelPlanned parcelPhase = iota
	parcelGranted             // its payload is to be posted, or with the device
	parcelMoved               // all payload completed; its binding is to be posted, or with the device
	parcelEnded               // the binding completed: the source has it
	parcelLost                // its connection failed, and the device may not be done
	parcelQuiet               // the device is done with it
	parcelKept                // the cleanup window passed without that proof
)

// parcel is one slice of a transfer.
type parcel struct {
	offset, length uint64 // in the transfer
	leg, pair      uint8
	phase          parcelPhase
	posted         uint64 // payload bytes of which work was posted
	flying         int    // work requests with the device
	bound          bool   // true exactly when the binding was posted
	grant          netproto.Grant
}

// parcelWork is what a slice posts next.
type parcelWork uint8

const (
	workNone parcelWork = iota
	workPayload
	workBinding
)

// transferMachine decides the steps of one transfer.
type transferMachine struct {
	direction lanes.Direction
	staged    bool
	stage     transferStage
	parcels   []parcel
	fault     *lanes.Fault // the first reason; nil: none
	authority bool         // true exactly while the source may have granted something
	touched   bool         // true exactly when payload work was posted
	received  bool         // true exactly when the source acknowledged everything
	committed bool
	changed   bool // staged READ: true exactly when a copy to the local range began, which is on a GPU
	unproven  bool // true exactly when a copy between staging and a GPU is not proven to have ended
	rigid     bool // true exactly when grants without all their payload are not ended by their bindings
	misses    int
}

func (m *transferMachine) begin(d lanes.Direction, staged bool) {
	*m = transferMachine{direction: d, staged: staged, parcels: m.parcels[:0]}
}

// SourceDeadlineError says that the source took its grants back because its own deadline for them passed, before it had every
// receipt and the requester's word that all is done. What was moved until then is in the outcome's effects.
type SourceDeadlineError struct{}

func (*SourceDeadlineError) Error() string {
	return "the source's own deadline for the grants passed before it had every receipt and heard that all is done, and it took them back"
}

// MissError says that the source did not know the queue pairs of a transfer any more, each time that they were built
// (SPEC R-15). It granted nothing.
type MissError struct{ Times int }

func (e *MissError) Error() string {
	return fmt.Sprintf("the source did not know the queue pairs any more, %d times in a row, before it granted anything: it ends idle ones when others need their places", e.Times)
}

// missesMax bounds how often a transfer builds anew (SPEC R-15).
const missesMax = 2

// missed is the source's explicit word that it does not know a connection, and so granted nothing. True: build anew.
func (m *transferMachine) missed() bool {
	m.misses++
	return m.misses <= missesMax
}

// granted takes one grant for each slice.
func (m *transferMachine) granted(grants []netproto.Grant) {
	m.authority = true
	for i := range m.parcels {
		m.parcels[i].phase, m.parcels[i].grant = parcelGranted, grants[i]
	}
}

// next says what a slice may post now. A halting transfer posts no payload: it ends the grants that it does not use.
func (m *transferMachine) next(i int) parcelWork {
	p := &m.parcels[i]
	switch {
	case m.stage == transferMoving && p.phase == parcelGranted && p.posted < p.length:
		return workPayload
	case m.stage == transferMoving && p.phase == parcelMoved && !p.bound:
		return workBinding
	case m.stage == transferHalting && (p.phase == parcelGranted && !m.rigid || p.phase == parcelMoved) && p.flying == 0 && !p.bound:
		return workBinding
	}
	return workNone
}

// posted counts work that is given to the device; n is its payload.
func (m *transferMachine) posted(i int, what parcelWork, n uint64) {
	p := &m.parcels[i]
	p.flying++
	if what == workBinding {
		p.bound = true
		return
	}
	p.posted += n
	m.touched = true
}

// spilled takes that back: the device certainly did not take it.
func (m *transferMachine) spilled(i int, what parcelWork, n uint64) {
	p := &m.parcels[i]
	p.flying--
	if what == workBinding {
		p.bound = false
		return
	}
	p.posted -= n
}

// reaped takes the end of one piece of work.
func (m *transferMachine) reaped(i int, what parcelWork, ok bool) {
	p := &m.parcels[i]
	p.flying--
	switch {
	case !ok && (p.phase == parcelGranted || p.phase == parcelMoved):
		p.phase = parcelLost
	case !ok || p.phase == parcelLost:
	case what == workBinding:
		p.phase = parcelEnded
	case p.posted == p.length && p.flying == 0:
		p.phase = parcelMoved
	}
}

// lost says that a connection failed. False: no slice on it is unfinished.
func (m *transferMachine) lost(leg int) (some bool) {
	for i := range m.parcels {
		p := &m.parcels[i]
		if int(p.leg) != leg {
			continue
		}
		switch p.phase {
		case parcelGranted, parcelMoved:
			p.phase = parcelLost
			some = true
		case parcelLost:
			some = true
		}
	}
	return some
}

// quiet says that nothing more comes from a failed connection, and whether its device is certainly done.
func (m *transferMachine) quiet(leg int, proven bool) {
	for i := range m.parcels {
		p := &m.parcels[i]
		if int(p.leg) != leg || p.phase != parcelLost && p.flying == 0 {
			continue
		}
		if p.phase = parcelKept; proven || p.flying == 0 {
			p.phase, p.flying = parcelQuiet, 0
		}
	}
}

// complete is true exactly when every slice's binding is with the source.
func (m *transferMachine) complete() bool {
	for i := range m.parcels {
		if m.parcels[i].phase != parcelEnded {
			return false
		}
	}
	return len(m.parcels) > 0
}

// resting is true exactly when no slice has anything to do or to wait for.
func (m *transferMachine) resting() bool {
	for i := range m.parcels {
		if p := m.parcels[i].phase; p == parcelGranted || p == parcelMoved || p == parcelLost {
			return false
		}
	}
	return true
}

// idle is true exactly when no work is with a device.
func (m *transferMachine) idle() bool {
	for i := range m.parcels {
		if m.parcels[i].flying > 0 {
			return false
		}
	}
	return true
}

// kept is true exactly when the device may still touch the memory of some slice.
func (m *transferMachine) kept() bool {
	for i := range m.parcels {
		if m.parcels[i].phase == parcelKept {
			return true
		}
	}
	return m.unproven
}

// fail remembers the first reason.
func (m *transferMachine) fail(f *lanes.Fault) {
	if m.fault == nil {
		m.fault = f
		if f.Stage == "" {
			f.Stage = m.stage.String()
		}
	}
}

// outcome is the end, as far as the machine knows it (SPEC T-1, T-2, T-10, R-9).
func (m *transferMachine) outcome(length uint64) lanes.Outcome {
	o := lanes.Outcome{Drained: !m.kept()}
	if m.fault != nil {
		o.Err = m.fault
		switch {
		case m.direction == lanes.Write && m.touched:
			o.Remote = lanes.EffectUnknown
		case m.direction == lanes.Read && (m.touched && !m.staged || m.changed):
			o.Local = lanes.EffectPartial
		}
		return o
	}
	o.Bytes = length
	if m.direction == lanes.Write {
		o.Remote = lanes.EffectComplete
	} else {
		o.Local = lanes.EffectComplete
	}
	return o
}
