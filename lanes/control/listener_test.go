package control

import (
	"syscall"
	"testing"
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
)

// served checks that a new client gets an answer.
func served(t *testing.T, r *rig, n *node) {
	t.Helper()
	w := r.dial(n.address)
	must(t, w.send(netproto.AppendRequest(nil, netproto.Request{Operation: netproto.OperationDescribe})))
	if p := w.reply(); p.Status != netproto.StatusEpochMismatch || p.Epoch != epoch {
		t.Errorf("%+v", p)
	}
}

// notes takes the journal's lines by kind.
func notes(n *node) map[lanes.NoteKind]int {
	kinds := map[lanes.NoteKind]int{}
	for {
		note, ok := n.lane.Journal.Next()
		if !ok {
			return kinds
		}
		kinds[note.Kind]++
	}
}

// Exhaustion of the system is noted once per burst and retried at an interval; then service resumes.
//
// proves T-7
// field case F-67
func TestAcceptorSurvivesExhaustion(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		r := newRig(t, 1)
		n := r.node(nodeHost, 4)
		for burst := range 2 {
			const failures = 30
			n.process.FailAccepts(errno, failures)
			start, errors := r.world.Now(), n.lane.Counts.AcceptErrors.Load()
			served(t, r, n)
			if took := time.Duration(r.world.Now() - start); took < (failures-1)*acceptRetry || took > (failures+1)*acceptRetry {
				t.Errorf("%v: %d failures took %v, want one attempt in %v", errno, failures, took, acceptRetry)
			}
			if got := n.lane.Counts.AcceptErrors.Load() - errors; got != failures {
				t.Errorf("%v: %d errors are counted", errno, got)
			}
			if kinds := notes(n); kinds[lanes.NoteAcceptExhausted] != 1 || kinds[lanes.NoteAcceptResumed] != 1 || len(kinds) != 2 {
				t.Errorf("%v, burst %d: notes %v", errno, burst, kinds)
			}
			served(t, r, n)
			r.pass(2 * time.Second) // a note of a kind is at most one a second
		}
		r.finish()
	}
}

// A full descriptor table is the same thing, and ends by itself when descriptors are closed.
//
// proves T-7
func TestAcceptorSurvivesAFullDescriptorTable(t *testing.T) {
	r := newRig(t, 2)
	n := r.node(nodeHost, 4)
	n.process.LimitDescriptors(3)
	first, second := r.dial(n.address), r.dial(n.address)
	r.pass(time.Second)
	third := r.dial(n.address)
	must(t, third.send(netproto.AppendRequest(nil, netproto.Request{Operation: netproto.OperationDescribe})))
	r.pass(10 * time.Second)
	if errors := n.lane.Counts.AcceptErrors.Load(); errors > 120 {
		t.Errorf("%d attempts in 11 s", errors)
	}
	first.close()
	if p := third.reply(); p.Status != netproto.StatusEpochMismatch {
		t.Errorf("%+v", p)
	}
	second.close()
	r.finish()
}

// Errors that belong to one connection are passed over at once and are no line in the log. A run of
// them without any connection falls back to the interval, so that the lane does not spin.
//
// proves T-7
func TestAcceptorPassesOverErrorsOfAConnection(t *testing.T) {
	for _, errno := range []syscall.Errno{
		syscall.ECONNABORTED, syscall.ECONNRESET, syscall.ETIMEDOUT, syscall.EPROTO, syscall.ENETDOWN, syscall.EHOSTDOWN, syscall.ENONET,
		syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ENOPROTOOPT, syscall.EPERM, syscall.EINTR, syscall.EAGAIN,
	} {
		r := newRig(t, 3)
		n := r.node(nodeHost, 4)
		served(t, r, n)
		n.process.FailAccepts(errno, acceptErrorsInRow)
		start := r.world.Now()
		served(t, r, n)
		if took := time.Duration(r.world.Now() - start); took >= acceptRetry {
			t.Errorf("%v: service resumed after %v", errno, took)
		}
		n.process.FailAccepts(errno, 1000)
		r.dial(n.address)
		r.pass(time.Second)
		errors := n.lane.Counts.AcceptErrors.Load()
		if limit := uint64(2*acceptErrorsInRow + 11); errors > limit {
			t.Errorf("%v: %d attempts in a second, want at most %d", errno, errors, limit)
		}
		n.process.FailAccepts(errno, 0)
		served(t, r, n)
		if kinds := notes(n); len(kinds) != 0 {
			t.Errorf("%v: notes %v", errno, kinds)
		}
		r.finish()
	}
}

// Fatal errors end the listener, with a line in the log; streams that are open go on, and closing works.
//
// proves T-7
// field case F-67
func TestFatalAcceptErrorIsSaid(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EBADF, syscall.EINVAL, syscall.ENOTSOCK, syscall.EOPNOTSUPP, syscall.EFAULT, syscall.ENOSYS} {
		r := newRig(t, 4)
		n := r.node(nodeHost, 4)
		w := r.dial(n.address)
		r.pass(soon)
		n.process.FailAccepts(errno, 1)
		r.dial(n.address)
		r.pass(time.Second)
		if n.listener.Failed() != errno {
			t.Errorf("failed: %v, want %v", n.listener.Failed(), errno)
		}
		if kinds := notes(n); kinds[lanes.NoteListenerFailed] != 1 || len(kinds) != 1 {
			t.Errorf("%v: notes %v", errno, kinds)
		}
		must(t, w.send(netproto.AppendRequest(nil, netproto.Request{Operation: netproto.OperationDescribe})))
		if p := w.reply(); p.Status != netproto.StatusEpochMismatch {
			t.Errorf("%+v", p)
		}
		r.finish()
	}
}

// Shutdown ends the listener in each state, a connection that arrives meanwhile included, and once.
//
// proves T-7, G-6
func TestShutdownEndsTheAcceptorInEachState(t *testing.T) {
	states := map[string]func(*rig, *node){
		"accepting": func(*rig, *node) {},
		"starved":   func(r *rig, n *node) { n.process.FailAccepts(syscall.EMFILE, 1000); r.dial(n.address); r.pass(soon) },
		"failed":    func(r *rig, n *node) { n.process.FailAccepts(syscall.EINVAL, 1); r.dial(n.address); r.pass(soon) },
		"passing":   func(r *rig, n *node) { n.process.FailAccepts(syscall.EPERM, 1000); r.dial(n.address); r.pass(soon) },
	}
	for name, reach := range states {
		for seed := range uint64(8) {
			r := newRig(t, seed)
			n := r.node(nodeHost, 4)
			reach(r, n)
			w := r.dial(n.address) // waits in the backlog, or is accepted while the listener closes
			times := 0
			n.listener.Close(func() { times++ })
			r.until(name, func() bool { return times > 0 })
			again := 0
			n.listener.Close(func() { again++ })
			n.listener.Start() // too late: nothing happens
			r.pass(soon)
			if kept := n.lane.Counts.RetainedDescriptors.Load(); times != 1 || again != 1 || kept != 0 {
				t.Errorf("%s, SEED=%d: closed %d and %d times, %d descriptors not", name, seed, times, again, kept)
			}
			if name != "accepting" {
				w.ends()
			}
			r.finish()
		}
	}
}

// A connection that is dealt to a lane whose loop has ended is closed.
//
// proves T-7
func TestConnectionForAStoppedLaneIsClosed(t *testing.T) {
	r := newRig(t, 5)
	n := r.node(nodeHost, 4)
	stopped := r.node(otherHost, 4)
	stopped.close()
	stopped.check()
	r.nodes = r.nodes[:1]
	n.listener.servers = []Adopter{stopped.server}
	w := r.dial(n.address)
	w.ends()
	r.finish()
}
