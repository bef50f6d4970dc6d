package field

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/simkernel"
)

// What happens to a call at one of its turns.
const (
	deadlinePasses = "the deadline passes" // its peers fall silent; the clock runs
	peerVanishes   = "the peer vanishes"   // connections are reset, and nobody answers any more
	callCancelled  = "the call is cancelled"
	engineClosed   = "the engine is closed"
)

var endings = []string{deadlinePasses, peerVanishes, callCancelled, engineClosed}

const (
	walkDeadline = 5 * time.Second // on the virtual clock
	walkGrace    = time.Second
	walkBytes    = 1<<20 + 300<<10 // two slices of a commit, and of what a socket (256 KiB) does not take at once
)

// A walk is one world in which one scene runs once, and ends at a given turn.
type walk struct {
	*simkernel.World
	t       *testing.T
	names   states
	name    string
	engines []*orbitte.Engine // the requester, its source, a third one that is both
	memory  []*orbitte.Memory
	held    []*orbitte.Registration
	roots   []any // engines and batches
	ending  string
	at      int // the turn at which the ending comes; 0: never
	playing bool
	turn    int
	met     map[string]int // the states that it met
	began   reactor.Instant
	cut     reactor.Instant
	over    reactor.Instant // when its calls had ended
	ctx     context.Context
	cancels []func()
	gone    uint64        // where a region was
	patient time.Duration // how long, really, the goroutine behind a cancelled context may take to run
}

// A scene is calls of the requester; it returns when they have ended.
type scene struct {
	name              string
	requester, source orbitte.Config
	blocking          bool // its calls keep the world's goroutine: only their context cancels them
	prepare           func(*walk) []*orbitte.Segment
	act               func(*walk, []*orbitte.Segment) []error
	everyTurn         int // every how many turns it is ended
}

func walkHost(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}) }

// newWalk makes the world: three engines, each with one memory that everybody may read and write.
func newWalk(t *testing.T, names states, s scene, seed uint64) *walk {
	w := &walk{t: t, names: names, name: s.name, World: simkernel.NewWorld(seed, simkernel.WorldOptions{})}
	for i, c := range []orbitte.Config{s.requester, s.source, s.source} {
		p := w.Process(fmt.Sprint(i), walkHost(i))
		c.Progress, c.Lanes, c.Bind = orbitte.Manual, 1, netip.AddrPortFrom(walkHost(i), 0).String()
		c.OpenKernel = func(int) (reactor.Kernel, error) { return p.Kernel(), nil }
		c.Epoch, c.SourceTimeout, c.RequestTimeout = orbitte.Epoch{1, byte(i)}, 2*time.Second, walkDeadline
		e, err := orbitte.Open(c)
		w.must(err)
		w.Add(func() bool {
			worked := e.Progress(time.Hour) // so the world learns until when it would wait
			if worked || s.blocking {
				w.look()
			}
			return worked
		})
		m, err := orbitte.Allocate(2 * walkBytes)
		w.must(err)
		r, err := e.Register(m, 0, 2*walkBytes, orbitte.ReadWrite)
		w.must(err)
		w.engines, w.memory, w.held, w.roots = append(w.engines, e), append(w.memory, m), append(w.held, r), append(w.roots, e)
	}
	return w
}

func (w *walk) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatalf("%s, turn %d, %s: %v", w.name, w.at, w.ending, err)
	}
}

func (w *walk) within(d time.Duration) context.Context {
	ctx, cancel := context.WithDeadline(context.Background(), w.Time().Add(d))
	w.t.Cleanup(cancel)
	return ctx
}

func (w *walk) open(from, to int) *orbitte.Segment {
	s, err := w.engines[from].OpenSegment(w.within(walkDeadline), w.engines[to].Endpoint(), w.engines[to].Epoch())
	w.must(err)
	return s
}

// request is of engine from, to the same place of its and its peer's memory.
func (w *walk) request(from, to int, o orbitte.Operation, s *orbitte.Segment, offset, length uint64) orbitte.Request {
	return orbitte.Request{Operation: o, Segment: s, Local: w.memory[from].Address() + offset, Remote: w.memory[to].Address() + offset, Length: length}
}

// submit starts a batch, which may be cancelled.
func (w *walk) submit(from int, requests []orbitte.Request, options ...orbitte.SubmitOption) *orbitte.Batch {
	b, err := w.engines[from].Submit(w.ctx, requests, options...)
	w.must(err)
	w.roots, w.cancels = append(w.roots, b), append(w.cancels, b.Cancel)
	return b
}

// finish lets the world run until batches have ended.
func (w *walk) finish(batches ...*orbitte.Batch) (errs []error) {
	for _, b := range batches {
		err := w.RunUntil(func() bool {
			_, terminal, _ := b.Poll()
			return terminal || w.ending == engineClosed && w.turn >= w.at && w.at > 0
		}, w.Now().After(walkDeadline+2*walkGrace))
		w.must(err)
	}
	if w.ending == engineClosed && w.at > 0 && w.turn >= w.at {
		w.closeEarly()
	}
	for _, b := range batches {
		report, err := b.Wait(w.within(walkDeadline + walkGrace))
		if !report.LocallyDrained {
			w.t.Errorf("%s, turn %d, %s: not drained: %+v", w.name, w.at, w.ending, report)
		}
		errs = append(errs, err)
		w.must(b.Free())
	}
	return errs
}

// closeEarly closes the requester in the middle: at first there is no time for it, and a later call goes on.
func (w *walk) closeEarly() {
	w.silence()
	e := w.engines[0]
	if err := e.Close(w.within(time.Millisecond)); err != nil && !errors.Is(err, orbitte.ErrUnquiesced) {
		w.must(err)
	}
	w.must(e.Close(w.within(walkDeadline + walkGrace)))
}

func (w *walk) silence() {
	for _, link := range [][2]int{{0, 1}, {1, 0}, {0, 2}, {2, 0}, {1, 2}, {2, 1}} {
		w.Link(walkHost(link[0]), walkHost(link[1])).BlackHole(true)
	}
}

// look is called behind each turn of an engine; at the chosen one it notes every state, and the ending comes.
func (w *walk) look() {
	if !w.playing {
		return
	}
	if w.turn++; w.turn != w.at {
		return
	}
	w.met, w.cut = w.names.look(w.roots...), w.Now()
	switch w.ending {
	case deadlinePasses:
		w.silence()
	case peerVanishes:
		for _, c := range w.Connections() {
			c.Reset()
		}
		for i := range w.engines { // what was sent arrives, the reset behind it; new connections find nobody
			w.Link(walkHost(0), walkHost(i)).BlackHole(i > 0)
		}
	case callCancelled:
		w.silence() // the call does not end because it is done
		for _, cancel := range w.cancels {
			cancel()
		}
		if w.patient > 0 {
			runtime.Gosched()
			time.Sleep(w.patient)
		}
	}
}

// run plays a scene; it says how many turns there were.
func (s *scene) run(t *testing.T, names states, seed uint64, ending string, at int, patient time.Duration) *walk {
	t.Helper()
	w := newWalk(t, names, *s, seed)
	segments := s.prepare(w)
	w.ending, w.at, w.patient = ending, at, 0
	if s.blocking {
		w.patient = patient
	}
	ctx, cancel := context.WithCancel(w.within(walkDeadline))
	defer cancel()
	w.ctx, w.began = ctx, w.Now()
	if s.blocking {
		w.cancels = append(w.cancels, cancel)
	}
	w.playing = true
	errs := s.act(w, segments)
	w.playing, w.over = false, w.Now()
	w.judge(errs)
	w.end()
	return w
}

// judge holds the ends of the calls to the time that they had.
func (w *walk) judge(errs []error) {
	if took := time.Duration(w.Now() - w.began); took > walkDeadline+2*walkGrace {
		w.t.Errorf("%s, turn %d, %s: ended after %v, deadline %v", w.name, w.at, w.ending, took, walkDeadline)
	}
	for _, err := range errs {
		var own *orbitte.Error
		if err != nil && !errors.As(err, &own) {
			w.t.Errorf("%s, turn %d, %s: %v", w.name, w.at, w.ending, err)
		}
		if err != nil && w.at == 0 {
			w.t.Errorf("%s: without any fault: %v", w.name, err)
		}
		if errors.Is(err, orbitte.ErrUnquiesced) {
			w.t.Errorf("%s, turn %d, %s: %v", w.name, w.at, w.ending, err)
		}
	}
}

// late is true exactly when a cancelled call ended by its deadline instead.
func (w *walk) late() bool {
	return w.ending == callCancelled && w.cut != 0 && time.Duration(w.over-w.cut) > walkDeadline-walkGrace
}

// end lets the sources' own deadlines pass, closes everything, and looks for machines that are still at work.
func (w *walk) end() {
	busy := func() bool {
		for _, e := range w.engines {
			for _, g := range e.Stats().Gauges {
				if g.Used != 0 && (g.Name == "source handlers" || g.Name == "source queue") {
					return true
				}
			}
		}
		return false
	}
	w.must(w.RunUntil(func() bool { return !busy() }, w.Now().After(10*time.Second)))
	for i, e := range w.engines {
		w.must(e.Close(w.within(10 * time.Second)))
		w.must(e.Unregister(w.within(time.Second), w.held[i]))
		w.must(w.memory[i].Close())
		e.ReceiveNotifications()
		for _, g := range e.Stats().Gauges {
			if g.Used != 0 {
				w.t.Errorf("%s, turn %d, %s: %d %s are left at engine %d", w.name, w.at, w.ending, g.Used, g.Unit, i)
			}
		}
		if left := e.RetainedResources(); len(left) > 0 {
			w.t.Errorf("%s, turn %d, %s: engine %d keeps %v", w.name, w.at, w.ending, i, left)
		}
	}
	left := w.names.look(w.roots...)
	for _, m := range machines {
		for state := range left {
			machine, name := state[:strings.LastIndex(state, ".")], state[strings.LastIndex(state, ".")+1:]
			if machine == m.room+"."+m.name && !slices.Contains(m.terminal, name) {
				w.t.Errorf("%s, turn %d, %s: after Close something is still %s; it met %v", w.name, w.at, w.ending, state, w.met)
			}
		}
	}
}

var direct = orbitte.Config{TCPHostMemory: orbitte.Direct}

// scenes lead through every state.
var scenes = []scene{
	{
		name: "a batch and its notification", prepare: func(w *walk) []*orbitte.Segment { return []*orbitte.Segment{w.open(0, 1)} }, act: wholeBatch, everyTurn: 1,
	},
	{
		name: "a direct batch", requester: direct, source: direct,
		prepare: func(w *walk) []*orbitte.Segment { return []*orbitte.Segment{w.open(0, 1)} }, act: wholeBatch, everyTurn: 2,
	},
	{
		name: "a small batch on a new stream", requester: orbitte.Config{IdleTimeout: 50 * time.Millisecond}, everyTurn: 1,
		prepare: func(w *walk) []*orbitte.Segment {
			s := w.open(0, 1)
			w.must(w.RunUntil(func() bool { return len(w.Connections()) == 0 }, w.Now().After(time.Second)))
			return []*orbitte.Segment{s}
		},
		act: func(w *walk, s []*orbitte.Segment) []error {
			return w.finish(w.submit(0, []orbitte.Request{
				w.request(0, 1, orbitte.Write, s[0], 0, 100), w.request(0, 1, orbitte.Read, s[0], 4096, 100), w.request(0, 1, orbitte.Read, s[0], 8192, 100),
			}))
		},
	},
	{
		name: "an open", blocking: true, prepare: func(*walk) []*orbitte.Segment { return nil }, everyTurn: 11,
		act: func(w *walk, _ []*orbitte.Segment) []error {
			_, err := w.engines[0].OpenSegment(w.ctx, w.engines[1].Endpoint(), w.engines[1].Epoch())
			if err != nil {
				return []error{err}
			}
			_, err = w.engines[0].Describe(w.ctx, w.engines[2].Endpoint())
			return []error{err}
		},
	},
	{
		name: "a notification", blocking: true, prepare: func(w *walk) []*orbitte.Segment { return []*orbitte.Segment{w.open(0, 1)} }, everyTurn: 5,
		act: func(w *walk, s []*orbitte.Segment) []error {
			_, err := w.engines[0].SendNotification(w.ctx, s[0], orbitte.Notification{Name: "name", Message: strings.Repeat("message ", 7000)})
			return []error{err}
		},
	},
	{
		name: "a refusal", everyTurn: 1,
		prepare: func(w *walk) []*orbitte.Segment {
			m, err := orbitte.Allocate(4096)
			w.must(err)
			r, err := w.engines[1].Register(m, 0, 4096, orbitte.ReadWrite)
			w.must(err)
			s := w.open(0, 1)
			w.must(w.engines[1].Unregister(w.within(time.Second), r))
			w.gone = m.Address()
			w.must(m.Close())
			return []*orbitte.Segment{s}
		},
		act: func(w *walk, s []*orbitte.Segment) []error {
			r := w.request(0, 1, orbitte.Read, s[0], 0, 100)
			r.Remote = w.gone
			err := w.finish(w.submit(0, []orbitte.Request{r}))[0]
			if w.at == 0 && !errors.Is(err, orbitte.ErrUnknownRegion) {
				w.must(err)
			} else if w.at == 0 {
				err = nil // what was wanted
			}
			return []error{err}
		},
	},
	{
		name: "one handler for many", source: orbitte.Config{TCPHostMemory: orbitte.Direct, Limits: orbitte.Limits{SourceHandlers: 1, SourceQueue: 1}},
		prepare: twoRequesters, act: crowd, everyTurn: 3,
	},
	{
		name: "one range for two", source: direct, prepare: twoRequesters, act: crowd, everyTurn: 3,
	},
	{
		name: "one range for two, staged", prepare: twoRequesters, act: crowd, everyTurn: 3,
	},
	{
		name: "a range in use", source: direct, prepare: twoRequesters, everyTurn: 3,
		act: func(w *walk, s []*orbitte.Segment) []error {
			a := w.submit(2, []orbitte.Request{w.request(2, 1, orbitte.Write, s[1], 0, walkBytes)})
			read := w.request(0, 1, orbitte.Read, s[0], 0, 1000)
			return w.finish(a, w.submit(0, []orbitte.Request{read, read, read, read}))
		},
	},
	{
		name: "one stream for two peers", requester: orbitte.Config{Limits: orbitte.Limits{PeerSegments: 1}}, everyTurn: 1,
		prepare: func(w *walk) []*orbitte.Segment { return []*orbitte.Segment{w.open(0, 1), w.open(0, 2)} },
		act: func(w *walk, s []*orbitte.Segment) (errs []error) {
			for i, to := range []int{1, 2, 1} {
				pause := w.Now().After(5 * time.Millisecond) // an idle stream is watched by then: to evict it takes a turn
				w.must(w.RunUntil(func() bool { return w.Now() >= pause }, pause.After(time.Second)))
				if w.at > 0 && w.turn >= w.at {
					break
				}
				b := w.submit(0, []orbitte.Request{w.request(0, to, orbitte.Read, s[to-1], uint64(i)*4096, 100)})
				errs = append(errs, w.finish(b)...)
			}
			return errs
		},
	},
	{
		name: "a copy", everyTurn: 1, prepare: func(w *walk) []*orbitte.Segment { return []*orbitte.Segment{w.open(0, 0)} },
		act: func(w *walk, s []*orbitte.Segment) []error {
			r := w.request(0, 0, orbitte.Read, s[0], 0, walkBytes)
			r.Remote += walkBytes
			return w.finish(w.submit(0, []orbitte.Request{r, r}))
		},
	},
}

func wholeBatch(w *walk, s []*orbitte.Segment) []error {
	var requests []orbitte.Request
	for i, o := range []orbitte.Operation{orbitte.Read, orbitte.Read, orbitte.Write, orbitte.Write} {
		requests = append(requests, w.request(0, 1, o, s[0], uint64(i%2)*walkBytes, []uint64{walkBytes, 1000}[i%2]))
	}
	return w.finish(w.submit(0, requests, orbitte.NotifyAfter(orbitte.Notification{Name: "after", Message: "data"})))
}

func twoRequesters(w *walk) []*orbitte.Segment {
	return []*orbitte.Segment{w.open(0, 1), w.open(2, 1)}
}

// crowd is two requesters that write to, and read from, one range, one of them with two batches on one stream.
func crowd(w *walk, s []*orbitte.Segment) []error {
	a := w.submit(0, []orbitte.Request{w.request(0, 1, orbitte.Write, s[0], 0, walkBytes)})
	b := w.submit(2, []orbitte.Request{w.request(2, 1, orbitte.Write, s[1], 0, walkBytes)})
	c := w.submit(0, []orbitte.Request{w.request(0, 1, orbitte.Read, s[0], 0, 1000)})
	return w.finish(a, b, c)
}

// Each scene is played again and again, and each time it is ended at another of its turns, in four ways. Between two
// turns every machine in reach is looked at: each state must have been met by each ending, and after each ending
// everything must have come to a terminal one.
//
// field case F-17
func TestFromEveryStateADeadlineALostPeerACancelAndACloseLeadToTheEnd(t *testing.T) {
	t.Parallel()
	names, seed := readStates(t), rand.Uint64()
	t.Logf("SEED=%d (order of engines within a turn, delays; replace rand.Uint64 to replay)", seed)
	met := map[string]map[string]bool{} // ending → states
	for _, ending := range endings {
		met[ending] = map[string]bool{}
	}
	played := 0
	for _, s := range scenes {
		turns := s.run(t, names, seed, "no ending", 0, 0).turn
		every := s.everyTurn
		if underRace || testing.Short() {
			every *= 5
		}
		for _, ending := range endings {
			if s.blocking && ending == engineClosed {
				continue // Close waits in the same goroutine; the batches show it
			}
			for at := 1; at <= turns; at += every {
				w := s.run(t, names, seed, ending, at, time.Millisecond)
				for patient := 10 * time.Millisecond; w.late() && patient < 10*time.Second; patient *= 10 {
					w = s.run(t, names, seed, ending, at, patient)
				}
				if w.late() {
					t.Errorf("%s, turn %d: a cancelled call ended by its deadline", s.name, at)
				}
				for state := range w.met {
					met[ending][state] = true
				}
				if played++; t.Failed() {
					return
				}
			}
		}
		t.Logf("%s: %d turns", s.name, turns)
	}
	walked(t, names, met)
	t.Logf("%d plays", played)
}

// walked holds what was met to what there is.
func walked(t *testing.T, names states, met map[string]map[string]bool) {
	for _, m := range machines {
		key := m.room + "." + m.name
		for _, name := range slices.Sorted(maps.Values(names[key])) {
			var missing []string
			for _, ending := range endings {
				if !met[ending][key+"."+name] {
					missing = append(missing, ending)
				}
			}
			why, passes := m.passing[name]
			switch {
			case len(missing) == 0:
				t.Logf("%s.%s: met by all endings", key, name)
			case passes && len(missing) == len(endings):
				t.Logf("%s.%s: never met: %s", key, name, why)
			case slices.Contains(m.terminal, name) || underRace || testing.Short():
				t.Logf("%s.%s: not met when %v", key, name, missing)
			default:
				t.Errorf("%s.%s: not met when %v", key, name, missing)
			}
		}
	}
}
