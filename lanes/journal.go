package lanes

import (
	"sync/atomic"
	"time"

	"github.com/orbitte/orbitte/reactor"
)

// Note is one line for the log. A written line is a system call, so a lane never writes it: it puts
// the note into its journal, and the root writes it.
type Note struct {
	Kind  NoteKind
	Lane  int
	Count uint64 // how many of this kind since the last one written, itself included
	Where string // address or object
	Err   error
}

// NoteKind names what is worth a line.
type NoteKind uint8

const (
	// NoteAcceptExhausted: the system has no descriptors or memory for new connections.
	NoteAcceptExhausted NoteKind = iota
	// NoteAcceptResumed: connections are accepted again.
	NoteAcceptResumed
	// NoteListenerFailed: the listener ended; no new peer can connect.
	NoteListenerFailed
	// NoteSessionsOverflow: a connection was closed because handlers and queue are full.
	NoteSessionsOverflow
	// NoteProtocol: a peer broke the protocol.
	NoteProtocol
	// NoteStaleEpoch: a peer asks for a life that this source is not.
	NoteStaleEpoch
	// NotePermission: a peer asks for a direction that a region does not allow.
	NotePermission
	// NoteRetained: a descriptor could not be closed and is retained.
	NoteRetained
	// NoteDevice: a device of this side refused what a peer asked for.
	NoteDevice
	noteKinds
)

const (
	journalNotes = 256
	// noteInterval: at most one line of a kind in this time (field cases F-35, F-67).
	noteInterval = time.Second
)

// Journal is a bounded ring from one lane to one reader. A full ring drops notes and counts them.
type Journal struct {
	ring       [journalNotes]Note
	head, tail atomic.Uint64 // head: next to write (lane); tail: next to read
	dropped    atomic.Uint64
	last       [noteKinds]reactor.Instant
	since      [noteKinds]uint64
	// Signal is told, without blocking, that there is something to read. May be nil.
	Signal chan struct{}
}

// Add notes something at now, unless a note of its kind is younger than a second. Lane only.
func (j *Journal) Add(now reactor.Instant, n Note) {
	j.since[n.Kind]++
	if last := j.last[n.Kind]; last != 0 && now < last.After(noteInterval) {
		return
	}
	head := j.head.Load()
	if head-j.tail.Load() == journalNotes {
		j.dropped.Add(1)
		return
	}
	n.Count, j.since[n.Kind], j.last[n.Kind] = j.since[n.Kind], 0, now
	j.ring[head%journalNotes] = n
	j.head.Store(head + 1)
	select {
	case j.Signal <- struct{}{}:
	default:
	}
}

// Next takes the oldest note. One reader only.
func (j *Journal) Next() (Note, bool) {
	tail := j.tail.Load()
	if tail == j.head.Load() {
		return Note{}, false
	}
	n := j.ring[tail%journalNotes]
	j.tail.Store(tail + 1)
	return n, true
}

// Dropped counts the notes lost to a full ring.
func (j *Journal) Dropped() uint64 { return j.dropped.Load() }
