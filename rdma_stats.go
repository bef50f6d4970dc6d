package orbitte

import (
	"slices"
	"strings"
	"time"

	"github.com/orbitte/orbitte/verbs"
)

// RDMAStats is a reading of an engine's RDMA. Numbers are counted since the engine was opened.
type RDMAStats struct {
	// Library says which native library carries it.
	Library string
	// Devices lists every device that the configuration allows, by NIC ID, with the reason when one is not usable.
	Devices []RDMADevice

	// The monitor (SPEC R-19): scans, looks at a device's port, addresses that came back, completion queues that were
	// made anew.
	MonitorTicks, RouteQueries, RouteRecoveries, ProgressRecoveries uint64
	// Connections: as requester, as source, refused or failed before they were ready, ended to make room, failed later,
	// proven destroyed, retained.
	ConnectionsBuilt, ConnectionsAccepted, ConnectionsRefused, ConnectionsEvicted uint64
	ConnectionsFailed, ConnectionsGone, ConnectionsRetained                       uint64
	// As requester: grants asked for, rebuilds after a cache miss, repeated questions after a refusal for lack of room,
	// grants given back unused, requests given up.
	GrantsAsked, CacheMisses, GrantRetries, GrantsSurrendered, Abandoned uint64
	// As source: slices granted, ended by their receipt, revoked; messages that fit no grant.
	Granted, Received, Revoked, Violations uint64
	// Staged counts requests, and requests served, that went through staging; a source counts each part of a request.
	Staged uint64
	// LateCompletions paid nobody.
	LateCompletions uint64
	// Unreached lists the pairs of devices between which this engine, as requester, could not build a connection lately, at
	// most 256. Other pairs are preferred to them for a time.
	Unreached []RDMAUnreached
}

// RDMAUnreached is a pair of devices that could not be connected. It is forgotten when it can be, when the local device gets
// its address back, and when it is of no use any more.
type RDMAUnreached struct {
	Peer           Epoch
	NIC, RemoteNIC int // stable IDs, here and at the peer
	Times          int // failures in a row
	// Since is how long ago the first of them was, and For how long other pairs are still preferred; 0: it is tried again
	// when its turn comes.
	Since, For time.Duration
	Reason     string
}

// RDMADevice is one device as the engine sees it.
type RDMADevice struct {
	NIC  int // stable ID, the bit in RDMAConfig.DeviceMask
	Name string
	// State is "active", "paused" (its port or address is not there, and comes back by itself), "fenced" (lost), or
	// "unusable" (never opened); Reason says why it is not active.
	State, Reason string
	// NoSource is why peers cannot reach this engine's memory through the device, which then carries its own requests only;
	// empty: they can (SPEC R-11).
	NoSource string
	// Port, GID and GIDIndex are the selected address; NUMANode is -1 when unknown.
	Port, GIDIndex int
	GID            string
	NUMANode       int
	// QueuePairs and the others are native objects that are open below the device, retained ones included.
	QueuePairs, CompletionQueues, Retained int64
}

// stats reads the transport; nil without RDMA.
func (p *rdmaPart) stats() *RDMAStats {
	if p == nil {
		return nil
	}
	t, g := p.transport.Stats(), p.transport.GrantStats()
	library := p.engine.config.Verbs.Library()
	s := &RDMAStats{
		Library:      joinWords(library.Name, library.Version, library.Path),
		MonitorTicks: t.MonitorTicks, RouteQueries: t.RouteQueries, RouteRecoveries: t.RouteRecoveries, ProgressRecoveries: t.ProgressRecoveries,
		ConnectionsBuilt: t.Built, ConnectionsAccepted: t.Accepted, ConnectionsRefused: t.Refused, ConnectionsEvicted: t.Evicted,
		ConnectionsFailed: t.Failed, ConnectionsGone: t.Gone, ConnectionsRetained: t.RetainedConnections,
		GrantsAsked: g.Asked, CacheMisses: g.Misses, GrantRetries: g.Retries, GrantsSurrendered: g.Surrendered, Abandoned: g.Abandoned,
		Granted: g.Granted, Received: g.Received, Revoked: g.Revoked, Violations: g.Violations, Staged: g.Staged, LateCompletions: t.LateCompletions,
	}
	now := int64(p.engine.clock().Now())
	for _, g := range p.transport.Gaps() {
		s.Unreached = append(s.Unreached, RDMAUnreached{
			Peer: g.Peer, NIC: int(g.Local), RemoteNIC: int(g.Remote), Times: g.Times,
			Since: time.Duration(now - g.Since), For: time.Duration(max(0, g.Until-now)), Reason: g.Reason,
		})
	}
	for nic, slot := range p.transport.Slots() {
		s.Devices = append(s.Devices, p.deviceOf(nic, slot))
	}
	return s
}

func (p *rdmaPart) deviceOf(nic int, slot verbs.Slot) RDMADevice {
	d := RDMADevice{NIC: nic, Name: slot.Info.Name, State: "unusable", NUMANode: slot.Info.NUMANode}
	if slot.Err != nil {
		d.Reason = slot.Err.Error()
	}
	device := p.transport.Device(uint8(nic))
	if device == nil {
		return d
	}
	if device.NoSource != nil {
		d.NoSource = device.NoSource.Error()
	}
	state, why := device.State()
	route, counts := device.Context.Route(), device.Context.Counts()
	d.State, d.Reason, d.NUMANode = state.String(), why, device.Spot.Node
	d.Port, d.GIDIndex, d.GID = int(route.Port), route.GID.Index, route.GID.GID.String()
	d.QueuePairs, d.CompletionQueues, d.Retained = counts.Pairs, counts.Queues, counts.Retained
	return d
}

func joinWords(words ...string) string {
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " ")
}
