package delegate

import (
	"time"

	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/reactor"
)

const (
	// claimGrace is how long a place in the line stays for a peer that was refused and does not ask again.
	claimGrace = 250 * time.Millisecond
	// claimPatience is how long others wait meanwhile for a peer of which only one question is known: about three times the
	// longest pause of one that goes on asking. Longer ones are waited for if they took as long before.
	claimPatience = 50 * time.Millisecond
)

// claim is one peer's place in the line for slots.
type claim struct {
	session *control.Session // never used by another peer: one is made for each accepted stream
	asked   reactor.Instant
	every   time.Duration // between its last two questions
}

// due is true exactly while the peer is expected to ask again: others wait for it. It may have been cancelled, and nobody
// says so.
func (c *claim) due(now reactor.Instant) bool {
	return now < c.asked.After(max(claimPatience, 2*c.every))
}

// line keeps the order of those that found no slot and ask again. Nothing waits at the source for it: a frame that did
// would hold its stream and a handler, which those need that could give slots back.
type line struct{ claims []claim }

// first is true exactly when nobody stands before this session who is waited for.
func (l *line) first(s *control.Session, now reactor.Instant) bool {
	l.sweep(now)
	for i := range l.claims {
		if c := &l.claims[i]; c.session == s || c.due(now) {
			return c.session == s
		}
	}
	return true
}

// sweep ends the claims of those that are gone, or have not asked for too long. At most one for each stream is left.
func (l *line) sweep(now reactor.Instant) {
	kept := l.claims[:0]
	for _, c := range l.claims {
		if now < c.asked.After(claimGrace) && !c.session.Gone() {
			kept = append(kept, c)
		}
	}
	clear(l.claims[len(kept):])
	l.claims = kept
}

// stay gives the session a place, or lets it keep the one that it has.
func (l *line) stay(s *control.Session, now reactor.Instant) {
	l.sweep(now)
	for i := range l.claims {
		if c := &l.claims[i]; c.session == s {
			c.asked, c.every = now, time.Duration(now-c.asked)
			return
		}
	}
	l.claims = append(l.claims, claim{session: s, asked: now})
}

// served takes the session out of the line.
func (l *line) served(s *control.Session) {
	for i := range l.claims {
		if l.claims[i].session == s {
			l.claims = append(l.claims[:i], l.claims[i+1:]...)
			return
		}
	}
}
