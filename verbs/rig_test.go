package verbs_test

import (
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// tamper stands between the owners and the twin. Each hook may be nil.
type tamper struct {
	verbs.Calls
	refuse      func(call string) error
	post        func(n int) (take, report int, err error) // of a list of n: how many go through, and what is said
	completions func(c []verbs.Completion, n int) int     // changes the n completions of one queue; c has room for more
}

func (t *tamper) refused(call string) error {
	if t.refuse == nil {
		return nil
	}
	return t.refuse(call)
}

func (t *tamper) OpenDevice(name string) (verbs.DeviceHandle, error) {
	if err := t.refused("ibv_open_device"); err != nil {
		return 0, err
	}
	return t.Calls.OpenDevice(name)
}

func (t *tamper) CloseDevice(h verbs.DeviceHandle) error {
	if err := t.refused("ibv_close_device"); err != nil {
		return err
	}
	return t.Calls.CloseDevice(h)
}

func (t *tamper) DeviceLimits(h verbs.DeviceHandle) (verbs.Limits, error) {
	if err := t.refused("ibv_query_device"); err != nil {
		return verbs.Limits{}, err
	}
	return t.Calls.DeviceLimits(h)
}

func (t *tamper) Port(h verbs.DeviceHandle, port uint8) (verbs.PortInfo, error) {
	if err := t.refused("ibv_query_port"); err != nil {
		return verbs.PortInfo{}, err
	}
	return t.Calls.Port(h, port)
}

func (t *tamper) GIDs(h verbs.DeviceHandle, port uint8) ([]verbs.GIDEntry, error) {
	if err := t.refused("ibv_query_gid_ex"); err != nil {
		return nil, err
	}
	return t.Calls.GIDs(h, port)
}

func (t *tamper) NextAsync(h verbs.DeviceHandle) (verbs.AsyncEvent, bool, error) {
	if err := t.refused("ibv_get_async_event"); err != nil {
		return verbs.AsyncEvent{}, false, err
	}
	return t.Calls.NextAsync(h)
}

func (t *tamper) AllocateDomain(h verbs.DeviceHandle) (verbs.DomainHandle, error) {
	if err := t.refused("ibv_alloc_pd"); err != nil {
		return 0, err
	}
	return t.Calls.AllocateDomain(h)
}

func (t *tamper) FreeDomain(h verbs.DomainHandle) error {
	if err := t.refused("ibv_dealloc_pd"); err != nil {
		return err
	}
	return t.Calls.FreeDomain(h)
}

func (t *tamper) CreateChannel(h verbs.DeviceHandle) (verbs.ChannelHandle, error) {
	if err := t.refused("ibv_create_comp_channel"); err != nil {
		return 0, err
	}
	return t.Calls.CreateChannel(h)
}

func (t *tamper) DestroyChannel(h verbs.ChannelHandle) error {
	if err := t.refused("ibv_destroy_comp_channel"); err != nil {
		return err
	}
	return t.Calls.DestroyChannel(h)
}

func (t *tamper) CreateQueue(d verbs.DeviceHandle, n int, c verbs.ChannelHandle) (verbs.QueueHandle, error) {
	if err := t.refused("ibv_create_cq"); err != nil {
		return 0, err
	}
	return t.Calls.CreateQueue(d, n, c)
}

func (t *tamper) DestroyQueue(h verbs.QueueHandle) error {
	if err := t.refused("ibv_destroy_cq"); err != nil {
		return err
	}
	return t.Calls.DestroyQueue(h)
}

func (t *tamper) CreatePair(d verbs.DomainHandle, o verbs.PairOptions) (verbs.PairHandle, verbs.PairNumber, error) {
	if err := t.refused("ibv_create_qp"); err != nil {
		return 0, 0, err
	}
	return t.Calls.CreatePair(d, o)
}

func (t *tamper) ModifyPair(h verbs.PairHandle, m verbs.Transition) error {
	if err := t.refused("ibv_modify_qp"); err != nil {
		return err
	}
	return t.Calls.ModifyPair(h, m)
}

func (t *tamper) DestroyPair(h verbs.PairHandle) error {
	if err := t.refused("ibv_destroy_qp"); err != nil {
		return err
	}
	return t.Calls.DestroyPair(h)
}

func (t *tamper) Register(d verbs.DomainHandle, address, length uint64, a verbs.Access) (verbs.RegionHandle, verbs.LocalKey, verbs.RemoteKey, error) {
	if err := t.refused("ibv_reg_mr"); err != nil {
		return 0, 0, 0, err
	}
	return t.Calls.Register(d, address, length, a)
}

func (t *tamper) Deregister(h verbs.RegionHandle) error {
	if err := t.refused("ibv_dereg_mr"); err != nil {
		return err
	}
	return t.Calls.Deregister(h)
}

func (t *tamper) AllocateWindow(d verbs.DomainHandle) (verbs.WindowHandle, verbs.RemoteKey, error) {
	if err := t.refused("ibv_alloc_mw"); err != nil {
		return 0, 0, err
	}
	return t.Calls.AllocateWindow(d)
}

func (t *tamper) FreeWindow(h verbs.WindowHandle) error {
	if err := t.refused("ibv_dealloc_mw"); err != nil {
		return err
	}
	return t.Calls.FreeWindow(h)
}

func (t *tamper) PostSend(h verbs.PairHandle, list []verbs.SendWork) (int, error) {
	if t.post == nil {
		return t.Calls.PostSend(h, list)
	}
	take, report, err := t.post(len(list))
	if take > 0 {
		if n, err := t.Calls.PostSend(h, list[:take]); err != nil {
			return n, err
		}
	}
	return report, err
}

func (t *tamper) PostReceive(h verbs.PairHandle, list []verbs.ReceiveWork) (int, error) {
	if t.post == nil {
		return t.Calls.PostReceive(h, list)
	}
	take, report, err := t.post(len(list))
	if take > 0 {
		if n, err := t.Calls.PostReceive(h, list[:take]); err != nil {
			return n, err
		}
	}
	return report, err
}

func (t *tamper) Poll(sends, receives verbs.QueueHandle, out []verbs.Completion) (int, int, error) {
	if err := t.refused("ibv_poll_cq"); err != nil {
		return 0, 0, err
	}
	if t.completions == nil {
		return t.Calls.Poll(sends, receives, out)
	}
	half := len(out) / 2
	s, _, err := t.Calls.Poll(sends, 0, out[:half/2])
	if err != nil {
		return s, 0, err
	}
	s = t.completions(out[:half], s)
	if receives == 0 {
		return s, 0, nil
	}
	_, r, err := t.Calls.Poll(0, receives, out[half:half+half/2])
	if err != nil {
		return s, 0, err
	}
	r = t.completions(out[half:], r)
	copy(out[s:], out[half:half+r])
	return s, r, nil
}

func errno(call string, e syscall.Errno) error {
	return &verbs.CallError{Call: call, Object: "tampered", Errno: e}
}

// refusing refuses the n-th time (from 0) that one call is made.
func refusing(name string, n int) func(string) error {
	return func(call string) error {
		if call != name {
			return nil
		}
		n--
		if n == -1 {
			return errno(call, syscall.EIO)
		}
		return nil
	}
}

// end is one process with one context and what a lane has there.
type end struct {
	t       testing.TB
	tamper  *tamper
	process *simverbs.Process
	context *verbs.Context
	domain  *verbs.Domain
	channel *verbs.Channel
	sends   *verbs.CompletionQueue
	recvs   *verbs.CompletionQueue
	poller  *verbs.Poller
	out     []verbs.Reaped
	memory  []byte
	region  *verbs.MemoryRegion // of memory, windows may be bound to it
	shared  bool                // pairs share the places of the completion queues
}

const (
	batch       = 32
	memoryBytes = 64 << 10
)

func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

func newFabric(personality simverbs.Personality, seed uint64) *simverbs.Fabric {
	return simverbs.NewFabric(seed, simverbs.Options{Personality: personality})
}

func newEnd(t testing.TB, f *simverbs.Fabric, host string, entries int) *end {
	t.Helper()
	e := &end{t: t, process: f.Host(host).Process("p"), out: make([]verbs.Reaped, batch), memory: make([]byte, memoryBytes)}
	e.tamper = &tamper{Calls: e.process}
	devices, err := e.tamper.Devices()
	e.check(err)
	e.context, err = verbs.Open(e.tamper, 0, devices[0], verbs.Pins{})
	e.check(err)
	e.domain, err = e.context.AllocateDomain(1 << 10)
	e.check(err)
	e.channel, err = e.context.CreateChannel()
	e.check(err)
	e.sends, err = e.context.CreateQueue(entries, e.channel)
	e.check(err)
	e.recvs, err = e.context.CreateQueue(entries, e.channel)
	e.check(err)
	e.poller = verbs.NewPoller(e.sends, e.recvs, batch)
	e.region, err = e.domain.Register(addressOf(e.memory), memoryBytes, verbs.AccessLocalWrite|verbs.AccessWindowBind)
	e.check(err)
	t.Cleanup(func() { runtime.KeepAlive(e.memory) })
	return e
}

func (e *end) check(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *end) pair(depth int) *verbs.QueuePair {
	e.t.Helper()
	q, err := e.domain.CreatePair(verbs.PairPlan{Sends: e.sends, Receives: e.recvs, SendDepth: depth, ReceiveDepth: depth, Inline: 64, Shared: e.shared})
	e.check(err)
	return q
}

// steps take a pair of from to ready-to-send against a pair of to.
func steps(from, to *end, remote verbs.PairNumber) []verbs.Transition {
	route := from.context.Route()
	return []verbs.Transition{
		{To: verbs.PairInit, Port: route.Port, Access: verbs.AccessRemoteRead | verbs.AccessRemoteWrite},
		{To: verbs.PairReadyToReceive, Remote: remote, ReceiveStart: 7, MTU: 1024, SourceGID: route.GID.Index, RemoteGID: to.context.Route().GID.GID,
			HopLimit: 16, ReadsAnswered: 16, ReceiverNotReady: 12},
		{To: verbs.PairReadyToSend, SendStart: 7, Timeout: 14, Retries: 3, NotReadyRetries: 3, ReadsAsked: 16},
	}
}

// connect makes two pairs that are connected and attached.
func connect(a, b *end, depth int) (*verbs.QueuePair, *verbs.QueuePair) {
	a.t.Helper()
	qa, qb := a.pair(depth), b.pair(depth)
	for _, step := range steps(a, b, qb.Number()) {
		a.check(qa.Move(step))
	}
	for _, step := range steps(b, a, qa.Number()) {
		b.check(qb.Move(step))
	}
	a.check(qa.Attach())
	b.check(qb.Attach())
	return qa, qb
}

// settle lets everything happen that lies ahead.
func settle(f *simverbs.Fabric) {
	for f.Step() {
	}
}

// poll reaps until the queues are empty.
func (e *end) poll() []verbs.Reaped {
	e.t.Helper()
	var all []verbs.Reaped
	for {
		reaped, taken, err := e.poller.Poll(e.out)
		e.check(err)
		all = append(all, e.out[:reaped]...)
		if taken == 0 {
			return all
		}
	}
}

// one reaps exactly one completion.
func (e *end) one(f *simverbs.Fabric) verbs.Reaped {
	e.t.Helper()
	settle(f)
	all := e.poll()
	if len(all) != 1 {
		e.t.Fatalf("%d completions, want 1: %+v", len(all), all)
	}
	return all[0]
}

// grant binds a window to a range for the peer of q and publishes it.
func (e *end) grant(f *simverbs.Fabric, w *verbs.MemoryWindow, q *verbs.QueuePair, offset, length uint64, a verbs.Access) verbs.RemoteKey {
	e.t.Helper()
	work, err := w.PrepareBind(1, q, e.region, addressOf(e.memory)+offset, length, a)
	e.check(err)
	e.check(q.PostSend([]verbs.Work{work}))
	if c := e.one(f); c.Status != verbs.WorkSuccess || c.Window != w {
		e.t.Fatalf("bind: %+v", c)
	}
	return w.Publish()
}

// closeAll ends everything in the order of SPEC R-18, as far as it goes.
func (e *end) closeAll(f *simverbs.Fabric, windows []*verbs.MemoryWindow, pairs ...*verbs.QueuePair) error {
	e.t.Helper()
	for _, q := range pairs {
		_ = q.Drain()
	}
	settle(f)
	for range 4 {
		if _, taken, err := e.poller.Poll(e.out); err == nil && taken == 0 {
			break
		}
	}
	for _, w := range windows {
		_ = w.Free()
	}
	for _, q := range pairs {
		if q.Detach() == nil {
			_ = q.Destroy()
		}
	}
	_ = e.region.Destroy()
	_ = e.domain.Close()
	_ = e.sends.Destroy()
	_ = e.recvs.Destroy()
	_ = e.channel.Destroy()
	return e.context.Close()
}

// agree compares the owners' counts with the twin's.
func (e *end) agree() {
	e.t.Helper()
	if e.context.Close() == nil {
		if l := e.process.Live(); !l.Empty() {
			e.t.Fatalf("closed, and alive: %+v", l)
		}
		return
	}
	e.agreeOpen()
}

// agreeOpen is agree for a context that is not to be closed.
func (e *end) agreeOpen() {
	e.t.Helper()
	l, c, d := e.process.Live(), e.context.Counts(), e.domain.Counts()
	have := fmt.Sprint(l.Domains, l.Channels, l.Queues, l.Pairs, l.Regions, l.Windows)
	want := fmt.Sprint(c.Domains, c.Channels, c.Queues, c.Pairs, d.Regions, d.Windows)
	if have != want {
		e.t.Fatalf("domains, channels, queues, pairs, regions, windows: the twin has %s, the owners say %s", have, want)
	}
}
