package verbs

import (
	"errors"
	"fmt"
)

// errShort is what a library said that took less than it was given without an error.
var errShort = errors.New("the library reported success and fewer requests than it was given")

// completes says which completion an operation ends in.
func (o SendOperation) completes() CompletionOperation {
	switch o {
	case Write:
		return CompletedWrite
	case Read:
		return CompletedRead
	case BindWindow:
		return CompletedBind
	case LocalInvalidate:
		return CompletedLocalInvalidate
	}
	return CompletedSend
}

// PostSend posts work in order, each signaled, in one crossing. It refuses the whole list with *CreditError or
// *FencedError before anything is posted. A *PostError says how much the device took; tags of the rest are the caller's
// again, and windows of the rest are as they were before they were prepared. It allocates nothing when it succeeds.
func (q *QueuePair) PostSend(list []Work) error {
	q.mustPost("PostSend", PairReadyToSend)
	if q.fence != "" {
		return q.refusal()
	}
	if err := q.sends.afford("send queue", q, len(list)); err != nil {
		return err
	}
	native := q.sendList[:len(list)]
	for i := range list {
		w := &list[i]
		if w.Window != nil && w.Window.pair != q || (w.Operation == BindWindow || w.Operation == LocalInvalidate) && w.Window == nil {
			panic(fmt.Sprintf("verbs: PostSend on %s of window work of another pair or of no window", q))
		}
		native[i] = w.SendWork
		native[i].Flags |= Signaled
		native[i].ID, _ = q.sends.take(w.ID, w.Operation.completes(), w.Window)
		if w.Window != nil {
			w.Window.posted(native[i].ID)
		}
	}
	accepted, err := q.calls.PostSend(q.handle, native)
	if err == nil && accepted == len(native) {
		return nil
	}
	kept, problem := q.settle(accepted, len(native), err)
	for i := len(native) - 1; i >= kept; i-- { // proof: the library named the first one it did not take
		_, slot, _ := splitIdentity(native[i].ID)
		if w := list[i].Window; w != nil {
			w.refused()
		}
		q.sends.release(int32(slot))
	}
	return problem
}

// PostReceive posts receives in order; otherwise it is like PostSend. It may be used from Init on.
func (q *QueuePair) PostReceive(list []ReceiveWork) error {
	q.mustPost("PostReceive", PairInit)
	if q.fence != "" {
		return q.refusal()
	}
	if err := q.receives.afford("receive queue", q, len(list)); err != nil {
		return err
	}
	native := q.receiveList[:len(list)]
	for i := range list {
		native[i] = list[i]
		native[i].ID, _ = q.receives.take(list[i].ID, CompletedReceive, nil)
	}
	accepted, err := q.calls.PostReceive(q.handle, native)
	if err == nil && accepted == len(native) {
		return nil
	}
	kept, problem := q.settle(accepted, len(native), err)
	for i := len(native) - 1; i >= kept; i-- { // proof: as in PostSend
		_, slot, _ := splitIdentity(native[i].ID)
		q.receives.release(int32(slot))
	}
	return problem
}

func (q *QueuePair) mustPost(verb string, from PairState) {
	if s := q.life.stage(); s != open && s != retained || !q.attached || q.state < from {
		panic(fmt.Sprintf("verbs: %s on %s which is %s, %s and attached %v, want open, attached and at least %s", verb, q, s, q.state, q.attached, from))
	}
}

// settle decides how much of a list stays charged after a failed post (SPEC R-17): what was taken, or all of it when
// the library does not say, or says what cannot be.
func (q *QueuePair) settle(accepted, asked int, err error) (kept int, problem error) {
	unknown := accepted < 0 || accepted > asked || err != nil && accepted == asked || err == nil
	if err == nil {
		err = errShort
	}
	kept = accepted
	if unknown {
		kept = asked
		q.Fence("a post failed without saying what was taken")
	}
	return kept, &PostError{Object: q.String(), Posted: kept, Asked: asked, Unknown: unknown, Err: err}
}
