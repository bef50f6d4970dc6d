package hptcp

const (
	// windowBytes is how much is moved between two looks at the rate.
	windowBytes = 64 << 20
	// morePercent is which part of the rate before another stream must have to stay, fewerPercent one stream fewer.
	morePercent, fewerPercent = 110, 97
	// widthWindow, widthMore and widthFewer are the same for lanes. One with nothing else to do costs little, and a window
	// more or less than the one before by 5 % says nothing on a shared machine: fewer must be better, not just as good.
	widthWindow, widthMore, widthFewer = 256 << 20, 100, 110
	// calmMin and calmMax are how many windows pass between two trials: more after each one in vain.
	calmMin, calmMax = 4, 256
)

// spread chooses how many streams carry large requests (SPEC H-4). It starts with one, tries another number once in
// a while, and keeps it for what it gains; a trial in vain doubles the time to the next one, so that the number
// does not swing.
//
//	steady ──calm windows──▶ trial (one more, or in turn one fewer) ──next window──▶ steady
type spread struct {
	limit int    // streams at most: the peer's limit, this side's, the CPU quota
	count int    // streams in use
	rate  uint64 // bytes per millisecond with that number, smoothed
	trial int    // what the last decision added, while its effect is being measured
	calm  int    // windows until the next trial
	wait  int    // what calm starts from
	down  bool   // true exactly when the next trial is one stream fewer

	window      uint64 // bytes
	more, fewer uint64 // percent
	bytes       uint64 // in the present window
	nanoseconds uint64
}

func newSpread(limit int) spread {
	return spread{limit: max(1, limit), count: 1, calm: 1, wait: calmMin, window: windowBytes, more: morePercent, fewer: fewerPercent}
}

// newWidth is the same choice for lanes (Share): it begins with all of them.
func newWidth(limit int) spread {
	return spread{limit: max(1, limit), count: max(1, limit), calm: calmMin, wait: calmMin, window: widthWindow, more: widthMore, fewer: widthFewer}
}

// moved adds bytes that took so long since the last ones, while there was more to do all the time.
func (s *spread) moved(bytes, nanoseconds uint64) {
	s.bytes += bytes
	s.nanoseconds += nanoseconds
	if s.bytes < s.window {
		return
	}
	rate := s.bytes * 1_000_000 / max(1, s.nanoseconds)
	s.bytes, s.nanoseconds = 0, 0
	s.decide(rate)
}

// rested: there was nothing to do, so the window begins anew.
func (s *spread) rested() { s.bytes, s.nanoseconds = 0, 0 }

// lower takes streams back that could not be opened. More are tried again after the longest time: what is refused for a moment,
// as by a firewall, is no limit of the source.
func (s *spread) lower(count int) {
	s.count = max(1, min(s.count, count))
	s.trial, s.down, s.calm, s.wait = 0, false, calmMax, calmMax
}

func (s *spread) decide(rate uint64) {
	if s.trial != 0 {
		s.judge(rate)
		return
	}
	if s.rate == 0 {
		s.rate = rate
	}
	s.rate = (3*s.rate + rate) / 4
	if s.calm--; s.calm > 0 {
		return
	}
	s.trial = 1
	if s.count == s.limit || s.down && s.count > 1 {
		s.trial = -1
	}
	s.down = !s.down
	if s.count+s.trial < 1 {
		s.trial, s.calm = 0, s.wait
		return
	}
	s.count += s.trial
}

// judge keeps what the trial brought, or takes it back.
func (s *spread) judge(rate uint64) {
	percent := s.more
	if s.trial < 0 {
		percent = s.fewer
	}
	if rate*100 >= s.rate*percent {
		s.rate, s.wait = rate, calmMin
	} else {
		s.count = min(s.count-s.trial, s.limit)
		s.wait = min(2*s.wait, calmMax)
	}
	s.trial, s.calm = 0, s.wait
}
