package cuda

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// gate lets one caller in after another. Only slow calls pass one, on a cold loop or a caller's goroutine; a data lane
// never does. A one-place channel serves as the lock, since a caller that waits in it is visibly blocked for
// testing/synctest.
type gate chan struct{}

func newGate() gate { return make(gate, 1) }

func (g gate) enter() { g <- struct{}{} }
func (g gate) leave() { <-g }

// stage is how far a native object is from its end.
type stage uint32

const (
	open     stage = iota
	ending         // true exactly while the native call that ends it runs
	gone           // the native call succeeded
	retained       // the native call failed and is never made again, or the proof that must come before it is missing
)

var stageNames = [...]string{"open", "ending", "gone", "retained"}

func (s stage) String() string { return stageNames[s] }

// life is the end of one native object: at most one native call, whatever is asked how often.
type life struct {
	now    atomic.Uint32
	reason error // set before now becomes retained
	entry  *bookEntry
}

func (l *life) stage() stage { return stage(l.now.Load()) }

// mustNotBeOver stops a caller that goes on using what it ended. What is retained is refused with its reason.
func (l *life) mustNotBeOver(object fmt.Stringer, verb string) error {
	switch s := l.stage(); s {
	case open:
		return nil
	case retained:
		return l.reason
	default:
		panic(fmt.Sprintf("cuda: %s of %v which is %s, want open", verb, object, s))
	}
}

// part is a native object with what its end needs.
type part struct {
	kind   Kind
	name   string        // for reports
	call   string        // the C name of its end
	live   *atomic.Int64 // the gauge that counts it until it is proven gone
	bytes  *atomic.Int64 // and its bytes; nil: none
	length int64
	native func() error
}

// end makes the native call that ends the object, once. A call whose effect is Done has ended it; its error is the
// context's matter.
func (l *life) end(c *Context, p part) error {
	if !l.now.CompareAndSwap(uint32(open), uint32(ending)) {
		panic(fmt.Sprintf("cuda: %s of %s which is %s, want open: two loops end it", p.call, p.name, l.stage()))
	}
	if err := c.settle(p.native()); err != nil {
		refusal := &RetainedError{Object: p.name, Call: p.call, Err: err}
		l.keep(c.platform, p.kind, p.name, refusal)
		return refusal
	}
	p.live.Add(-1) // proof: the native call succeeded, the object is no more
	if p.bytes != nil {
		p.bytes.Add(-p.length)
	}
	l.now.Store(uint32(gone))
	return nil
}

// retain keeps the object for good and lists it, once; the first reason stays.
func (l *life) retain(p *Platform, kind Kind, object string, reason error) {
	if !l.now.CompareAndSwap(uint32(open), uint32(ending)) {
		return
	}
	l.keep(p, kind, object, reason)
}

func (l *life) keep(p *Platform, kind Kind, object string, reason error) {
	l.reason = reason
	l.entry = p.book.add(kind, object, reason)
	l.now.Store(uint32(retained))
}

// reopen takes an object back that was retained for lack of a proof, which has come; its end was never asked for.
func (l *life) reopen(p *Platform) {
	if l.now.CompareAndSwap(uint32(retained), uint32(open)) {
		p.book.strike(l.entry)
	}
}

// doubts counts what is not proven to have ended of copies that touch memory. Memory that is retained for nothing else is
// taken back with the last proof.
type doubts struct {
	unproven atomic.Int32
	bound    atomic.Bool // true exactly when it is retained for another reason, too, of which nobody brings a proof
	orphaned atomic.Bool // true exactly when its last holder has gone, was told that it is retained, and nobody ends it yet
}

// proof takes one; the last one takes the memory back, unless something else keeps it. True: its last holder has gone meanwhile,
// and the end falls to whoever brought the proof.
func (d *doubts) proof(l *life, p *Platform) (orphan bool) {
	if d.unproven.Add(-1) != 0 || d.bound.Load() {
		return false
	}
	l.reopen(p)
	return d.orphaned.CompareAndSwap(true, false)
}

// orphan notes that the last holder has gone, and leaves the end to who brings the last proof. False: it has come meanwhile, and
// the end is the holder's.
func (d *doubts) orphan(l *life) bool {
	d.orphaned.Store(true)
	return l.stage() == retained || !d.orphaned.CompareAndSwap(true, false)
}

// effectOf says what a failed call may have done; an error of another kind tells nothing.
func effectOf(err error) Effect {
	var call *CallError
	if errors.As(err, &call) {
		return call.Effect
	}
	return Maybe
}

// Kind says what a retained object is.
type Kind uint8

const (
	KindContext    Kind = iota + 1 // a reference to a device's primary context
	KindAllocation                 // device memory of ours
	KindAdopted                    // somebody's device memory
	KindPinned                     // page-locked host memory of ours
	KindStream                     // a stream
	KindEvent                      // an event
)

var kindNames = [...]string{"nothing", "primary context", "allocation", "adopted memory", "pinned memory", "stream", "event"}

func (k Kind) String() string { return kindNames[k] }

// Retained is one object that stays because the proof of its end is missing (SPEC G-9, C-3).
type Retained struct {
	Kind   Kind
	Object string
	Reason error
}

// book lists what a platform had to retain. Entries are added, and struck out when a proof comes after all, from any loop.
type book struct {
	newest atomic.Pointer[bookEntry]
	count  atomic.Int64
}

type bookEntry struct {
	Retained
	older  *bookEntry
	struck atomic.Bool // true exactly when the missing proof has come
}

func (b *book) add(kind Kind, object string, reason error) *bookEntry {
	entry := &bookEntry{Retained: Retained{kind, object, reason}}
	for {
		entry.older = b.newest.Load()
		if b.newest.CompareAndSwap(entry.older, entry) {
			b.count.Add(1)
			return entry
		}
	}
}

// strike takes an entry out of the list.
func (b *book) strike(e *bookEntry) {
	if e.struck.CompareAndSwap(false, true) {
		b.count.Add(-1)
	}
}

// list returns the entries, the oldest first.
func (b *book) list() []Retained {
	var all []Retained
	for e := b.newest.Load(); e != nil; e = e.older {
		if !e.struck.Load() {
			all = append(all, e.Retained)
		}
	}
	for i, j := 0, len(all)-1; i < j; i, j = i+1, j-1 {
		all[i], all[j] = all[j], all[i]
	}
	return all
}
