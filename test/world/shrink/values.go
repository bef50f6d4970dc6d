package shrink

import (
	"slices"

	"github.com/orbitte/orbitte/test/faults"
)

// names are parameters whose value is a name: a smaller one is not simpler.
var names = []faults.Param{
	faults.EngineOf, faults.Peer, faults.Number, faults.Memory, faults.Registration, faults.Segment, faults.Batch,
	faults.Note, faults.Target, faults.Stamp, faults.Connection, faults.Engines, faults.Seed, faults.Rail,
}

// conditions takes the world's and the engines' settings back to their defaults: chopping, delays, budgets, placement.
func (j *job) conditions() {
	j.simplify(func(s *faults.Script) *faults.Action { return &s.World })
	for i := len(j.best.Engines) - 1; i >= 0; i-- {
		kept := j.best.Clone()
		kept.Engines = slices.Delete(kept.Engines, i, i+1)
		if !j.try(kept) {
			j.simplify(func(s *faults.Script) *faults.Action { return &s.Engines[i] })
		}
	}
}

// numbers makes the values of each line as small as they can be; zero is not written at all.
func (j *job) numbers() {
	for i := len(j.best.Lines) - 1; i >= 0; i-- {
		j.simplify(func(s *faults.Script) *faults.Action { return &s.Lines[i].Action })
		for k := range j.best.Lines[i].Action.Requests {
			j.simplifyRequest(i, k)
		}
	}
}

// simplify reduces each value of the form that at finds in a script.
func (j *job) simplify(at func(*faults.Script) *faults.Action) {
	for _, arg := range slices.Clone(at(&j.best).Args) {
		if slices.Contains(names, arg.Param) {
			continue
		}
		j.lower(arg.Value, arg.Param.Words() != nil, func(value int64) faults.Script {
			s := j.best.Clone()
			a := at(&s)
			*a = a.With(arg.Param, value)
			return s
		})
	}
}

func (j *job) simplifyRequest(line, k int) {
	for _, field := range [...]func(*faults.Request) *int{
		func(r *faults.Request) *int { return &r.Length },
		func(r *faults.Request) *int { return &r.Offset },
		func(r *faults.Request) *int { return &r.At },
	} {
		value := int64(*field(&j.best.Lines[line].Action.Requests[k]))
		j.lower(value, false, func(value int64) faults.Script {
			return withRequests(j.best, line, func(list []faults.Request) []faults.Request {
				*field(&list[k]) = int(value)
				return list
			})
		})
	}
}

// lower looks for the smallest value with which the script still fails: zero, or by halving the gap between one that
// passes and one that fails. A word is left out or stays.
func (j *job) lower(value int64, word bool, with func(int64) faults.Script) {
	if value == 0 || j.try(with(0)) || word {
		return
	}
	for passes, fails := int64(0), value; fails-passes > 1 || passes-fails > 1; {
		middle := passes + (fails-passes)/2
		if j.try(with(middle)) {
			fails = middle
		} else if j.spent() {
			return
		} else {
			passes = middle
		}
	}
}

// requests shortens the batches.
func (j *job) requests() {
	for i := len(j.best.Lines) - 1; i >= 0; i-- {
		for k := len(j.best.Lines[i].Action.Requests) - 1; k >= 0; k-- {
			j.try(withRequests(j.best, i, func(list []faults.Request) []faults.Request { return slices.Delete(list, k, k+1) }))
		}
	}
}

// withRequests is the script with another list of requests in one line.
func withRequests(s faults.Script, line int, change func([]faults.Request) []faults.Request) faults.Script {
	s = s.Clone()
	a := &s.Lines[line].Action
	a.Requests = change(slices.Clone(a.Requests))
	return s
}

// turns takes idle time out: all of it at once, then the gap before each line, from the first.
func (j *job) turns() {
	j.try(earlier(j.best, 0, int(^uint(0)>>1)))
	for i := range j.best.Lines {
		gap := j.best.Lines[i].Turn
		if i > 0 {
			gap -= j.best.Lines[i-1].Turn
		}
		j.lower(int64(gap), false, func(shorter int64) faults.Script {
			now := j.best.Lines[i].Turn
			if i > 0 {
				now -= j.best.Lines[i-1].Turn
			}
			return earlier(j.best, i, now-int(shorter))
		})
	}
}

// earlier is the script in which line i and all after it come by so many turns earlier, but not before the line ahead.
func earlier(s faults.Script, i, turns int) faults.Script {
	s = s.Clone()
	ahead := 0
	if i > 0 {
		ahead = s.Lines[i-1].Turn
	}
	for k := i; k < len(s.Lines); k++ {
		s.Lines[k].Turn = max(s.Lines[k].Turn-turns, ahead)
	}
	return s
}
