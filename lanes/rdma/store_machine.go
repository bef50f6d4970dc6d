package rdma

import (
	"fmt"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
)

// Role is the side of a connection that an array of pairs serves.
type Role uint8

const (
	Requester Role = iota + 1
	Source
)

// ArrayKey scopes reusable queue pairs (SPEC R-10): grants with the same key may share them, others never do.
type ArrayKey struct {
	Role                      Role
	Direction                 lanes.Direction
	LocalNIC, RemoteNIC       uint8
	LocalDomain, RemoteDomain uint64 // protection domains: never reused while a process lives
	Remote                    netproto.Epoch
	// Private, if not zero, scopes the array to one connection: that of one grant (SPEC R-16), or at a source the one
	// that the requester's incarnation names.
	Private netproto.Incarnation
}

// Width is the fixed number of queue pairs of an array: the smaller of what both sides want, at least one.
func Width(own, peer int) int { return max(1, min(own, peer, netproto.PairsMax)) }

// ArrayState is where an array of queue pairs stands.
type ArrayState uint8

const (
	Building ArrayState = iota // its places are charged; one builder makes the pairs
	Ready                      // takes users
	Retiring                   // takes no users; those it has finish their cleanup
	Ending                     // nobody uses it; its pairs are being drained and destroyed
	Retained                   // a destruction was refused or never proven; charged for good
	Gone                       // proven destroyed, places repaid
)

var arrayStateNames = [...]string{"building", "ready", "retiring", "ending", "retained", "gone"}

func (s ArrayState) String() string { return arrayStateNames[s] }

// Array is the queue pairs of one key. The store owns its account; whoever drives the store owns the pairs.
type Array struct {
	Key   ArrayKey
	Width int // queue pairs, native or to be made
	// Data is the driver's own.
	Data any

	state   ArrayState
	users   int // grants and transfers that hold it
	next    int // pair that the next user is given
	used    uint64
	charge  budgets.Charge // of max_endpoints
	near    budgets.Charge // of what the pairs of its NIC on this lane share
	waiting waiters
	fault   error // why it was fenced
}

// State is where the array stands.
func (a *Array) State() ArrayState { return a.state }

// Users is how many grants and transfers hold it.
func (a *Array) Users() int { return a.users }

// Fault is why the array was fenced; nil: it was not.
func (a *Array) Fault() error { return a.fault }

// Pair gives users the pairs in turn.
func (a *Array) Pair() int {
	p := a.next
	a.next = (a.next + 1) % a.Width
	return p
}

// Waiter is one request for an array that cannot be had at once. It is in at most one queue; the zero value is in none.
type Waiter struct {
	// Deadline is an instant of the lane's clock, in nanoseconds; the builder goes on when it passes.
	Deadline int64
	// Data is the caller's own.
	Data any

	key           ArrayKey
	width         int
	queue         *waiters
	earlier, next *Waiter
	promised      bool // true exactly while its answer is among those that are handed out
}

// Waiting is true exactly while the waiter has no answer yet.
func (w *Waiter) Waiting() bool { return w.queue != nil }

// waiters is a queue in order of arrival.
type waiters struct{ first, last *Waiter }

func (q *waiters) push(w *Waiter) {
	w.queue, w.earlier, w.next = q, q.last, nil
	if q.last == nil {
		q.first = w
	} else {
		q.last.next = w
	}
	q.last = w
}

func (q *waiters) remove(w *Waiter) {
	if w.earlier == nil {
		q.first = w.next
	} else {
		w.earlier.next = w.next
	}
	if w.next == nil {
		q.last = w.earlier
	} else {
		w.next.earlier = w.earlier
	}
	w.queue, w.earlier, w.next = nil, nil, nil
}

// Step is what a caller of Acquire does next.
type Step uint8

const (
	Use    Step = iota + 1 // the caller holds the array and gives it back with Release
	Build                  // the caller holds it and makes its pairs, then says Built or BuildFailed
	Wait                   // the waiter is in a queue
	Refuse                 // Err says why
)

// Answer is what Acquire, or an event for a waiter, comes to.
type Answer struct {
	Step   Step
	Array  *Array
	Waiter *Waiter // whose answer it is; nil in what Acquire returns
	Evict  *Array  // is Ending now: the caller drains and destroys its pairs; nil: none
	Err    error
	Near   bool // of a refusal: true exactly when only arrays of this lane and NIC have what is missing
}

// Store holds the reusable arrays of one lane (SPEC R-10). The budget of queue pairs is the engine's; a place is taken
// before a pair is made and repaid when its destruction is proven. Only an idle array is ever evicted.
type Store struct {
	budget   *budgets.Budget
	near     map[uint8]*budgets.Budget // pairs of one NIC, which share completion queues
	byKey    map[ArrayKey]*Array       // building or ready
	arrays   []*Array                  // all that hold places
	capacity waiters                   // for places that are on their way back
	clock    uint64                    // rises with each use, for the choice of the one to evict
}

// NewStore makes an empty store. The budget is max_endpoints of SPEC U, in queue pairs.
func NewStore(budget *budgets.Budget) *Store {
	return &Store{budget: budget, near: map[uint8]*budgets.Budget{}, byKey: map[ArrayKey]*Array{}}
}

// Near bounds the pairs of a local NIC besides, before the first Acquire: they share the completion queues of the lane
// (max_cqes of SPEC U).
func (s *Store) Near(nic uint8, b *budgets.Budget) { s.near[nic] = b }

// take charges the places of a new array. On a refusal, near says that they are those of its NIC.
func (s *Store) take(w *Waiter, a *Array) (near bool, err error) {
	if a.charge, err = s.budget.Take(int64(w.width)); err != nil {
		return false, err
	}
	if b := s.near[w.key.LocalNIC]; b != nil {
		if a.near, err = b.Take(int64(w.width)); err != nil {
			a.charge.Repay() // nothing was made
			return true, err
		}
	}
	return false, nil
}

// repay gives the places back. The caller has the proof.
func (a *Array) repay() {
	a.charge.Repay()
	if a.near.Held() {
		a.near.Repay()
	}
}

// Acquire asks for the array of a key. A waiter that has to wait is queued, with its own deadline. It allocates nothing
// when a ready array exists.
func (s *Store) Acquire(key ArrayKey, width int, w *Waiter) Answer {
	if w.Waiting() || width < 1 {
		panic(fmt.Sprintf("rdma: Acquire of %d pairs with a waiter that waits (%v), want 1 or more and one that does not", width, w.Waiting()))
	}
	if answer, ok := s.join(key, w); ok {
		return answer
	}
	w.key, w.width = key, width
	if s.capacity.first != nil { // places are on their way, and others were here before
		s.capacity.push(w)
		return Answer{Step: Wait}
	}
	return s.begin(w)
}

// join takes part in an array that exists.
func (s *Store) join(key ArrayKey, w *Waiter) (Answer, bool) {
	a := s.byKey[key]
	switch {
	case a == nil:
		return Answer{}, false
	case a.state == Ready:
		s.hold(a)
		return Answer{Step: Use, Array: a}, true
	}
	a.waiting.push(w)
	return Answer{Step: Wait, Array: a}, true
}

// begin starts a new array, if there are places for it.
func (s *Store) begin(w *Waiter) Answer {
	a := &Array{Key: w.key, Width: w.width}
	near, err := s.take(w, a)
	if err == nil {
		s.byKey[w.key] = a
		s.arrays = append(s.arrays, a)
		s.hold(a)
		return Answer{Step: Build, Array: a}
	}
	helps := func(other *Array) bool { return !near || other.Key.LocalNIC == w.key.LocalNIC }
	idle, ending := s.oldestIdle(helps), s.ending(helps)
	if s.never(w) || idle == nil && !ending {
		return Answer{Step: Refuse, Err: err, Near: near}
	}
	s.capacity.pushFront(w)    // it is alone, or was the first
	if idle == nil || ending { // places are on their way already; more go when they prove too few
		return Answer{Step: Wait}
	}
	s.retire(idle)
	return Answer{Step: Wait, Evict: idle}
}

// never is true exactly when so many places can never be had.
func (s *Store) never(w *Waiter) bool {
	b := s.near[w.key.LocalNIC]
	return int64(w.width) > s.budget.Limit() || b != nil && int64(w.width) > b.Limit()
}

func (s *Store) hold(a *Array) {
	a.users++
	s.clock++
	a.used = s.clock
}

// EvictIdle retires, of the ready arrays without users that f chooses, the one that was used the longest ago: for a place
// on another lane, or for what it has besides. It is Ending then and the caller destroys its pairs; nil: there is none.
func (s *Store) EvictIdle(f func(*Array) bool) *Array {
	idle := s.oldestIdle(f)
	if idle != nil {
		s.retire(idle)
	}
	return idle
}

// oldestIdle is the ready array without users, of those that f chooses, that was used the longest ago; nil: there is none.
func (s *Store) oldestIdle(f func(*Array) bool) *Array {
	var oldest *Array
	for _, a := range s.arrays {
		if a.state == Ready && a.users == 0 && (oldest == nil || a.used < oldest.used) && f(a) {
			oldest = a
		}
	}
	return oldest
}

// ending is true exactly when one that f chooses is on its way back.
func (s *Store) ending(f func(*Array) bool) bool {
	for _, a := range s.arrays {
		if a.state == Ending && f(a) {
			return true
		}
	}
	return false
}

// Built says that all pairs of an array are connected. Each waiter of it now holds it; their answers are appended.
func (s *Store) Built(a *Array, answers []Answer) []Answer {
	a.must("Built", Building)
	a.state = Ready
	for w := a.waiting.first; w != nil; w = a.waiting.first {
		a.waiting.remove(w)
		s.hold(a)
		w.promised = true
		answers = append(answers, Answer{Step: Use, Array: a, Waiter: w})
	}
	return answers
}

// BuildFailed ends the builder's hold on an array that could not be made; its waiters are refused with the same error,
// since they asked for the same thing. Left says that native pairs exist: the array is Ending then and the caller
// destroys them. Otherwise its places are free again, and whoever waits for places is served.
func (s *Store) BuildFailed(a *Array, err error, left bool, answers []Answer) []Answer {
	a.must("BuildFailed", Building)
	a.fault = err
	a.users-- // the builder
	delete(s.byKey, a.Key)
	for w := a.waiting.first; w != nil; w = a.waiting.first {
		a.waiting.remove(w)
		w.promised = true
		answers = append(answers, Answer{Step: Refuse, Waiter: w, Err: err})
	}
	a.state = Ending
	if left {
		return answers
	}
	return s.Ended(a, answers) // proof: the caller says that nothing was made
}

// Release ends one user's hold. True: the array is Ending now, and the caller destroys its pairs.
func (s *Store) Release(a *Array) bool {
	if a.users < 1 || a.state != Ready && a.state != Retiring && a.state != Retained {
		panic(fmt.Sprintf("rdma: Release of an array that is %s with %d users, want one in use", a.state, a.users))
	}
	a.users--
	if a.state == Retiring && a.users == 0 {
		a.state = Ending
		return true
	}
	return false
}

// Retire takes an array out of use: no new users. True: it has none, is Ending, and the caller destroys its pairs. A
// route that changed, a segment that is closed and an eviction retire; a failed pair fences.
func (s *Store) Retire(a *Array) bool {
	if a.state != Ready {
		return false
	}
	return s.retire(a)
}

func (s *Store) retire(a *Array) bool {
	delete(s.byKey, a.Key)
	a.state = Retiring
	if a.users == 0 {
		a.state = Ending
	}
	return a.state == Ending
}

// Fence is Retire after a failure: all users of the array are to be cancelled (SPEC R-17).
func (s *Store) Fence(a *Array, err error) bool {
	if a.fault == nil {
		a.fault = err
	}
	return s.Retire(a)
}

// Ended says that the pairs of an array are proven destroyed. Its places are repaid, and waiters for places are served.
func (s *Store) Ended(a *Array, answers []Answer) []Answer {
	a.must("Ended", Ending)
	a.state = Gone
	a.repay() // proof: the caller's, that every pair is destroyed
	for i, other := range s.arrays {
		if other == a {
			s.arrays = append(s.arrays[:i], s.arrays[i+1:]...)
			break
		}
	}
	return s.Serve(answers)
}

// Retained says that the end of an array's pairs cannot be proven. It stays charged. Waiters for places whose hope it
// was are served, or refused.
func (s *Store) Retained(a *Array, answers []Answer) []Answer {
	if a.state == Gone || a.state == Building || a.state == Retained {
		panic(fmt.Sprintf("rdma: Retained of an array that is %s, want ready, retiring or ending", a.state))
	}
	if a.state == Ready {
		delete(s.byKey, a.Key)
	}
	a.state = Retained
	return s.Serve(answers)
}

// Serve gives places to those who wait for them, in order. The drive also calls it when another lane repaid places. One
// who would have to wait with nothing on its way is refused.
func (s *Store) Serve(answers []Answer) []Answer {
	for w := s.capacity.first; w != nil; w = s.capacity.first {
		s.capacity.remove(w)
		answer, ok := s.join(w.key, w)
		if !ok {
			answer = s.begin(w)
		}
		if answer.Step != Wait {
			answer.Waiter, w.promised = w, true
			answers = append(answers, answer)
		}
		if w.queue == &s.capacity { // still no places
			if answer.Evict != nil {
				answers = append(answers, answer)
			}
			return answers
		}
	}
	return answers
}

// pushFront puts a waiter before all others.
func (q *waiters) pushFront(w *Waiter) {
	w.queue, w.earlier, w.next = q, nil, q.first
	if q.first == nil {
		q.last = w
	} else {
		q.first.earlier = w
	}
	q.first = w
}

// Leave takes a waiter back: its request was cancelled. What it waited for goes on.
func (s *Store) Leave(w *Waiter) {
	if w.queue != nil {
		w.queue.remove(w)
	}
}

// Expire takes back all waiters whose deadline has come; they are appended.
func (s *Store) Expire(now int64, expired []*Waiter) []*Waiter {
	expired = s.capacity.expire(now, expired)
	for _, a := range s.arrays {
		expired = a.waiting.expire(now, expired)
	}
	return expired
}

func (q *waiters) expire(now int64, expired []*Waiter) []*Waiter {
	for w := q.first; w != nil; {
		next := w.next
		if w.Deadline <= now {
			q.remove(w)
			expired = append(expired, w)
		}
		w = next
	}
	return expired
}

// Next is the earliest deadline of a waiter; false: nobody waits.
func (s *Store) Next() (deadline int64, ok bool) {
	look := func(q *waiters) {
		for w := q.first; w != nil; w = w.next {
			if !ok || w.Deadline < deadline {
				deadline, ok = w.Deadline, true
			}
		}
	}
	look(&s.capacity)
	for _, a := range s.arrays {
		look(&a.waiting)
	}
	return deadline, ok
}

// Each calls f for every array that holds places, the oldest first. F must not call the store.
func (s *Store) Each(f func(*Array)) {
	for _, a := range s.arrays {
		f(a)
	}
}

func (a *Array) must(verb string, want ArrayState) {
	if a.state != want {
		panic(fmt.Sprintf("rdma: %s of an array that is %s, want %s", verb, a.state, want))
	}
}
