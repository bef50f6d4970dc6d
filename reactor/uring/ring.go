package uring

import (
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Ring is one io_uring: a queue of submission entries that we fill and a queue of completion events that
// the system fills. One thread at a time; the one that enabled it when made for a single issuer. Its
// vocabulary is liburing's.
//
// The ring's descriptor is not registered with the thread (IORING_REGISTER_RING_FDS): that saves 30 ns of a
// call, but the place, one of 16 per thread, can only be given back by the thread itself, which may be gone
// when the ring is closed.
type Ring struct {
	descriptor              int
	witnessed               int    // a pipe's end that reports the ring's end, 0 if there is none; see witness
	flags                   uint32 // IORING_SETUP_* that the system accepted
	rings, entries, private []byte
	sqHead, sqTail          *uint32
	sqFlags                 *uint32
	cqHead, cqTail          *uint32
	sqMask, cqMask          uint32
	sqes                    []SubmissionEntry
	cqes                    []CompletionEvent
	argument                *waitArgument
	prepared                uint32 // tail of the entries that GetSQE gave out
	crossings, waits        uint64
}

// flagSets are tried in turn until the system knows all flags of one; see the versions in doc.go.
func flagSets(anyThread bool) []uint32 {
	const common = setupCQSize | setupClamp | setupDisabled
	if anyThread {
		// No COOP_TASKRUN: the thread that submitted may be asleep somewhere else when its work is due.
		return []uint32{common | setupSubmitAll | setupNoSQArray, common | setupSubmitAll, common}
	}
	const single = common | setupSubmitAll | setupSingleIssuer | setupTaskrunFlag
	return []uint32{
		single | setupDeferTaskrun | setupNoSQArray,
		single | setupDeferTaskrun,
		single | setupCoopTaskrun,
		common | setupSubmitAll | setupCoopTaskrun | setupTaskrunFlag,
		common | setupSubmitAll,
		common,
	}
}

// openRing makes a disabled ring; Close ends it. The error is an *Unavailable.
func openRing(entries, completions uint32, sets []uint32) (*Ring, error) {
	var p parameters
	fd, e := -1, syscall.Errno(unix.EINVAL)
	for _, flags := range sets {
		p = parameters{flags: flags, cqEntries: completions}
		if fd, e = setup(entries, &p); e != unix.EINVAL {
			break
		}
	}
	if e != 0 {
		return nil, explain(e)
	}
	r := &Ring{descriptor: fd, flags: p.flags}
	if missing := featuresNeeded &^ p.features; missing != 0 {
		r.Close()
		return nil, &Unavailable{Reason: OldKernel, Errno: unix.EINVAL, Value: int64(missing)}
	}
	if err := r.mapRings(&p); err != nil {
		r.Close()
		errno, _ := err.(syscall.Errno)
		return nil, explain(errno)
	}
	return r, nil
}

// witness gives the ring something by whose end its own is known. What a ring has registered the system lets go when it
// frees the ring, behind everything that was in it (io_ring_ctx_free); for the end of a pipe that nobody else has, that is
// the other end's hang-up. It is called before the ring is enabled.
func (r *Ring) witness() error {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return explain(err.(syscall.Errno))
	}
	e := r.registerFile(int32(ends[1]))
	_ = unix.Close(ends[1])
	if e != 0 {
		_ = unix.Close(ends[0])
		return explain(e)
	}
	r.witnessed = ends[0]
	return nil
}

// Abandon is Close for a ring that may still have buffers: it says so by Gone.
func (r *Ring) Abandon() {
	witnessed := r.witnessed
	r.witnessed = 0
	r.Close()
	r.witnessed = witnessed
}

// Gone is true exactly when the system has let go of an abandoned ring, and touches no buffer on its behalf any more.
func (r *Ring) Gone() bool {
	poll := [...]unix.PollFd{{Fd: int32(r.witnessed)}}
	n, _ := unix.Ppoll(poll[:], &unix.Timespec{}, nil) // after an error the caller asks again
	return n == 1 && poll[0].Revents&unix.POLLHUP != 0
}

// Close unmaps and closes the ring. The system cancels what is still in it, at some later time: the owner
// makes sure that there is nothing that has buffers, or Abandons it. The second call does nothing but forget the witness.
func (r *Ring) Close() {
	for _, memory := range [...][]byte{r.rings, r.entries, r.private} {
		if memory != nil {
			_ = unix.Munmap(memory)
		}
	}
	if r.descriptor >= 0 {
		_ = unix.Close(r.descriptor)
	}
	if r.witnessed != 0 {
		_ = unix.Close(r.witnessed)
	}
	*r = Ring{descriptor: -1, crossings: r.crossings, waits: r.waits}
}

// GetSQE returns the next submission entry, zeroed, or nil when the queue is full.
func (r *Ring) GetSQE() *SubmissionEntry {
	if r.SQSpaceLeft() == 0 {
		return nil
	}
	entry := &r.sqes[r.prepared&r.sqMask]
	*entry = SubmissionEntry{}
	r.prepared++
	return entry
}

// SQReady is the number of entries that the system has not taken yet.
func (r *Ring) SQReady() uint32 { return r.prepared - atomic.LoadUint32(r.sqHead) }

// SQSpaceLeft is how many entries GetSQE can still give out.
func (r *Ring) SQSpaceLeft() uint32 { return uint32(len(r.sqes)) - r.SQReady() }

// NeedsEnter says that the system has work for us that only an enter performs: finished operations whose
// completions wait for this thread, or completions that found the queue full.
func (r *Ring) NeedsEnter() bool { return atomic.LoadUint32(r.sqFlags)&(sqTaskrun|sqCQOverflow) != 0 }

// CQOverflowed says that completions found the queue full; the next enter brings them.
func (r *Ring) CQOverflowed() bool { return atomic.LoadUint32(r.sqFlags)&sqCQOverflow != 0 }

// Submit hands all prepared entries over, performs due work, and does not wait.
func (r *Ring) Submit() syscall.Errno {
	r.crossings++
	atomic.StoreUint32(r.sqTail, r.prepared)
	_, e := r.enter(r.SQReady())
	return e
}

// SubmitAndWait is Submit that waits until there is a completion, at most d (negative: for ever). ETIME, EINTR
// and "not all taken" are no errors: the caller looks at the queues in any case.
func (r *Ring) SubmitAndWait(d time.Duration) syscall.Errno {
	r.crossings++
	r.waits++
	atomic.StoreUint32(r.sqTail, r.prepared)
	_, e := r.enterAndWait(r.SQReady(), d)
	return e
}

// PeekBatchCQE copies the oldest completion events and takes them out.
func (r *Ring) PeekBatchCQE(out []CompletionEvent) int {
	head := *r.cqHead // only we write it
	n := min(int(atomic.LoadUint32(r.cqTail)-head), len(out))
	for i := range n {
		out[i] = r.cqes[(head+uint32(i))&r.cqMask]
	}
	if n > 0 {
		atomic.StoreUint32(r.cqHead, head+uint32(n))
	}
	return n
}

// PrepareRecv asks for bytes of a socket into one buffer.
func (s *SubmissionEntry) PrepareRecv(fd int32, b []byte, flags uint32) {
	s.Opcode, s.FD, s.Address, s.Length, s.OpFlags = opRecv, fd, addressOf(b), uint32(len(b)), flags
}

// PrepareRecvMsg asks for bytes of a socket into the buffers of a block.
func (s *SubmissionEntry) PrepareRecvMsg(fd int32, b *block, flags uint32) {
	s.Opcode, s.FD, s.Address, s.Length, s.OpFlags = opRecvMsg, fd, b.address(), 1, flags
}

// PrepareSend sends one buffer.
func (s *SubmissionEntry) PrepareSend(fd int32, b []byte, flags uint32) {
	s.Opcode, s.FD, s.Address, s.Length, s.OpFlags = opSend, fd, addressOf(b), uint32(len(b)), flags
}

// PrepareSendMsg sends the buffers of a block.
func (s *SubmissionEntry) PrepareSendMsg(fd int32, b *block, flags uint32) {
	s.Opcode, s.FD, s.Address, s.Length, s.OpFlags = opSendMsg, fd, b.address(), 1, flags
}

// PreparePollAdd waits once for events (poll(2)).
func (s *SubmissionEntry) PreparePollAdd(fd int32, events uint32) {
	s.Opcode, s.FD, s.OpFlags = opPollAdd, fd, pollMask(events)
}

// PreparePollMultishot reports events again and again, each time they come anew.
func (s *SubmissionEntry) PreparePollMultishot(fd int32, events uint32) {
	s.PreparePollAdd(fd, events)
	s.Length = pollAddMulti
}

// PrepareCancel64 ends the entry with that user data.
func (s *SubmissionEntry) PrepareCancel64(userData uint64) {
	s.Opcode, s.FD, s.Address = opAsyncCancel, -1, userData
}

// pollMask is the identity on little-endian machines, the only ones this package is built for; the system
// swaps the halves on others.
func pollMask(events uint32) uint32 { return events }
