package orbitte

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// closing is how far Close has come; guarded by Engine.mu. Each step is done once; a later call goes on
// where an earlier one was stopped by its context.
type closing struct {
	began   bool
	streams <-chan struct{} // closed when listener, sessions and channels have ended
	stopped bool            // true exactly when the loops were told to stop
	notes   sync.Once       // ends the log
	asking  chan struct{}   // closed when the asking for late proofs has ended that is under way; nil: none is
}

// CloseSource refuses every further frame for good and waits for those being served (SPEC G-6). Idle
// streams stay, and answer "source closed". Errors: ErrUnquiesced when the context ends first; call it
// again to go on waiting.
func (e *Engine) CloseSource(ctx context.Context) error {
	e.fenceSource()
	return e.quiet(ctx, "CloseSource", e.admission.Gate.Quiet(), func() string {
		return fmt.Sprintf("%d frames are being served", e.admission.Gate.Inside())
	})
}

// fenceSource refuses every further frame, and takes back what peers have pinned here.
func (e *Engine) fenceSource() {
	e.admission.Fence()
	for _, r := range e.runners {
		if r.pins != nil {
			r.pins.Fence()
		}
	}
}

// CloseRequester refuses every further submission, open and notification for good and waits for those in
// flight, detached batches included (SPEC G-6). Errors as CloseSource; ErrUnquiesced also, at once, while submissions are
// retained that have ended without proof that their memory is quiet (SPEC G-9).
func (e *Engine) CloseRequester(ctx context.Context) error {
	e.requester.Fence()
	if err := e.quietRequester(ctx); err != nil {
		return err
	}
	return e.unproven("CloseRequester")
}

func (e *Engine) quietRequester(ctx context.Context) error {
	return e.quiet(ctx, "CloseRequester", e.requester.Quiet(), func() string {
		return fmt.Sprintf("%d submissions, opens or notifications are in flight", e.requester.Inside())
	})
}

// unproven says that submissions are retained, for which nobody waits; nil: none is (SPEC G-9).
func (e *Engine) unproven(op string) error {
	n, reason := 0, ""
	e.retained.Range(func(key, _ any) bool {
		n++
		reason = key.(*group).unproven()
		return true
	})
	if n == 0 {
		return nil
	}
	return &Error{Op: op, Index: -1, Class: ErrUnquiesced, Cause: fmt.Errorf("%d submissions are retained, since nothing proves that their memory is not touched any more%s", n, reason)}
}

// quiet waits; waitsFor says for what, should the context end first.
func (e *Engine) quiet(ctx context.Context, op string, quiet <-chan struct{}, waitsFor func() string) error {
	if err := e.waitOn(ctx, quiet, nil); err != nil {
		return &Error{Op: op, Index: -1, Class: ErrUnquiesced, Cause: fmt.Errorf("%s: %w", waitsFor(), err)}
	}
	return nil
}

// Close fences source and requester, waits for the work of both, then ends streams, listener and lanes, in
// this order (SPEC G-6). Work in flight ends by its own deadline at the latest. Registrations, memory and
// batches stay the caller's: Unregister, Memory.Close and Batch.Free go on working. Any goroutine may call
// it, in manual mode too. Errors: ErrUnquiesced when the context ends first, with what is waited for and
// whether memory may still be touched; call it again to go on. A closed engine returns nil, and so does an idle
// one whose context has ended before: what is left then is the engine's own and takes no waiting for anybody's
// work. Close alone is no full drain (see Stats.Gauges): what is the caller's stays charged until it is given back.
// A registration that is never given back keeps its memory, on a GPU too, beyond Memory.Close.
//
// What is retained for lack of a proof (SPEC G-9) keeps no lane: the engine ends, and Close says ErrUnquiesced at once. Each
// further Close asks the CUDA driver once more, gives back what it proves, and returns nil when nothing is left. A driver that
// takes longer than ctx is left at it on a thread of its own: Close says ErrUnquiesced, and a later one takes the answer. Of
// RDMA devices nothing is asked again (SPEC R-18).
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	e.closing.began = true
	e.mu.Unlock()
	e.fenceSource()
	e.requester.Fence()
	if err := e.CloseSource(ctx); err != nil {
		return renamed(err, "Close")
	}
	if err := e.quietRequester(ctx); err != nil {
		return renamed(err, "Close")
	}
	ctx, cancel := withTurns(ctx)
	defer cancel()
	if err := e.closeRails(ctx); err != nil {
		return in(tearing, err)
	}
	if err := e.quiet(ctx, "Close", e.endStreams(), func() string { return "streams are being closed" }); err != nil {
		return in(tearing, err)
	}
	if err := e.closeTransport(ctx); err != nil {
		return in(tearing, err)
	}
	if err := e.closeStages(ctx); err != nil {
		return in(tearing, err)
	}
	if err := e.endLanes(ctx); err != nil {
		return err
	}
	if err := e.lateProofs(ctx); err != nil {
		return err
	}
	if err := e.rdma.ended(); err != nil {
		return err
	}
	if err := e.cuda.ended(); err != nil {
		return err
	}
	return e.unproven("Close")
}

// lateProofs has somebody ask for them, one at a time, and waits as long as ctx lasts. The driver may block, and the cold
// lanes have ended: so a thread does it that may outlive the call.
func (e *Engine) lateProofs(ctx context.Context) error {
	e.mu.Lock()
	done := e.closing.asking
	first := done == nil
	if first {
		done = make(chan struct{})
		e.closing.asking = done
	}
	e.mu.Unlock()
	if first {
		e.cuda.aside(func() {
			e.reclaim()
			e.mu.Lock()
			e.closing.asking = nil
			e.mu.Unlock()
			close(done)
		})
	}
	return ended(ctx, done, "the CUDA driver does not return from being asked once more whether copies have ended")
}

// reclaim asks the CUDA driver once more about what its copies left without a proof, when the lanes have ended. Submissions
// are given back once nothing else is left that could be what one of them keeps.
func (e *Engine) reclaim() {
	defer e.cuda.rejoin()()
	if !e.cuda.reclaim() || e.rdma.ended() != nil {
		return
	}
	for _, r := range e.runners {
		if r.lane.Counts.RetainedDescriptors.Load() > 0 {
			return
		}
	}
	e.retained.Range(func(key, _ any) bool {
		key.(*group).reclaim()
		return true
	})
	e.cuda.release()
}

// closeTurns is what an engine without work needs to end its streams, loops and log, many times over; each of
// them takes a turn of a lane and waits for nobody. It bounds a Close whose context has ended.
const closeTurns = 250 * time.Millisecond

// withTurns gives a context that has ended the time for the engine's own turns.
func withTurns(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Err() == nil {
		return ctx, func() {}
	}
	return context.WithTimeout(context.WithoutCancel(ctx), closeTurns)
}

func renamed(err error, op string) error {
	if own, ok := err.(*Error); ok {
		own.Op = op
	}
	return err
}

// endStreams closes the listener, every session and every channel; the answer is closed when all have
// ended.
func (e *Engine) endStreams() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing.streams != nil {
		return e.closing.streams
	}
	done := make(chan struct{})
	e.closing.streams = done
	ends := newCountdown(4*len(e.runners)+1, func() { close(done) })
	channels := map[*runner][]*peer{}
	for _, p := range slices.SortedFunc(maps.Values(e.peers), comparePeers) {
		channels[p.runner] = append(channels[p.runner], p)
	}
	for i, r := range e.runners {
		c := &call{done: make(chan struct{}), do: func() {
			if i == 0 {
				e.closeListeners(ends.one)
			}
			r.endStreams(channels[r], ends.one)
		}}
		if r.lane.Post(&c.letter, c) != nil { // the lane has ended, and with it what rode on it
			for range 4 {
				ends.one()
			}
			if i == 0 {
				ends.one()
			}
		}
	}
	return done
}

// closeListeners closes control and data listener; on the first lane.
func (e *Engine) closeListeners(closed func()) {
	left := newCountdown(2, closed)
	e.listener.Close(left.one)
	if e.hptcp == nil {
		left.one()
		return
	}
	e.hptcp.listener.Close(left.one)
}

// endStreams closes the lane's sessions, channels and data streams: four ends.
func (r *runner) endStreams(peers []*peer, one func()) {
	r.server.Close(one)
	left := newCountdown(len(peers), one)
	for _, p := range peers {
		p.endStreams(left.one)
	}
	r.pool.Close(one) // channels given back before may still be on their way
	if r.fast == nil {
		one()
		return
	}
	both := newCountdown(2, one)
	r.fastServer.Close(both.one)
	r.fast.Close(both.one)
}

// comparePeers gives peers an order that no map has, so that a lane's steps can be repeated (SPEC L-3).
func comparePeers(a, b *peer) int {
	return cmp.Or(strings.Compare(a.key.endpoint, b.key.endpoint), bytes.Compare(a.key.epoch[:], b.key.epoch[:]))
}

// countdown calls last once n ends have come; from any goroutine.
type countdown struct {
	left atomic.Int64
	last func()
}

func newCountdown(n int, last func()) *countdown {
	c := &countdown{last: last}
	c.left.Store(int64(n))
	if n == 0 {
		last()
	}
	return c
}

func (c *countdown) one() {
	if c.left.Add(-1) == 0 {
		c.last()
	}
}

// endLanes stops the loops and waits until they, and then the log's writer, have ended.
func (e *Engine) endLanes(ctx context.Context) error {
	e.stopLanes()
	var failed error
	for _, r := range e.loops() {
		if err := ended(ctx, r.stopped, r.name()+" is still in a call"); err != nil {
			return err
		}
		if r.err != nil && failed == nil {
			failed = &Error{Op: "Close", Index: -1, Class: ErrSystem, Cause: r.err}
		}
	}
	e.closing.notes.Do(func() { close(e.notesEnd) }) // no lane notes anything any more
	if err := ended(ctx, e.logEnd, "the log's writer is still in a call"); err != nil {
		return err
	}
	return failed
}

// stopLanes tells the loops to end, once.
func (e *Engine) stopLanes() {
	e.mu.Lock()
	first := !e.closing.stopped
	e.closing.stopped = true
	e.mu.Unlock()
	if !first {
		return
	}
	for _, r := range e.loops() {
		r.lane.Loop.Stop()
	}
	if e.config.Progress != Manual {
		return
	}
	e.driver.seize()              // whoever drives ends its turn, which Stop has cut short; nobody drives from here on
	for _, r := range e.loops() { // in manual mode none has a thread
		r.end()
	}
}

// ended waits for done, at most as long as ctx lasts; what has ended already counts all the same.
func ended(ctx context.Context, done <-chan struct{}, otherwise string) error {
	select {
	case <-done:
		return nil
	default:
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return &Error{Op: "Close", Index: -1, Class: ErrUnquiesced, Cause: fmt.Errorf("%s: %w", otherwise, ctx.Err()), situation: tearing}
	}
}

func (r *runner) name() string {
	switch {
	case r.lane.Index == slowLane:
		return "the cold lane of RDMA"
	case r.lane.Index == deviceLane:
		return "the cold lane of CUDA"
	case r.lane.Index < 0:
		return "the cold lane"
	}
	return fmt.Sprintf("lane %d", r.lane.Index)
}

// unproven says how the request ended whose memory may still be touched.
func (g *group) unproven() string {
	for i := range g.tasks {
		if o := &g.tasks[i].outcome; !o.Drained && o.Err != nil {
			return ": request " + strconv.Itoa(i) + " ended with " + o.Err.Error()
		}
	}
	return ""
}

// Resource is something that the engine keeps because it is not proven ended.
type Resource struct {
	Kind   string // "submission", "registration", "descriptor", "name look-up", "GPU copy" and others
	Object string
	Reason string
}

// RetainedResources lists what the engine keeps for lack of a proof, or still waits for after it was
// given back (SPEC G-9). Empty after a full drain.
func (e *Engine) RetainedResources() []Resource {
	var list []Resource
	e.retained.Range(func(key, _ any) bool {
		g := key.(*group)
		list = append(list, Resource{"submission", fmt.Sprintf("%d requests", len(g.tasks)), "nothing proves that its memory is not touched any more" + g.unproven()})
		return true
	})
	if n := e.counts.unquiesced.Load(); n > 0 {
		list = append(list, Resource{"submission", fmt.Sprintf("%d submissions", n), "the call returned ErrUnquiesced and the work has not ended yet"})
	}
	e.registering.Lock()
	retained := e.tracker.Retained()
	e.registering.Unlock()
	for _, r := range retained {
		list = append(list, Resource{"registration", fmt.Sprintf("region %d, %v", r.ID(), r.Range()), fmt.Sprintf("unregistered, but admitted work holds it %d times", r.Loans())})
	}
	for _, r := range e.runners {
		if n := r.lane.Counts.RetainedDescriptors.Load(); n > 0 {
			list = append(list, Resource{"descriptor", fmt.Sprintf("%d on %s", n, r.name()), "the system refused to close them"})
		}
	}
	list = append(list, e.rdma.resources()...)
	list = append(list, e.cuda.resources()...)
	if n := e.counts.lookupsLeft.Load(); n > 0 {
		list = append(list, Resource{"name look-up", fmt.Sprintf("%d look-ups", n), "the caller has gone, the resolver has not returned"})
	}
	return list
}
