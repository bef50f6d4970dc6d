package delegate

import (
	"time"

	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/reactor"
)

// claimGrace is how long a place in the line stays for a peer that was refused and does not ask again.
const claimGrace = 250 * time.Millisecond

// claim is one peer's place in the line for slots.
type claim struct {
	session *control.Session
	until   reactor.Instant
}

// line keeps the order of those that found no slot and ask again. Nothing waits at the source for it: a frame that did
// would hold its stream and a handler, which those need that could give slots back.
type line struct{ claims []claim }

// first is true exactly when nobody stands before this session.
func (l *line) first(s *control.Session, now reactor.Instant) bool {
	kept := l.claims[:0]
	for _, c := range l.claims {
		if c.until > now {
			kept = append(kept, c)
		}
	}
	clear(l.claims[len(kept):])
	l.claims = kept
	return len(kept) == 0 || kept[0].session == s
}

// stay gives the session a place, or lets it keep the one that it has.
func (l *line) stay(s *control.Session, now reactor.Instant) {
	for i := range l.claims {
		if l.claims[i].session == s {
			l.claims[i].until = now.After(claimGrace)
			return
		}
	}
	l.claims = append(l.claims, claim{s, now.After(claimGrace)})
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
