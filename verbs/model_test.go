package verbs_test

import (
	"errors"
	"flag"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
	"pgregory.net/rapid"
)

// seeded chooses a seed for rapid unless -rapid.seed gave one, and says how to replay.
func seeded(t *testing.T) {
	t.Helper()
	if flag.Lookup("rapid.seed").Value.String() == "0" {
		if err := flag.Set("rapid.seed", strconv.FormatInt(time.Now().UnixNano(), 10)); err != nil {
			t.Fatal(err)
		}
	}
	seed := flag.Lookup("rapid.seed").Value.String()
	t.Logf("SEED=%s replay: go test -run '^%s$' -rapid.seed=%s", seed, t.Name(), seed)
}

// connection is a pair of the owners under test, its peer, and the work that the model believes outstanding.
type connection struct {
	pair, peer *verbs.QueuePair
	depth      int
	owed       map[uint64]bool
}

// authority is a window of the model; used is true once the peer spent its key.
type authority struct {
	window *verbs.MemoryWindow
	at     *connection
	used   bool
	parked bool
}

// model drives one end with everything that can go wrong, and keeps its own accounts.
type model struct {
	t           *rapid.T
	f           *simverbs.Fabric
	a, b        *end
	connections []*connection
	windows     []*authority
	paid        map[uint64]bool
	tag         uint64
	hostile     bool
	refuseIn    int // calls until one is refused; -1: none is
	late        []verbs.Completion
}

func newModel(outer *testing.T, t *rapid.T) *model {
	m := &model{t: t, paid: map[uint64]bool{}, refuseIn: -1}
	personality := rapid.SampledFrom([]simverbs.Personality{simverbs.Hardware, simverbs.SoftRoCE, simverbs.OldSoftRoCE}).Draw(t, "personality")
	m.f = simverbs.NewFabric(rapid.Uint64().Draw(t, "fabric"), simverbs.Options{Personality: personality, DepthsAsked: true})
	m.a, m.b = newEnd(outer, m.f, "a", 40), newEnd(outer, m.f, "b", 400)
	m.hostile = rapid.Bool().Draw(t, "hostile completions")
	m.a.tamper.refuse = func(call string) error {
		if m.refuseIn--; m.refuseIn != -1 {
			m.refuseIn = max(m.refuseIn, -1)
			return nil
		}
		return errno(call, syscall.EIO)
	}
	return m
}

// odds is true once in n.
func (m *model) odds(n int, what string) bool { return rapid.IntRange(1, n).Draw(m.t, what) == n }

// expect lets through refusals of the library, which are part of the plan, and those that the caller names.
func (m *model) expect(err error, allowed ...error) bool {
	if err == nil {
		return true
	}
	var native *verbs.CallError
	if errors.As(err, &native) {
		return false
	}
	for _, a := range allowed {
		if errors.Is(err, a) {
			return false
		}
	}
	m.t.Fatal(err)
	return false
}

// hostileCompletions loses, doubles, delays and forges some of the completions of one queue.
func (m *model) hostileCompletions(c []verbs.Completion, n int) int {
	kept := 0
	for i := range n {
		switch rapid.IntRange(0, 11).Draw(m.t, "completion") {
		case 0: // lost
			continue
		case 1: // delivered now and again
			m.late = append(m.late, c[i])
		}
		c[kept] = c[i]
		kept++
	}
	if len(m.late) > 0 && m.odds(2, "late") {
		c[kept] = m.late[0]
		m.late = m.late[1:]
		switch rapid.IntRange(0, 3).Draw(m.t, "forgery") {
		case 0:
			c[kept].Pair ^= 5
		case 1:
			c[kept].ID ^= 1 << rapid.IntRange(0, 63).Draw(m.t, "bit")
		}
		if m.named(c[kept]) { // a forgery that nobody can tell from the real one
			return kept
		}
		kept++
	}
	return kept
}

// named is true when the completion's identity is of work that is outstanding: only the owners know, so that the model
// asks by generation, which never repeats: identities that were delivered before are not outstanding, forged ones of a
// later generation may be.
func (m *model) named(c verbs.Completion) bool {
	newest := uint64(0)
	for _, old := range m.late {
		newest = max(newest, old.ID&(1<<40-1))
	}
	return c.ID&(1<<40-1) > newest
}

func (m *model) connect(*rapid.T) {
	c := &connection{depth: rapid.IntRange(1, 5).Draw(m.t, "depth"), owed: map[uint64]bool{}}
	var err error
	c.pair, err = m.a.domain.CreatePair(verbs.PairPlan{Sends: m.a.sends, Receives: m.a.recvs, SendDepth: c.depth, ReceiveDepth: c.depth})
	if !m.expect(err, verbs.ErrCredit) {
		return
	}
	m.connections = append(m.connections, c)
	c.peer = m.b.pair(16)
	for _, step := range steps(m.a, m.b, c.peer.Number()) {
		if !m.expect(c.pair.Move(step), verbs.ErrFenced) {
			return
		}
	}
	for _, step := range steps(m.b, m.a, c.pair.Number()) {
		m.expect(c.peer.Move(step))
	}
	m.expect(c.peer.Attach())
	m.expect(c.pair.Attach())
}

func (m *model) some() *connection {
	if len(m.connections) == 0 {
		m.t.Skip("nothing is connected")
	}
	return rapid.SampledFrom(m.connections).Draw(m.t, "connection")
}

// ready gives a connection that takes work.
func (m *model) ready() *connection {
	c := m.some()
	if c.pair.State() != verbs.PairReadyToSend || c.pair.Gone() || c.pair.Retained() {
		m.t.Skip("not ready")
	}
	return c
}

// failPosts makes the next post fail in one of the ways that a library has.
func (m *model) failPosts() {
	m.a.tamper.post = nil
	if m.odds(5, "post fails") {
		m.a.tamper.post = func(n int) (int, int, error) {
			take := rapid.IntRange(0, n).Draw(m.t, "taken")
			report := take
			if take == n || m.odds(3, "unknown") {
				report = -1
			}
			return take, report, errno("ibv_post_send", syscall.ENOMEM)
		}
	}
}

// posted brings the model's accounts up to date with what a post said.
func (m *model) posted(c *connection, tags []uint64, windows []*authority, err error) {
	m.a.tamper.post = nil
	kept := len(tags)
	var e *verbs.PostError
	switch {
	case err == nil:
	case errors.As(err, &e):
		kept = e.Posted
	case errors.Is(err, verbs.ErrCredit), errors.Is(err, verbs.ErrFenced):
		kept = 0
		for _, w := range windows {
			w.window.Cancel()
		}
	default:
		m.t.Fatal(err)
	}
	for _, tag := range tags[:kept] {
		c.owed[tag] = true
	}
}

func (m *model) nextTag() uint64 { m.tag++; return m.tag }

func (m *model) postSends(*rapid.T) {
	c := m.ready()
	var list []verbs.Work
	var tags []uint64
	for range rapid.IntRange(1, 6).Draw(m.t, "sends") {
		w := send(m.nextTag(), m.a, 0, 0, verbs.Write)
		if m.odds(12, "bad key") {
			w.Length, w.Remote, w.RemoteKey = 8, addressOf(m.b.memory), 0xbad
		}
		list, tags = append(list, w), append(tags, w.ID)
	}
	m.failPosts()
	m.posted(c, tags, nil, c.pair.PostSend(list))
}

func (m *model) postReceives(*rapid.T) {
	c := m.ready()
	var list []verbs.ReceiveWork
	var tags []uint64
	for range rapid.IntRange(1, 6).Draw(m.t, "receives") {
		r := receive(m.nextTag(), m.a)
		list, tags = append(list, r), append(tags, r.ID)
	}
	m.failPosts()
	m.posted(c, tags, nil, c.pair.PostReceive(list))
}

func (m *model) allocateWindow(*rapid.T) {
	w, err := m.a.domain.AllocateWindow()
	if m.expect(err) {
		m.windows = append(m.windows, &authority{window: w})
	}
}

func (m *model) someWindow(phase verbs.WindowPhase) *authority {
	var fit []*authority
	for _, w := range m.windows {
		if w.window.Phase() == phase && !w.parked && !w.window.Retained() {
			fit = append(fit, w)
		}
	}
	if len(fit) == 0 {
		m.t.Skip("no window " + phase.String())
	}
	return rapid.SampledFrom(fit).Draw(m.t, "window")
}

func (m *model) bind(*rapid.T) {
	w, c := m.someWindow(verbs.WindowIdle), m.ready()
	tag := m.nextTag()
	work, err := w.window.PrepareBind(tag, c.pair, m.a.region, addressOf(m.a.memory)+8, 100, verbs.AccessRemoteWrite)
	if errors.Is(err, verbs.ErrKeys) {
		m.a.domain.Park(w.window)
		w.parked = true
		return
	}
	m.expect(err)
	w.at, w.used = c, false
	m.failPosts()
	m.posted(c, []uint64{tag}, []*authority{w}, c.pair.PostSend([]verbs.Work{work}))
}

func (m *model) publish(*rapid.T) { m.someWindow(verbs.WindowBound).window.Publish() }

func (m *model) invalidate(*rapid.T) {
	w := m.someWindow(verbs.WindowBound)
	if w.at.pair.Retained() {
		m.t.Skip("its pair is retained")
	}
	tag := m.nextTag()
	work := w.window.PrepareInvalidate(tag)
	m.failPosts()
	m.posted(w.at, []uint64{tag}, []*authority{w}, w.at.pair.PostSend([]verbs.Work{work}))
}

// peerEnds lets the peer use up a published key.
func (m *model) peerEnds(*rapid.T) {
	w := m.someWindow(verbs.WindowPublished)
	if w.used || w.at.peer.Fenced() != "" || w.at.peer.State() != verbs.PairReadyToSend {
		m.t.Skip("used, or its peer is gone")
	}
	w.used = true
	done := send(1, m.b, 0, 8, verbs.SendWithInvalidate)
	done.RemoteKey = w.window.Key()
	m.expect(w.at.peer.PostSend([]verbs.Work{done}), verbs.ErrCredit)
}

func (m *model) freeWindow(*rapid.T) {
	if len(m.windows) == 0 {
		m.t.Skip("no window")
	}
	if w := rapid.SampledFrom(m.windows).Draw(m.t, "window"); !w.parked {
		m.expect(w.window.Free(), verbs.ErrBusy, verbs.ErrRetained)
	}
}

func (m *model) step(*rapid.T) {
	for range rapid.IntRange(1, 40).Draw(m.t, "events") {
		m.f.Step()
	}
}

func (m *model) poll(*rapid.T) {
	m.a.tamper.completions = nil
	if m.hostile {
		m.a.tamper.completions = m.hostileCompletions
	}
	m.pollOnce()
	m.b.poll()
}

func (m *model) pollOnce() (taken int) {
	reaped, taken, err := m.a.poller.Poll(m.a.out)
	m.expect(err)
	for i := range m.a.out[:reaped] {
		r := &m.a.out[i]
		c := m.of(r.Pair)
		if !c.owed[r.ID] || m.paid[r.ID] {
			m.t.Fatalf("tag %d was paid and not owed (paid before: %v)", r.ID, m.paid[r.ID])
		}
		delete(c.owed, r.ID)
		m.paid[r.ID] = true
		for _, w := range m.windows {
			if r.Invalidated != 0 && !w.parked {
				w.window.EndByPeer(r)
			}
		}
	}
	return taken
}

func (m *model) of(q *verbs.QueuePair) *connection {
	for _, c := range m.connections {
		if c.pair == q {
			return c
		}
	}
	m.t.Fatalf("%s is unknown", q)
	return nil
}

func (m *model) drain(*rapid.T) { m.expect(m.some().pair.Drain(), verbs.ErrRetained) }

func (m *model) end(*rapid.T) { m.endPair(m.some()) }

func (m *model) endPair(c *connection) {
	gone := c.pair.Gone()
	if !m.expect(c.pair.Detach(), verbs.ErrBusy, verbs.ErrRetained) {
		return
	}
	m.expect(c.pair.Destroy(), verbs.ErrBusy, verbs.ErrRetained)
	if gone || !c.pair.Gone() {
		return
	}
	for _, l := range lostOf(c.pair) { // destroyed: what never completed is paid now
		if !c.owed[l.Value] {
			m.t.Fatalf("tag %d is lost and not owed", l.Value)
		}
		delete(c.owed, l.Value)
	}
	if len(c.owed) > 0 {
		m.t.Fatalf("%s was destroyed and owes %v", c.pair, c.owed)
	}
}

func (m *model) refuseSoon(*rapid.T) {
	if m.odds(3, "refuse") {
		m.refuseIn = rapid.IntRange(0, 30).Draw(m.t, "calls until a refusal")
	}
}

// check holds what is true at all times.
func (m *model) check(*rapid.T) {
	for _, c := range m.connections {
		sends, receives := c.pair.Outstanding()
		if sends > c.depth || receives > c.depth || sends+receives != len(c.owed) {
			m.t.Fatalf("%s: %d sends and %d receives outstanding of %d, the model says %d", c.pair, sends, receives, c.depth, len(c.owed))
		}
		if s, r := c.pair.Free(); s != c.depth-sends || r != c.depth-receives {
			m.t.Fatalf("%s: %d sends and %d receives free", c.pair, s, r)
		}
		if c.pair.Gone() && len(c.owed) > 0 {
			m.t.Fatalf("%s is gone and owes %d", c.pair, len(c.owed))
		}
	}
	for _, q := range []*verbs.CompletionQueue{m.a.sends, m.a.recvs} {
		want := 0
		for _, c := range m.connections {
			if !c.pair.Gone() {
				want += c.depth + 1
			}
		}
		if used, limit := q.Reserved(); used != want || used > limit {
			m.t.Fatalf("%s promises %d of %d, the model says %d", q, used, limit, want)
		}
	}
	m.a.agreeOpen()
	for _, v := range m.f.Violations() {
		m.t.Fatal(v)
	}
}

// finish ends everything in order and holds the accounts at the end.
func (m *model) finish() {
	for _, c := range m.connections {
		_ = c.pair.Drain()
	}
	settle(m.f)
	for range 50 {
		if m.pollOnce() == 0 && m.odds(2, "polled enough") {
			break
		}
	}
	var windows []*verbs.MemoryWindow
	for _, w := range m.windows {
		if !w.parked {
			windows = append(windows, w.window)
		}
	}
	for _, c := range m.connections {
		if !c.pair.Drained() {
			_ = c.pair.Retain(errors.New("the window for cleanup passed"))
		}
	}
	for _, w := range windows {
		_ = w.Free()
	}
	for _, c := range m.connections {
		m.endPair(c)
		if len(c.owed) > 0 && !c.pair.Retained() && c.pair.Detach() == nil {
			m.t.Fatalf("%s owes %d and is neither gone nor retained", c.pair, len(c.owed))
		}
	}
	_ = m.a.closeAll(m.f, windows)
	m.a.agree()
	l := m.a.process.Live()
	left := l.Devices + l.Domains + l.Channels + l.Queues + l.Pairs + l.Regions + l.Windows - int(m.a.domain.Counts().Parked)
	if listed := m.a.context.Retained(); len(listed) != left {
		m.t.Fatalf("%d objects are left (%+v), %d listed: %+v", left, l, len(listed), listed)
	}
	for _, v := range m.f.Violations() {
		m.t.Fatal(v)
	}
}

// proves
func TestNoDebtIsPaidTwiceAndNothingIsForgottenWhateverFails(t *testing.T) {
	seeded(t)
	rapid.Check(t, func(r *rapid.T) {
		m := newModel(t, r)
		defer func() { m.a.tamper.refuse = nil }()
		act := func(f func(*rapid.T)) func(*rapid.T) {
			return func(r *rapid.T) { m.t = r; f(r) }
		}
		r.Repeat(map[string]func(*rapid.T){
			"connect": act(m.connect), "post sends": act(m.postSends), "post receives": act(m.postReceives),
			"allocate window": act(m.allocateWindow), "bind": act(m.bind), "publish": act(m.publish), "invalidate": act(m.invalidate),
			"peer ends": act(m.peerEnds), "free window": act(m.freeWindow), "step": act(m.step), "poll": act(m.poll), "poll more": act(m.poll),
			"drain": act(m.drain), "end": act(m.end), "refuse soon": act(m.refuseSoon),
			"": act(m.check),
		})
		m.finish()
	})
}
