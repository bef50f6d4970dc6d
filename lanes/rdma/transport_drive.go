package rdma

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/verbs"
)

// Transport is one engine's share of RDMA: its devices, the registrations on them, and the Rails of each lane. It is
// made before the lanes start.
type Transport struct {
	config  Config
	calls   verbs.Calls
	slots   []verbs.Slot // by stable NIC ID; a failed one keeps its number
	devices []*Device    // usable ones, by rising NIC ID
	byNIC   [netproto.PathsMax]*Device
	rails   []*Rails // by order of making; the first one's lane has the monitor
	cache   cache
	monitor monitor
	counts  counters

	gaps    atomic.Pointer[[]Gap] // what it points to never changes
	grants  grantCounts
	hung    hung
	closing errand
	state   atomic.Uint32 // transportState
}

// counters are the transport's own (SPEC R-19).
type counters struct {
	ticks, queries, recoveries, progress atomic.Uint64
	built, accepted, refused, evicted    atomic.Uint64 // connections
	failed, gone, retained               atomic.Uint64
	late                                 atomic.Uint64 // completions and tags that nobody waits for any more
}

type transportState uint32

const (
	transportOpen transportState = iota
	transportClosing
	transportClosed
)

// ErrClosed refuses new work while rails or transport are closing. Nothing was posted.
var ErrClosed = errors.New("rdma: the transport is closing and takes no new work; nothing was posted")

// Open opens the devices that the configuration allows, on the caller's goroutine. It fails with *verbs.SelectionError
// when none is usable. The transport is returned with an error, too, when something that was opened could not be closed
// again: it lists that in Retained and takes no work; without anything retained it is nil. Slow.
func Open(calls verbs.Calls, config Config) (*Transport, error) {
	config.complete()
	t := &Transport{config: config, calls: calls}
	t.cache.open(t)
	slots, err := verbs.Discover(calls, config.Filter, config.Pins)
	t.slots = slots
	if err == nil {
		err = t.adoptAll()
	}
	if err == nil {
		return t, nil
	}
	t.state.Store(uint32(transportClosed))
	if len(t.Retained()) > 0 {
		return t, err
	}
	return nil, err
}

func (t *Transport) adoptAll() error {
	var first error
	for i := range t.slots {
		slot := &t.slots[i]
		if slot.Err != nil {
			continue
		}
		d, err := t.adopt(slot.Context)
		if err != nil {
			slot.Err = err
			if first == nil {
				first = err
			}
			continue
		}
		t.devices = append(t.devices, d)
		t.byNIC[d.NIC] = d
	}
	if len(t.devices) == 0 {
		return &verbs.SelectionError{Device: t.config.Pins.Device, Why: fmt.Sprintf("none of %d got a protection domain", len(t.slots)), Err: first}
	}
	return nil
}

// Config is what the transport was made with, completed with the defaults.
func (t *Transport) Config() *Config { return &t.config }

// Devices are the usable ones, paused ones included, by rising NIC ID.
func (t *Transport) Devices() []*Device { return t.devices }

// Device returns the device with a stable ID; nil: there is none that is usable.
func (t *Transport) Device(nic uint8) *Device {
	if int(nic) >= len(t.byNIC) {
		return nil
	}
	return t.byNIC[nic]
}

// Slots are all NICs that the filter and the pins allow, with the reason for those that are not usable.
func (t *Transport) Slots() []verbs.Slot { return t.slots }

// Paths is what the descriptor publishes (SPEC R-4): devices that can make grants, perhaps none. Any goroutine.
func (t *Transport) Paths() netproto.RDMAPaths {
	p := netproto.RDMAPaths{Host: t.config.Host, PairsMax: uint8(t.config.Width), SlicesMax: uint16(t.config.slicesMax())}
	if t.config.Device == DeviceStaged {
		p.StagedPart = netproto.PartFloor(t.config.StagedPart)
	}
	if t.config.Device == DeviceDirect { // each slice of a grant on a GPU takes a queue pair here
		p.SlicesMax = uint16(max(1, min(int64(p.SlicesMax), t.config.Budgets.Endpoints.Limit())))
	}
	for _, d := range t.devices {
		if d.NoSource == nil {
			p.Paths = append(p.Paths, d.path())
		}
	}
	return p
}

// HostTiers are the ways from each NIC to host memory of a NUMA node; -1: unknown, then the preferred node counts.
func (t *Transport) HostTiers(node int) (tiers Tiers) {
	if node < 0 && t.config.PreferredNUMANode != nil {
		node = *t.config.PreferredNUMANode
	}
	spots := make([]verbs.Spot, len(t.devices))
	for i, d := range t.devices {
		spots[i] = d.Spot
	}
	for i, tier := range verbs.HostTiers(node, spots) {
		tiers[t.devices[i].NIC] = uint8(tier)
	}
	return tiers
}

// Retained lists everything that stays because the proof of its end is missing (SPEC G-9), the oldest of each device
// first; any goroutine.
func (t *Transport) Retained() []verbs.Retained {
	var all []verbs.Retained
	for i := range t.slots {
		if c := t.slots[i].Context; c != nil {
			all = append(all, c.Retained()...)
		}
	}
	return all
}

// Stats are lifetime counts, read from any goroutine.
type Stats struct {
	MonitorTicks, RouteQueries, RouteRecoveries, ProgressRecoveries uint64 // SPEC R-19
	Built, Accepted, Refused, Evicted                               uint64 // connections: as requester, as source, refused or failed before they were ready, evicted
	Failed, Gone, RetainedConnections                               uint64 // connections: failed after they were ready, proven destroyed, retained
	LateCompletions                                                 uint64 // that paid nobody
}

// Stats reads the counts.
func (t *Transport) Stats() Stats {
	c := &t.counts
	return Stats{
		MonitorTicks: c.ticks.Load(), RouteQueries: c.queries.Load(), RouteRecoveries: c.recoveries.Load(), ProgressRecoveries: c.progress.Load(),
		Built: c.built.Load(), Accepted: c.accepted.Load(), Refused: c.refused.Load(), Evicted: c.evicted.Load(),
		Failed: c.failed.Load(), Gone: c.gone.Load(), RetainedConnections: c.retained.Load(), LateCompletions: c.late.Load(),
	}
}

// Close ends what is left below the lanes, in the order of SPEC R-18: regions, domains, contexts. All Rails were closed
// before, all registrations retired, and the cold loop turns. Closed is called on the first lane's loop, or on the cold
// loop when there were no lanes, with nil or with the first reason for which something is retained; a second call then
// answers the same. Regions that are still lent keep their domain and context.
func (t *Transport) Close(closed func(error)) {
	if !t.state.CompareAndSwap(uint32(transportOpen), uint32(transportClosing)) {
		panic(fmt.Sprintf("rdma: Close of a transport in state %d, want %d (open)", t.state.Load(), transportOpen))
	}
	var result error
	end := func() { result = t.end() }
	if len(t.rails) == 0 {
		end()
		t.state.Store(uint32(transportClosed))
		closed(result)
		return
	}
	home := t.rails[0].lane.Loop
	t.closing.send(t.config.Cold, home, end, func(reactor.Instant) {
		t.state.Store(uint32(transportClosed))
		closed(result)
	})
}

// end makes the native calls. Each refusal keeps what stands above it, and nothing is tried twice.
func (t *Transport) end() error {
	first := t.cache.end()
	note := func(err error) {
		if first == nil {
			first = err
		}
	}
	for _, d := range t.devices {
		note(d.Domain.Close())
		note(d.Context.Close())
	}
	for i := range t.slots {
		if s := &t.slots[i]; s.Context != nil && s.Err != nil {
			note(s.Context.Close())
		}
	}
	return first
}

// fault words an error for a transfer of which nothing was posted.
func fault(cause lanes.Cause, stage string, err error) *lanes.Fault {
	return &lanes.Fault{Cause: cause, Stage: stage, Err: err}
}
