package simverbs

import (
	"syscall"

	"github.com/orbitte/orbitte/verbs"
)

// Process is one process's native library. It implements verbs.Calls.
type Process struct {
	fabric *Fabric
	host   *Host
	name   string
	killed bool
	// locked bytes are registered; lockedMax bounds them unless it is 0.
	locked, lockedMax uint64
	counts            [callKinds]uint64

	// objects by handle; looked up only, and walked in the order of their handles where all must be seen.
	contexts map[verbs.DeviceHandle]*context
	domains  map[verbs.DomainHandle]*domain
	channels map[verbs.ChannelHandle]*channel
	queues   map[verbs.QueueHandle]*queue
	pairs    map[verbs.PairHandle]*pair
	regions  map[verbs.RegionHandle]*region
	windows  map[verbs.WindowHandle]*window
}

var _ verbs.Calls = (*Process)(nil)

// Process starts a process on the host.
func (h *Host) Process(name string) *Process {
	h.fabric.enter()
	defer h.fabric.leave()
	p := &Process{
		fabric: h.fabric, host: h, name: name,
		contexts: map[verbs.DeviceHandle]*context{}, domains: map[verbs.DomainHandle]*domain{},
		channels: map[verbs.ChannelHandle]*channel{}, queues: map[verbs.QueueHandle]*queue{},
		pairs: map[verbs.PairHandle]*pair{}, regions: map[verbs.RegionHandle]*region{}, windows: map[verbs.WindowHandle]*window{},
	}
	h.processes = append(h.processes, p)
	return p
}

// Name is the name that the process was given.
func (p *Process) Name() string { return p.name }

// Host is where the process runs.
func (p *Process) Host() *Host { return p.host }

// Library implements verbs.Calls.
func (p *Process) Library() verbs.Library {
	return verbs.Library{Name: "simverbs", Version: p.fabric.options.Personality.String()}
}

// Live counts objects by kind.
type Live struct {
	Host, Process                                               string
	Devices, Domains, Channels, Queues, Pairs, Regions, Windows int
}

// Empty is true exactly when nothing is counted.
func (l Live) Empty() bool {
	l.Host, l.Process = "", ""
	return l == Live{}
}

// Live lists the processes that have native objects left, in the order they were started, with how many of each kind.
func (f *Fabric) Live() []Live {
	f.enter()
	defer f.leave()
	var all []Live
	for _, h := range f.hosts {
		for _, p := range h.processes {
			l := p.live()
			if !l.Empty() {
				all = append(all, l)
			}
		}
	}
	return all
}

// Live counts what the process has left.
func (p *Process) Live() Live {
	p.fabric.enter()
	defer p.fabric.leave()
	return p.live()
}

func (p *Process) live() Live {
	return Live{
		Host: p.host.name, Process: p.name, Devices: len(p.contexts), Domains: len(p.domains), Channels: len(p.channels),
		Queues: len(p.queues), Pairs: len(p.pairs), Regions: len(p.regions), Windows: len(p.windows),
	}
}

// Calls says how often a call was made.
func (p *Process) Calls(c Call) uint64 {
	p.fabric.enter()
	defer p.fabric.leave()
	return p.counts[c]
}

// Kill ends the process at once, as SIGKILL does: its objects are gone, its memory is touched no more, and its peers
// hear nothing.
func (p *Process) Kill() {
	p.fabric.enter()
	defer p.fabric.leave()
	p.kill()
}

func (p *Process) kill() {
	p.killed = true
	for _, q := range sorted(p.pairs) {
		q.end()
	}
	for _, w := range sorted(p.windows) {
		w.end()
	}
	for _, r := range sorted(p.regions) {
		r.end()
	}
	for _, q := range sorted(p.queues) {
		q.end()
	}
	for _, c := range sorted(p.channels) {
		c.end()
	}
	for _, d := range sorted(p.domains) {
		d.end()
	}
	for _, c := range sorted(p.contexts) {
		c.end()
	}
}

// pairsOf lists the pairs of one opened device, oldest first.
func (p *Process) pairsOf(c *context) []*pair {
	var all []*pair
	for _, q := range sorted(p.pairs) {
		if q.domain.context == c {
			all = append(all, q)
		}
	}
	return all
}

// sorted lists the values of a table of objects, oldest first.
func sorted[H ~uint64, T any](table map[H]T) []T {
	handles := make([]H, 0, len(table))
	for h := range table {
		handles = append(handles, h)
	}
	sortHandles(handles)
	all := make([]T, 0, len(table))
	for _, h := range handles {
		all = append(all, table[h])
	}
	return all
}

// fail makes the error of a call.
func fail(c Call, object string, errno syscall.Errno) error {
	return &verbs.CallError{Call: c.String(), Object: object, Errno: errno}
}

// begin takes the gate for a call that may be slow and may be made to fail by a plan. The caller leaves, except after
// an error.
func (p *Process) begin(c Call, object string) error {
	f := p.fabric
	f.enter()
	p.counts[c]++
	errno := f.planCall(p, c)
	if delay := f.planSlow(p, c); delay > 0 {
		f.leave()
		f.sleep(delay)
		f.enter()
	}
	if p.killed {
		errno = syscall.EIO // nobody is there to see it
	}
	if errno == 0 {
		return nil
	}
	f.leave()
	return fail(c, object, errno)
}

// lost reports a handle that names nothing: a use after the end, which a real library does not survive.
func (p *Process) lost(c Call, kind string, handle uint64) error {
	if !p.killed {
		p.fabric.violate(p, "%s of %s %d, which is not (or no longer) there", c, kind, handle)
	}
	return fail(c, kind, syscall.EINVAL)
}

// Call names one native call, for counts and fault plans.
type Call uint8

const (
	callNone Call = iota
	CallListDevices
	CallOpenDevice
	CallCloseDevice
	CallQueryDevice
	CallQueryPort
	CallQueryGID
	CallAsyncEvent
	CallAllocateDomain
	CallFreeDomain
	CallCreateChannel
	CallDestroyChannel
	CallQueueEvent
	CallCreateQueue
	CallDestroyQueue
	CallArm
	CallPoll
	CallCreatePair
	CallModifyPair
	CallQueryPair
	CallDestroyPair
	CallRegister
	CallRegisterDescriptor
	CallDeregister
	CallAllocateWindow
	CallFreeWindow
	CallPostSend
	CallPostReceive
	callKinds
)

var callNames = [callKinds]string{
	"", "ibv_get_device_list", "ibv_open_device", "ibv_close_device", "ibv_query_device", "ibv_query_port", "ibv_query_gid_ex",
	"ibv_get_async_event", "ibv_alloc_pd", "ibv_dealloc_pd", "ibv_create_comp_channel", "ibv_destroy_comp_channel",
	"ibv_get_cq_event", "ibv_create_cq", "ibv_destroy_cq", "ibv_req_notify_cq", "ibv_poll_cq", "ibv_create_qp",
	"ibv_modify_qp", "ibv_query_qp", "ibv_destroy_qp", "ibv_reg_mr", "ibv_reg_dmabuf_mr", "ibv_dereg_mr", "ibv_alloc_mw",
	"ibv_dealloc_mw", "ibv_post_send", "ibv_post_recv",
}

func (c Call) String() string { return callNames[c] }
