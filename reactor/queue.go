package reactor

// Queue is something outside the kernel that a loop looks at in each turn: the completion queues of an
// RDMA device, which a program polls without a system call (SPEC L-2, R-19).
type Queue interface {
	// Owed is true exactly when completions may come that no descriptor announces. While any attached
	// queue owes something its loop does not block.
	Owed() bool
	// Collect takes at most budget completions, hands each to its owner and says how many there were.
	Collect(budget int, now Instant) int
}

// Attach makes the loop look at q in each turn from the next one on.
func (l *Loop) Attach(q Queue) { l.queues = append(l.queues, q) }

// Detach ends that. It may be called while q is being collected.
func (l *Loop) Detach(q Queue) {
	for i, other := range l.queues {
		if other == q {
			l.queues = append(l.queues[:i:i], l.queues[i+1:]...)
			return
		}
	}
}

// owed is true exactly when some queue forbids blocking.
func (l *Loop) owed() bool {
	for _, q := range l.queues {
		if q.Owed() {
			return true
		}
	}
	return false
}

// collect looks at each queue once, beginning with another one each turn. One turn's budget of completions
// is shared, and each queue gets at least its even part of it before another may take more.
func (l *Loop) collect() bool {
	queues := l.queues // Detach makes a new list
	if len(queues) == 0 {
		return false
	}
	left, done := l.options.Completions, 0
	l.first++
	for i := range queues {
		share := max(1, left/(len(queues)-i))
		n := queues[(l.first+i)%len(queues)].Collect(share, l.now)
		left, done = max(0, left-n), done+n
	}
	l.counts.completions.add(uint64(done))
	return done > 0
}
