package verbs

import (
	"fmt"
	"sync/atomic"
)

// stage is how far an object is from its end.
type stage uint32

const (
	open     stage = iota
	ending         // true exactly while the native call that ends it runs
	gone           // the native call succeeded
	retained       // the native call failed; it is never made again
)

var stageNames = [...]string{"open", "ending", "gone", "retained"}

func (s stage) String() string { return stageNames[s] }

// family counts what hangs below a parent. Children come and go on other loops than the parent's.
type family struct {
	live atomic.Int64 // made and not proven gone; retained ones included
	kept atomic.Int64 // retained ones
}

// allKept is true exactly when every child there is is retained.
func (f *family) allKept() bool { return f.live.Load() == f.kept.Load() }

// life is the end of one native object: at most one native call, whatever is asked how often.
type life struct {
	now    atomic.Uint32
	reason error // set before now becomes retained
	noted  bool  // true exactly when an end that waits for retained children only is in the book
}

// wait refuses an end that has to wait for children. When all of them are retained it will wait for good, and the
// book says so, once.
func (l *life) wait(book *book, refusal *BusyError, parents ...*family) error {
	if refusal.Kept && !l.noted {
		l.noted = true
		for _, p := range parents {
			p.kept.Add(1)
		}
		book.add(refusal.Object, refusal)
	}
	return refusal
}

func (l *life) stage() stage { return stage(l.now.Load()) }

// ended tells a caller that came again how the first one ended; done is false while the object is open.
func (l *life) ended() (done bool, err error) {
	switch l.stage() {
	case gone:
		return true, nil
	case retained:
		return true, l.reason
	}
	return false, nil
}

// mustBeOpen stops a caller that goes on using what it ended.
func (l *life) mustBeOpen(object, verb string) {
	if s := l.stage(); s != open {
		panic(fmt.Sprintf("verbs: %s of %s which is %s, want open", verb, object, s))
	}
}

// end makes the native call that ends the object, once. Parents are the families that count it.
func (l *life) end(book *book, object, call string, native func() error, parents ...*family) error {
	if !l.now.CompareAndSwap(uint32(open), uint32(ending)) {
		panic(fmt.Sprintf("verbs: %s of %s which is %s, want open: two loops end it", call, object, l.stage()))
	}
	if err := native(); err != nil {
		return l.retain(book, object, call, err, parents...)
	}
	for _, p := range parents {
		p.live.Add(-1) // proof: the native call succeeded, the object is no more
	}
	l.now.Store(uint32(gone))
	return nil
}

// retain keeps the object for good.
func (l *life) retain(book *book, object, call string, err error, parents ...*family) error {
	l.reason = &RetainedError{Object: object, Call: call, Err: err}
	l.now.Store(uint32(retained))
	for _, p := range parents {
		p.kept.Add(1)
	}
	book.add(object, l.reason)
	return l.reason
}

// Retained is one object that stays because the proof of its end is missing.
type Retained struct {
	Object string
	Reason error
}

// book lists what a context had to retain. Entries are only added, from any loop.
type book struct {
	newest atomic.Pointer[bookEntry]
	count  atomic.Int64
}

type bookEntry struct {
	Retained
	older *bookEntry
}

func (b *book) add(object string, reason error) {
	entry := &bookEntry{Retained: Retained{object, reason}}
	for {
		entry.older = b.newest.Load()
		if b.newest.CompareAndSwap(entry.older, entry) {
			b.count.Add(1)
			return
		}
	}
}

// list returns the entries, the oldest first.
func (b *book) list() []Retained {
	var all []Retained
	for e := b.newest.Load(); e != nil; e = e.older {
		all = append(all, e.Retained)
	}
	for i, j := 0, len(all)-1; i < j; i, j = i+1, j-1 {
		all[i], all[j] = all[j], all[i]
	}
	return all
}
