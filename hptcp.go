package orbitte

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/lanes/hptcp"
	"github.com/orbitte/orbitte/netproto"
)

var (
	errNoHPTCP     = lacking("this engine has no HP-TCP: Config.HPTCP is not set", "open the engine with Config.HPTCP; &HPTCPConfig{} takes every default")
	errPeerNoHPTCP = lacking("the peer publishes no HP-TCP: it was opened without Config.HPTCP", "open the peer's engine with Config.HPTCP, or name another transport")
	errAtomicElse  = errors.New("an Atomic request is for TransportHPTCP; TCP with Staged placement on both sides is so without it")
	errAtomicOwn   = lacking("an Atomic request with several ranges is not to be had from the engine itself, which copies one after the other", "leave Atomic away, or submit each range by itself")
)

// hptcpPart is what an engine with HP-TCP has besides. Each runner has a pool and a service of its own.
type hptcpPart struct {
	counts   hptcp.Counts
	listener *control.Listener
	bound    netip.AddrPort
	endpoint *netproto.HPTCPEndpoint // what peers are told; set before the lanes start
}

// hptcpBudgets are each lane's stream slots; empty without HP-TCP.
type hptcpBudgets struct{ streams, sessions []*budgets.Budget }

func newHPTCPBudgets(add func(name, unit string, limit int64) *budgets.Budget, limit, lanes int) (b hptcpBudgets) {
	for i := range lanes {
		share := shareOf(limit, lanes, i)
		b.streams = append(b.streams, add(fmt.Sprintf("HP-TCP peer streams, lane %d", i), "streams", share))
		b.sessions = append(b.sessions, add(fmt.Sprintf("HP-TCP accepted streams, lane %d", i), "streams", share))
	}
	return b
}

// shareOf is one lane's part of a limit; the parts of all lanes add up to it exactly.
func shareOf(limit, lanes, lane int) int64 {
	share := int64(limit / lanes)
	if lane < limit%lanes {
		share++
	}
	return share
}

// buildHPTCP gives each lane its pool and service; nothing runs yet.
func (e *Engine) buildHPTCP() {
	if e.config.HPTCP == nil {
		return
	}
	e.hptcp = &hptcpPart{}
	cpus := e.config.HPTCP.Streams // no machine's number in a simulation
	if e.config.OpenKernel == nil {
		cpus = lanesFor(len(allowedCPUs()), cpuQuota("/sys/fs/cgroup", "/proc/self/cgroup"), false)
	}
	for i, r := range e.runners {
		c := e.hptcpConfig(cpus)
		c.Streams, c.Sessions = e.budgets.hptcp.streams[i], e.budgets.hptcp.sessions[i]
		r.fast, r.fastServer = hptcp.NewPool(r.lane, c), hptcp.NewService(r.lane, c)
	}
}

func (e *Engine) hptcpConfig(cpus int) hptcp.Config {
	c := e.config.HPTCP
	return hptcp.Config{
		Gate: e.admission.Gate, StreamsMax: c.Streams, CPUs: cpus, ChunkBytes: c.ChunkBytes, InFlightBytes: c.InFlightBytes,
		Checksums: c.Checksums, Counts: &e.hptcp.counts,
	}
}

// listenHPTCP opens the data listener beside the control listener, which is bound already.
func (e *Engine) listenHPTCP(control netip.AddrPort) error {
	if e.hptcp == nil {
		return nil
	}
	bind := netip.AddrPortFrom(control.Addr(), 0)
	if text := e.config.HPTCP.Bind; text != "" {
		var err error
		if bind, err = bindAddress("Config.HPTCP.Bind", text); err != nil {
			return err
		}
	}
	if err := e.reachesData(bind.Addr()); err != nil {
		return err
	}
	listener, bound, err := listenOn(e, "Config.HPTCP.Bind", bind, func(r *runner) *hptcp.Service { return r.fastServer })
	if errors.Is(err, syscall.EADDRINUSE) && meets(bind, control) {
		return invalid("Config.HPTCP.Bind is %q, but Config.Bind listens on that port already (%v); each needs a port of its own, or 0 for a free one", e.config.HPTCP.Bind, control)
	}
	if err != nil {
		return err
	}
	p := e.hptcp
	p.listener, p.bound = listener, bound
	told := e.hptcpConfig(0)
	told.StreamsMax = min(told.StreamsMax, e.config.HPTCP.Limits.Streams) // more of one peer's would not be accepted
	p.endpoint = told.Endpoint(familyOf(bound.Addr()), bound.Port())
	return nil
}

// meets is true exactly when two listeners cannot be there both.
func meets(a, b netip.AddrPort) bool {
	return a.Port() == b.Port() && (a.Addr() == b.Addr() || a.Addr().IsUnspecified() || b.Addr().IsUnspecified())
}

// reachesData refuses a data listener that peers cannot reach: they connect to it under the host of the endpoint. An endpoint
// that is configured may lead to any address of this host.
func (e *Engine) reachesData(data netip.Addr) error {
	endpoint, err := netip.ParseAddrPort(e.endpoint)
	if e.config.Advertise != "" || err != nil {
		return nil
	}
	host := endpoint.Addr().Unmap()
	if data == host || data.IsUnspecified() && (data.Is6() || host.Is4()) {
		return nil
	}
	return invalid("Config.HPTCP.Bind is %q, but peers look for the data port under the host of the endpoint, %v; bind both to one host, or name in Config.Advertise a host that leads to both", e.config.HPTCP.Bind, host)
}

func familyOf(a netip.Addr) netproto.AddressFamily {
	if a.Is4() {
		return netproto.FamilyIPv4
	}
	return netproto.FamilyIPv6
}

// trailer is what the descriptor says about HP-TCP; nil without.
func (p *hptcpPart) trailer() *netproto.HPTCPEndpoint {
	if p == nil {
		return nil
	}
	return p.endpoint
}

// learnHPTCP hands what the peer published to its lane, once: an endpoint does not change in a life.
func (e *Engine) learnHPTCP(p *peer, epoch Epoch, d *netproto.Descriptor) {
	if e.hptcp == nil || d.HPTCP == nil {
		return
	}
	endpoint := *d.HPTCP
	if limit := d.Capabilities.TransferBytesMax; limit > 0 { // its requests are payloads like any other
		endpoint.ChunkBytesMax = min(endpoint.ChunkBytesMax, limit)
	}
	u := &hptcpUpdate{peer: p, epoch: epoch, endpoint: endpoint, lanes: len(e.runners)}
	_ = p.runner.lane.Post(&u.letter, u) // a lane that has ended carries nothing any more
}

// dataAddresses are those of the peer with the data listener's port; those of its family come first.
func dataAddresses(addresses []netip.AddrPort, endpoint netproto.HPTCPEndpoint) []netip.AddrPort {
	list := make([]netip.AddrPort, len(addresses))
	for i, a := range addresses {
		list[i] = netip.AddrPortFrom(a.Addr(), endpoint.Port)
	}
	slices.SortStableFunc(list, func(a, b netip.AddrPort) int {
		return foreign(a, endpoint.Family) - foreign(b, endpoint.Family)
	})
	return list
}

func foreign(a netip.AddrPort, f netproto.AddressFamily) int {
	if familyOf(a.Addr()) == f {
		return 0
	}
	return 1
}
