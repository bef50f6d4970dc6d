package orbitte

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/rdma"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/verbs"
)

// slowLane is the number of the loop for RDMA's slow native calls: devices, registrations, queue pairs. Name look-ups
// have a loop of their own, so that a slow name server never holds a connection up.
const slowLane = -2

// rdmaPart is what an engine with RDMA has besides. It is made before the lanes start; Close ends it after all work.
type rdmaPart struct {
	engine    *Engine
	transport *rdma.Transport
	slow      *runner
	nudge     nudge
	budgets   rdma.Budgets

	// native guards the transport's Register and Retire. Whoever gives it back drains, see rdma_memory.go. No data lane
	// takes it, and the slow one only when it is free.
	native sync.Mutex
	memory memoryBook

	closing *transportClose // set by the first Close that comes so far; guarded by Engine.mu
}

func newRDMABudgets(add func(name, unit string, limit int64) *budgets.Budget, l *RDMALimits) rdma.Budgets {
	return rdma.Budgets{
		Endpoints:     add("RDMA queue pairs", "queue pairs", int64(l.Endpoints)),
		Grants:        add("RDMA grants", "grants", int64(l.Grants)),
		DirectBytes:   add("RDMA direct bytes", "bytes", int64(l.DirectBytes)),
		StagingBytes:  add("RDMA staging bytes", "bytes", int64(l.StagingBytes)),
		CachedRegions: add("RDMA memory regions", "regions", int64(l.CachedRegions)),
		CachedBytes:   add("RDMA memory region bytes", "bytes", int64(l.CachedBytes)),
	}
}

// buildRDMA opens the devices and makes each lane's share, before anything runs. A failed one leaves nothing behind but
// what a device refused to end, which the error names.
func (e *Engine) buildRDMA() error {
	if e.config.RDMA == nil {
		return nil
	}
	kernel, _, err := e.openKernel(slowLane)
	if err != nil {
		return err
	}
	mode := reactor.EventDriven
	if e.config.Progress == Manual {
		mode = reactor.Manual
	}
	p := &rdmaPart{engine: e, budgets: e.budgets.rdma}
	p.slow = &runner{
		lane:    &lanes.Lane{Loop: reactor.NewLoop(kernel, reactor.Options{Name: "cold lane of RDMA", Mode: mode}), Index: slowLane, Policy: &e.policy},
		stopped: make(chan struct{}),
	}
	e.rdma = p
	p.nudge.slow = p.slow.lane.Loop
	if mode == reactor.Manual {
		p.nudge.driven = e.runners[0].lane.Loop
	}
	if p.transport, err = rdma.Open(e.config.Verbs, p.settings()); err != nil {
		return unusable(err)
	}
	if err := p.maskAllows(); err != nil {
		return err
	}
	for _, r := range e.runners {
		if r.rails, err = p.transport.Rails(r.lane); err != nil {
			return unusable(err)
		}
		r.rails.Serve(r.server)
		if r.pins != nil {
			r.rails.Source().Pinned(r.pins)
		}
	}
	return nil
}

// maskAllows refuses a mask that leaves no device to any request.
func (p *rdmaPart) maskAllows() error {
	mask, slots := p.engine.config.RDMA.DeviceMask, p.transport.Slots()
	if mask == 0 {
		return nil
	}
	var names []string
	for nic, s := range slots {
		if mask&(1<<nic) != 0 {
			return nil
		}
		names = append(names, fmt.Sprintf("%d is %s", nic, s.Info.Name))
	}
	return invalid("Config.RDMA.DeviceMask is %#x, which allows none of this host's devices: bit %s", mask, strings.Join(names, ", "))
}

// unusable is a failure to open devices: what the user asked for is not there (field case F-70).
func unusable(err error) error {
	return &Error{Index: -1, Class: ErrUnavailable, Cause: err, situation: opening}
}

// abandon ends a transport whose lanes do not run. What a device refuses to end is named by the error.
func (p *rdmaPart) abandon() error {
	if p == nil || p.transport == nil {
		return nil
	}
	return p.transport.Abandon()
}

// settings are the transport's.
func (p *rdmaPart) settings() rdma.Config {
	c := p.engine.config.RDMA
	settings := rdma.Config{
		Pins: c.pins(), Filter: filter(c), Mask: c.DeviceMask, PreferredNUMANode: c.PreferredNUMANode,
		Host: netproto.HostMemoryPolicy(c.HostMemory), Device: rdma.DevicePolicy(c.DeviceMemory), Unsynced: c.DirectWithoutSyncMemOps, Progress: rdma.Progress(c.Progress), Block: c.BlockBytes, Width: c.Width,
		SendDepth: c.Limits.SendWork, QueueEntries: c.Limits.CompletionEntries, KeyIndices: c.Limits.WindowKeyIndices,
		ConnectTimeout: c.ConnectTimeout, Budgets: p.budgets, Epoch: p.engine.policy.Epoch,
		Gauge:  func(b *budgets.Budget) { p.engine.budgets.ledger.Add(b) }, // before anybody reads it
		Random: p.engine.random(), Cold: &p.nudge,
	}
	settings.Thread = p.engine.threads()
	if p.engine.cuda != nil {
		settings.StagedPart = p.engine.config.Limits.StagingChunkBytes
	}
	if p.engine.config.Verbs.Library().Path != "" { // a twin's devices are not in this machine
		settings.Sysfs = sysfs()
	}
	return settings
}

// nudge takes letters for the slow loop. In manual mode that has no thread: whoever drives the lanes may be waiting in the
// kernel of the first one, which is woken, so that the letter does not lie there until the lane's next timer is due.
type nudge struct {
	slow   *reactor.Loop
	driven *reactor.Loop // nil unless in manual mode
	letter reactor.Letter
}

// Post (rdma.Cold).
func (n *nudge) Post(m *reactor.Letter, r reactor.Recipient) error {
	if err := n.slow.Post(m, r); err != nil || n.driven == nil {
		return err
	}
	_ = n.driven.Post(&n.letter, n) // a lane that has ended has nobody who waits in it
	return nil
}

// Receive does nothing: to be woken was all (reactor.Recipient).
func (n *nudge) Receive(*reactor.Letter, reactor.Instant) {}

func sysfs() fs.FS { return os.DirFS("/sys") }

// random is crypto/rand; for a simulation, which chooses the epoch and the kernels, it is a stream that follows from the
// epoch, so that a world can be repeated.
func (e *Engine) random() func([]byte) {
	if e.config.OpenKernel == nil || e.config.Epoch.IsZero() {
		return func(b []byte) { rand.Read(b) } // never fails (crypto/rand, Go 1.24)
	}
	s := &stream{epoch: e.config.Epoch}
	return s.read
}

// stream is a sequence of bytes that follows from an epoch.
type stream struct {
	mu    sync.Mutex
	epoch Epoch
	next  uint64
}

func (s *stream) read(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(b) > 0 {
		s.next++
		block := sha256.Sum256(binary.BigEndian.AppendUint64(s.epoch[:], s.next))
		b = b[copy(b, block[:]):]
	}
}

// startRails lets each lane look at its queues, and the first one watch the devices.
func (e *Engine) startRails() error {
	if e.rdma == nil {
		return nil
	}
	for _, r := range e.runners {
		if err := r.call(context.Background(), e, r.rails.Start); err != nil {
			return err
		}
	}
	return nil
}

// paths is what the descriptor says about RDMA now; nil without.
func (e *Engine) paths() *netproto.RDMAPaths {
	if e.rdma == nil {
		return nil
	}
	p := e.rdma.transport.Paths()
	if len(p.Paths) == 0 { // no device can make grants: this engine is a requester only
		return nil
	}
	return &p
}

// descriptor is what peers see now.
func (e *Engine) descriptor() netproto.Descriptor {
	return netproto.Descriptor{Capabilities: e.capabilities(), Regions: e.tracker.Mirror().Regions(), RDMA: e.paths(), HPTCP: e.hptcp.trailer()}
}

// retained says why an engine that is closed still holds something of a device.
func retained(err error) error {
	return &Error{Op: "Close", Index: -1, Class: ErrUnquiesced, Cause: fmt.Errorf("RDMA: %w", err), situation: keeping}
}

// transportClose is the end of the devices, which one call of Close begins and all wait for.
type transportClose struct {
	rails chan struct{} // closed when every lane's connections and queues have ended
	over  chan struct{} // closed when the devices are closed
	begun bool          // true exactly when the devices were told to end; guarded by Engine.mu
	err   error         // why something is retained; read after over
}

// closeRails ends connections and queues of every lane, while the control streams still carry what must be said.
func (e *Engine) closeRails(ctx context.Context) error {
	p := e.rdma
	if p == nil {
		return nil
	}
	e.mu.Lock()
	first := p.closing == nil
	if first {
		p.closing = &transportClose{rails: make(chan struct{}), over: make(chan struct{})}
	}
	c := p.closing
	e.mu.Unlock()
	if first {
		ends := newCountdown(len(e.runners), func() { close(c.rails) })
		for _, r := range e.runners {
			x := &call{done: make(chan struct{}), do: func() { r.rails.Close(ends.one) }}
			if r.lane.Post(&x.letter, x) != nil {
				ends.one() // the lane has ended; what was left on it is retained, and the transport says so
			}
		}
	}
	return e.quiet(ctx, "Close", c.rails, func() string { return "RDMA connections are being closed" })
}

// closeTransport deregisters everything, then closes the devices, in the order of SPEC R-18. What a device refuses is
// retained and told; the lanes end all the same.
func (e *Engine) closeTransport(ctx context.Context) error {
	p := e.rdma
	if p == nil {
		return nil
	}
	c := p.closing
	e.mu.Lock()
	first := !c.begun
	c.begun = true
	e.mu.Unlock()
	if first {
		p.retireAll(func() {
			p.transport.Close(func(err error) {
				c.err = err
				close(c.over)
			})
		})
	}
	return e.quiet(ctx, "Close", c.over, func() string { return "RDMA devices are being closed" })
}

// ended is what Close says about the devices once the lanes have ended: nil when nothing is retained.
func (p *rdmaPart) ended() error {
	if p == nil || p.closing == nil || p.closing.err == nil {
		return nil
	}
	return retained(p.closing.err)
}

// resources lists what the devices did not give back (SPEC G-9).
func (p *rdmaPart) resources() []Resource {
	if p == nil || p.transport == nil {
		return nil
	}
	list := p.memory.kept()
	for _, r := range p.transport.Residues() {
		list = append(list, Resource{"RDMA work", r.Object, "the device is not proven to be done with it: " + textOf(r.Reason)})
	}
	for _, r := range p.transport.Retained() {
		list = append(list, Resource{"RDMA object", r.Object, r.Reason.Error()})
	}
	return list
}

func filter(c *RDMAConfig) verbs.Filter {
	return verbs.Filter{Whitelist: c.Whitelist, Blacklist: c.Blacklist}
}

func textOf(err error) string {
	if err == nil {
		return "no reason is known"
	}
	return err.Error()
}
