package rdma

import (
	"errors"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/reactor"
)

// huntTours is how often one request looks through the other lanes for idle connections.
const huntTours = 4

// hunt looks for places on other lanes: the budget is the engine's, and a connection that is idle on one lane must not
// keep another lane from making one (SPEC R-10). Its letter visits the lanes until one has an idle connection and ends it;
// when places are repaid the request is tried again.
//
//	touring ──a lane evicts──▶ waiting ──places repaid, refused again──▶ touring
//	   └──no lane has an idle connection──▶ refused
type hunt struct {
	home    *Rails
	key     ArrayKey
	width   int
	waiter  *Waiter
	who     hunter // nil: it gave up
	refusal Answer
	letter  reactor.Letter
	at      int // index of the lane that is visited
	tours   int
	evicted bool // true exactly when a lane of this tour ended an idle connection
	back    bool // true exactly when the letter is on its way home
}

// acquire asks the store of the lane, and then the other lanes.
func (r *Rails) acquire(key ArrayKey, width int, w *Waiter, who hunter) Step {
	answer := r.store.Acquire(key, width, w)
	answer.Waiter = w
	if answer.Step == Refuse && len(r.transport.rails) > 1 && !answer.Near && passing(answer.Err) {
		h := &hunt{home: r, key: key, width: width, waiter: w, who: who, refusal: answer}
		who.hunts(h)
		h.tour()
		return Wait
	}
	r.serve(answer)
	return answer.Step
}

// passing is true exactly for a lack of places that others may end. It is kept apart so that acquire allocates nothing.
func passing(err error) bool {
	var full *budgets.Exhausted
	return errors.As(err, &full) && full.Asked <= full.Limit
}

// hunter is a petitioner that may have to look on other lanes.
type hunter interface {
	petitioner
	hunts(*hunt)
}

// tour begins with the first lane.
func (h *hunt) tour() {
	h.at, h.evicted, h.back = -1, false, false
	h.tours++
	h.next()
}

// next goes to the next lane, or home.
func (h *hunt) next() {
	all := h.home.transport.rails
	for h.at++; h.at < len(all); h.at++ {
		if all[h.at] != h.home && all[h.at].lane.Post(&h.letter, h) == nil {
			return
		}
	}
	h.goHome()
}

func anyArray(*Array) bool { return true }

func (h *hunt) goHome() {
	h.back = true
	_ = h.home.lane.Post(&h.letter, h) // a lane that is closed has nobody who waits
}

// Receive looks for an idle connection on the lane that is visited, or goes on at home (reactor.Recipient).
func (h *hunt) Receive(*reactor.Letter, reactor.Instant) {
	if h.back {
		h.returned()
		return
	}
	r := h.home.transport.rails[h.at]
	idle := r.store.EvictIdle(anyArray)
	if idle == nil {
		h.next()
		return
	}
	r.transport.counts.evicted.Add(1)
	h.evicted = true
	h.goHome() // the letter first: the end may repay at once
	idle.Data.(*Connection).finish()
}

// returned follows a tour.
func (h *hunt) returned() {
	switch {
	case h.who == nil:
	case h.evicted:
		h.home.hunts = append(h.home.hunts, h)
		h.home.retryHunts() // the places may be back already
	default:
		h.give(h.refusal)
	}
}

// give ends the hunt with an answer.
func (h *hunt) give(a Answer) {
	who := h.who
	h.who = nil
	who.hunts(nil)
	h.home.serve(a)
}

// again tries the request anew. False: it waits for the next places.
func (h *hunt) again(repaid bool) bool {
	if h.who == nil {
		return true
	}
	answer := h.home.store.Acquire(h.key, h.width, h.waiter)
	answer.Waiter = h.waiter
	if answer.Step != Refuse {
		h.give(answer)
		return true
	}
	h.refusal = answer
	switch {
	case answer.Near: // another lane cannot help any more
		h.give(answer)
	case !repaid:
		return false
	case h.tours < huntTours:
		h.tour()
	default:
		h.give(answer)
	}
	return true
}

// retryHunts serves the hunts that wait, without places that were surely repaid.
func (r *Rails) retryHunts() { r.runHunts(false) }

func (r *Rails) runHunts(repaid bool) {
	waiting := r.hunts
	r.hunts = nil
	for _, h := range waiting {
		if !h.again(repaid) {
			r.hunts = append(r.hunts, h)
		}
	}
}
