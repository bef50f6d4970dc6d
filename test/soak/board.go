package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/orbitte/orbitte"
)

// What each source publishes, told apart by permission and length: a board that may be read, slots that may be read
// and written, each by one worker of the whole run, and a range that may only be written; beside them, short-lived
// ranges that may be read, whose first bytes say what they hold (churn).
const (
	boardBytes = 2<<20 + 4099
	sinkBytes  = 64 << 10
	churnMax   = 256 << 10 // less than the board, so that the two are told apart
)

// slotBytes of each worker: more than one slice of a commit, and less.
var slotBytes = [workersMax]uint64{1<<20 + 13, 64 << 10, 4097, 100}

// slotOf is where the slot of a worker begins in the range of slots.
func slotOf(peer, slot, worker int) (offset uint64) {
	var one uint64
	for i, n := range slotBytes {
		if i < worker {
			offset += n
		}
		one += n
	}
	return offset + uint64(peer*engineMax+slot)*one
}

var slotsBytes = slotOf(peersMax, 0, 0)

// boardTag and poisonTag tell rows of one life apart.
const (
	boardTag = iota + 1
	poisonTag
)

type board struct {
	memory        *orbitte.Memory
	registrations []*orbitte.Registration
}

// publish makes the ranges that stay as long as the engine.
func (l *life) publish() {
	m, err := orbitte.Allocate(boardBytes + int(slotsBytes) + sinkBytes)
	if err != nil {
		l.fail("the board: %v", err)
	}
	image := make([]byte, boardBytes)
	epochKey(l.engine.Epoch(), boardTag).fill(image, 0)
	copy(m.Bytes(), image)
	r, err := l.engine.RegisterBatch([]orbitte.Range{
		{Memory: m, Offset: 0, Length: boardBytes, Permission: orbitte.RemoteRead},
		{Memory: m, Offset: boardBytes, Length: slotsBytes, Permission: orbitte.ReadWrite},
		{Memory: m, Offset: boardBytes + slotsBytes, Length: sinkBytes, Permission: orbitte.RemoteWrite},
		{Memory: m, Offset: 0, Length: 64, Permission: orbitte.LocalOnly}, // never seen by anybody
	})
	if err != nil {
		l.fail("the board: %v", err)
	}
	l.board = &board{m, r}
}

// close looks whether anybody has written what nobody may, and gives everything back.
func (b *board) close(l *life) {
	if b == nil {
		return
	}
	for _, r := range b.registrations {
		l.mustClose("Unregister", func(ctx context.Context) error { return l.engine.Unregister(ctx, r) })
	}
	image := make([]byte, boardBytes)
	copy(image, b.memory.Bytes())
	if at := epochKey(l.engine.Epoch(), boardTag).differs(image, 0); at >= 0 {
		l.fail("byte %d of the board has changed; nobody may write there", at)
	}
	if err := b.memory.Close(); err != nil {
		l.fail("the board: %v", err)
	}
}

// A short is a short-lived range.
type short struct {
	memory  *orbitte.Memory
	handles []*orbitte.Registration
	image   []byte
	idle    bool // true exactly while it is not registered: nothing may change it
}

// churn registers and unregisters ranges until the engine is left.
func (l *life) churn(dice *rand.Rand) {
	var shorts []*short
	generation := uint64(0)
	for !l.stopped() {
		time.Sleep(time.Duration(logUniform(dice, 1, 100)) * time.Millisecond)
		switch n := dice.IntN(8); {
		case len(shorts) < 4 || n < 2 && len(shorts) < 10:
			generation++
			if s := l.newShort(dice, generation); s != nil {
				shorts = append(shorts, s)
			}
		case n < 6: // the same memory, another content, another ID
			s := shorts[dice.IntN(len(shorts))]
			l.retire(s)
			time.Sleep(time.Duration(dice.IntN(20)) * time.Millisecond)
			l.intact(s)
			generation++
			l.show(dice, s, generation)
		default:
			i := dice.IntN(len(shorts))
			l.drop(shorts[i])
			shorts = append(shorts[:i], shorts[i+1:]...)
		}
	}
	for _, s := range shorts {
		l.drop(s)
	}
}

func (l *life) newShort(dice *rand.Rand, generation uint64) *short {
	length := int(logUniform(dice, headerBytes, churnMax-1))
	s := &short{image: make([]byte, length), idle: true}
	var err error
	if dice.IntN(2) == 0 {
		s.memory, err = orbitte.Adopt(make([]byte, length)) // the race detector watches the Go heap only
	} else {
		s.memory, err = orbitte.Allocate(length)
	}
	if err != nil {
		l.fail("memory: %v", err)
	}
	l.show(dice, s, generation)
	return s
}

// show gives a range a new content and publishes it, perhaps more than once.
func (l *life) show(dice *rand.Rand, s *short, generation uint64) {
	stamp{hashOf(l.name()), generation, uint64(len(s.image))}.write(s.image)
	copy(s.memory.Bytes(), s.image)
	for range 1 + dice.IntN(3)/2 {
		r, err := l.engine.Register(s.memory, 0, uint64(len(s.image)), orbitte.RemoteRead)
		if err != nil {
			l.tolerate("Register", err, orbitte.ErrExhausted)
			return
		}
		s.handles, s.idle = append(s.handles, r), false
	}
}

// retire unregisters a range. What is written there afterwards, no peer may see as a success.
func (l *life) retire(s *short) {
	for _, r := range s.handles {
		l.mustClose("Unregister", func(ctx context.Context) error { return l.engine.Unregister(ctx, r) })
	}
	s.handles, s.idle = nil, true
	now := make([]byte, len(s.image))
	copy(now, s.memory.Bytes())
	if at := differ(now, s.image); at >= 0 {
		l.fail("byte %d of a range of %d bytes that may only be read has changed", at, len(now))
	}
	epochKey(l.engine.Epoch(), poisonTag).fill(s.image, 0)
	copy(s.memory.Bytes(), s.image)
}

// intact looks whether a range has been touched since Unregister said that it will not be.
func (l *life) intact(s *short) {
	now := make([]byte, len(s.image))
	copy(now, s.memory.Bytes())
	if at := differ(now, s.image); at >= 0 {
		l.fail("byte %d of an unregistered range of %d bytes has changed", at, len(now))
	}
}

func (l *life) drop(s *short) {
	l.retire(s)
	l.intact(s)
	if err := s.memory.Close(); err != nil {
		l.fail("memory: %v", err)
	}
}

// differ is the first place where two images differ; -1 when they do not.
func differ(a, b []byte) int {
	const piece = 4096
	for at := 0; at < len(a); at += piece {
		end := min(at+piece, len(a))
		if string(a[at:end]) == string(b[at:end]) {
			continue
		}
		for ; a[at] == b[at]; at++ {
		}
		return at
	}
	return -1
}

// tolerate accepts an error of the given classes, or ErrClosed while the engine is being left; it counts it.
func (l *life) tolerate(what string, err error, classes ...error) {
	l.p.count.refused.Add(1)
	if errors.Is(err, orbitte.ErrClosed) && l.leaving.Load() {
		return
	}
	for _, class := range classes {
		if errors.Is(err, class) {
			return
		}
	}
	l.fail("%s: %v", what, err)
}
