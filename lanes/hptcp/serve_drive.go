package hptcp

import (
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
)

// served is one request at the source.
type served struct {
	tag          netproto.HPTCPTag
	write        bool
	atomic       bool
	entered      bool // true exactly when it is counted by the gate
	over         bool // true exactly when an END answers it
	end          netproto.HPTCPFrame
	length       uint64
	moved        uint64 // payload bytes in boxes (READ), in place (WRITE)
	at           cursor
	copied       uint64                 // Atomic: bytes between staging and ranges
	registration *segments.Registration // borrowed, or nil
	runs         []netproto.HPTCPRun    // inside the region
	ranges       []segments.Range       // of the set; its memory is kept for reuse
	set          segments.Set
	lease        segments.Lease
	staging      lanes.Buffer // of an Atomic WRITE, and of one whose ranges overlap and have checksums
	next         *served
}

// requested takes a READ or WRITE with its runs. What the requester may not have is answered with its status; what
// no requester may send ends the stream.
func (x *session) requested(b []byte) int {
	if len(b) < netproto.HPTCPRequestSize {
		return x.short(b)
	}
	r, err := netproto.DecodeHPTCPRequest(b)
	size := netproto.HPTCPRequestSize + int(r.RunsSize)
	switch {
	case err != nil:
		x.violate(err)
		return 0
	case len(b) < size:
		return x.short(b)
	case x.discard > 0 || x.current != nil:
		x.violate(errOrder)
		return 0
	case x.unfilled >= int(x.terms.Slots), x.inFlight > 0 && x.inFlight+r.Length > x.terms.InFlight:
		x.violate(errCredit)
		return 0
	}
	y := x.service.take()
	y.tag, y.write, y.atomic, y.length = r.Tag, r.Kind == netproto.HPTCPWrite, r.Flags&netproto.HPTCPAtomic != 0, r.Length
	x.request, x.inFlight = r, x.inFlight+r.Length
	if status := x.check(y, b[netproto.HPTCPRequestSize:size]); status != netproto.StatusSuccess {
		x.refuse(y, status)
		return size
	}
	x.pending, x.backoff = y, lanes.Backoff{}
	x.work()
	x.proceed()
	return size
}

// check is what operations 1 and 2 check (SPEC H-6, T-11): admission, size, region, permission, range. The epoch was
// checked by the hello, and a source has one.
func (x *session) check(y *served, runs []byte) netproto.Status {
	lane, r := x.service.lane, &x.request
	if !x.service.config.Gate.Enter() {
		return netproto.StatusSourceClosed
	}
	y.entered = true
	if r.Length > lane.Policy.PayloadBytesMax {
		return netproto.StatusExhausted
	}
	low, high := r.Offset, r.Offset+r.Length
	if r.Unit > 0 {
		var err error
		if y.runs, err = netproto.DecodeHPTCPRuns(y.runs[:0], *r, runs); err != nil {
			return netproto.StatusOf(err)
		}
		low, high = ^uint64(0), 0
		count := uint64(0) // each run has 2^32 + 1 ranges at most
		for i := range y.runs {
			low, high = min(low, y.runs[i].Start), max(high, y.runs[i].End())
			count += y.runs[i].Count
		}
		if count > spansMax { // each costs this side up to 72 bytes, and a buffer of a chunk
			return netproto.StatusExhausted
		}
	} else {
		y.runs = append(y.runs[:0], netproto.HPTCPRun{Start: r.Offset, Length: r.Length, Count: 1})
	}
	want := netproto.RemoteRead
	if y.write {
		want = netproto.RemoteWrite
	}
	registration, err := lane.Tracker.Admit(r.Region, low, high-low, want)
	if err != nil {
		return netproto.StatusOf(err)
	}
	y.registration = registration
	if registration.Region().Flags&netproto.RegionHPTCP == 0 {
		return netproto.StatusBackendUnavailable
	}
	if status := y.mark(); status != netproto.StatusSuccess {
		return status
	}
	// Bytes that one chunk changes twice cannot be checked in their place.
	doubled := y.write && y.many() && y.set.Bytes() < y.length && x.terms.Flags&netproto.HPTCPChecksums != 0
	if y.atomic || doubled {
		if y.staging, err = lane.Arena.Get(r.Length); err != nil {
			return netproto.StatusExhausted
		}
	}
	return netproto.StatusSuccess
}

// many is true exactly when the request has more than one range, and hence a set.
func (y *served) many() bool { return len(y.runs) > 1 || len(y.runs) == 1 && y.runs[0].Count > 1 }

// mark makes the set of a request with more than one range. Of rows that touch or overlap the set has one range.
func (y *served) mark() netproto.Status {
	if !y.many() {
		return netproto.StatusSuccess
	}
	y.ranges = y.ranges[:0]
	for i := range y.runs {
		run := &y.runs[i]
		if run.Count > 1 && run.Stride <= run.Length {
			y.ranges = append(y.ranges, segments.Range{Start: run.Start, Length: run.End() - run.Start})
			continue
		}
		for k := range run.Count {
			y.ranges = append(y.ranges, segments.Range{Start: run.Start + k*run.Stride, Length: run.Length})
		}
	}
	if y.set.Fill(y.registration, y.ranges) != nil {
		return netproto.StatusInvalidRange
	}
	return netproto.StatusSuccess
}

// refuse answers a request with a status; the payload of a WRITE is thrown away.
func (x *session) refuse(y *served, status netproto.Status) {
	x.service.lane.Counts.Refused(status, false)
	if y.write {
		x.discard = y.length
	}
	x.conclude(y, netproto.HPTCPFrame{Kind: netproto.HPTCPEnd, Status: status})
}

// conclude queues the END of a request.
func (x *session) conclude(y *served, f netproto.HPTCPFrame) {
	f.Tag = y.tag
	y.end, y.over = f, true
	x.giveBack(y) // before the requester hears of it
	x.enqueue(y)
}

func (x *session) enqueue(y *served) {
	first := x.head == nil
	if y.next = nil; first {
		x.head = y
	} else {
		x.tail.next = y
	}
	x.tail = y
	if x.filled == nil {
		x.filled = y
	}
	x.queued++
	x.unfilled++
	if first {
		x.restart()
		return
	}
	x.work()
}

// proceed leases the ranges of the request that waits for that, and copies a complete Atomic WRITE into them; or it
// goes on later. Meanwhile no further frame of this stream is taken, and others go on. The source's deadline bounds
// the waiting.
func (x *session) proceed() {
	y, lane := x.pending, x.service.lane
	if !y.lease.Held() && !y.take() {
		lane.Counts.ConflictRetries.Add(1)
		x.later(x.backoff.Next(lane.Now(), reactor.Forever))
		return
	}
	committing := y.staging.Held() && y.moved == y.length
	if committing && !y.put() {
		x.later(lane.Now().After(1))
		return
	}
	x.pending = nil
	switch {
	case committing || y.length == 0:
		x.done(y)
		x.conclude(y, netproto.HPTCPFrame{Kind: netproto.HPTCPEnd})
	case !y.write:
		x.enqueue(y)
	default:
		x.current = y
		x.work()
	}
	if x.stream.paused {
		x.stream.resume()
	}
}

// later goes on with the request that waits at some instant.
func (x *session) later(at reactor.Instant) {
	x.stream.pause()
	x.stream.flush()
	x.service.lane.Arm(&x.retry, at, x)
}

// put copies a slice of a complete payload into its ranges; true when all of it is there.
func (y *served) put() bool {
	payload := y.staging.Bytes(y.length)
	end := min(y.length, y.copied+lanes.SliceBytes)
	for y.copied < end {
		run := &y.runs[y.at.index]
		which, inner := y.at.inner/run.Length, y.at.inner%run.Length
		from := run.Start + which*run.Stride + inner + y.registration.Offset() - y.lease.Range().Start
		size := min(end-y.copied, run.Length-inner)
		lanes.Copy(y.lease.Bytes()[from:from+size], payload[y.copied:])
		y.copied += size
		if y.at.inner += size; y.at.inner == run.Bytes() {
			y.at = cursor{y.at.index + 1, 0}
		}
	}
	return y.copied == y.length
}

// complete: all of the WRITE's payload is there.
func (x *session) complete() {
	y := x.current
	x.current = nil
	if y.staging.Held() {
		x.pending, x.backoff = y, lanes.Backoff{}
		x.work()
		x.proceed()
		return
	}
	x.done(y)
	x.conclude(y, netproto.HPTCPFrame{Kind: netproto.HPTCPEnd})
}

// take leases all ranges of the request; false while another access conflicts. An Atomic WRITE leases them when its
// payload is there.
func (y *served) take() bool {
	if y.staging.Held() && y.moved < y.length {
		return true
	}
	access := segments.Shared
	if y.write {
		access = segments.Exclusive
	}
	var err error
	if !y.many() {
		y.lease, err = y.registration.Lease(y.runs[0].Start, y.runs[0].Length, access)
	} else {
		y.lease, err = y.set.Lease(access)
	}
	return err == nil
}

// gather appends the memory of the next n bytes of the request's ranges from c on, and moves c: its index counts
// runs, and inner the bytes of the run.
func (y *served) gather(list [][]byte, c *cursor, n uint64) [][]byte {
	memory, base := y.lease.Bytes(), y.lease.Range().Start-y.registration.Offset()
	for n > 0 {
		run := &y.runs[c.index]
		from, inner := run.Start-base, c.inner
		if inner >= run.Length { // divisions cost as much as the rest
			from, inner = from+inner/run.Length*run.Stride, inner%run.Length
		}
		from, size := from+inner, min(n, run.Length-inner)
		list = append(list, memory[from:from+size:from+size])
		n -= size
		if c.inner += size; c.inner == run.Bytes() {
			*c = cursor{c.index + 1, 0}
		}
	}
	return list
}

// done counts a request that went well.
func (x *session) done(y *served) {
	counts := &x.service.lane.Counts
	if y.write {
		counts.WritesServed.Add(1)
		counts.BytesStored.Add(y.length)
	} else {
		counts.ReadsServed.Add(1)
		counts.BytesServed.Add(y.length)
	}
}

// giveBack ends what a request holds of the memory. Proof: no box and no receive has buffers in it.
func (x *session) giveBack(y *served) {
	if y.lease.Held() {
		y.lease.Return()
	}
	if y.staging.Held() {
		x.service.lane.Arena.Put(&y.staging)
	}
	if y.registration != nil {
		y.registration.Return()
		y.registration = nil
	}
}

// release forgets a request that has ended.
func (x *session) release(y *served) {
	x.giveBack(y)
	if y.entered {
		x.service.config.Gate.Leave()
	}
	runs, ranges, set := y.runs, y.ranges, y.set
	*y = served{runs: runs, ranges: ranges, set: set}
	x.service.free = append(x.service.free, y)
}
