package world

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/test/faults"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// OracleFabric finds a use of the native library that a real one does not survive, or does not notice: of what was
// destroyed, of a window from both ends, of a pair with debt.
const OracleFabric = "fabric"

// cleanup is how much longer than others a request over RDMA may take after its deadline. What has no proof of its end
// is kept for good only when one cleanup window of 30 s has passed, and the peer is told within another second.
const cleanup = 31 * time.Second

const (
	// railBeat is how far the clock goes in each turn after fruitlessMax of them in which nobody did anything, once the script
	// is over. A lane that polls its completion queues never waits and so tells the world of no timer, and an engine of several
	// lanes that the program drives waits for 50 µs at a time: a cleanup window would take 600,000 turns.
	railBeat = time.Millisecond
	// gpuBeat is the same where there are GPUs only: a call that waits looks again every millisecond by itself.
	gpuBeat      = 16 * time.Millisecond
	fruitlessMax = 64
)

// stride lets the time pass in a world of devices in which nothing happens any more. It says whether it did.
func (r *run) stride(before int) bool {
	if r.fruitless++; r.worked != before {
		r.fruitless = 0
	}
	if r.fruitless <= fruitlessMax || r.turn <= r.script.Turns() {
		return false
	}
	switch {
	case r.fabric != nil:
		r.net.Advance(railBeat)
	case r.gpus:
		r.net.Advance(gpuBeat)
	default:
		return false
	}
	return true
}

// newFabric makes the devices of all hosts; nil without RDMA.
func (r *run) newFabric() *simverbs.Fabric {
	personality := r.script.World.Int(faults.RDMA)
	if personality == 0 {
		return nil
	}
	f := simverbs.NewFabric(uint64(r.script.World.Get(faults.Seed)), simverbs.Options{
		Personality: simverbs.Personality(personality - 1),
		Now:         func() time.Duration { return time.Duration(r.net.Now()) },
		Later:       r.net.Later,
		Mapped:      r.ofHost,
		Violation:   func(err error) { r.violate(OracleFabric, "%v", err) },
		Peer:        r.byAddress,
		Export:      r.byDescriptor,
		Signal: func(n *simverbs.Process) (int, func(), func(), func(), error) {
			process := r.natives[n.Name()]
			d, signal, err := process.Signal()
			return int(d), signal, func() { process.Unsignal(d) }, func() {
				for _, k := range process.Kernels()[:min(1, len(process.Kernels()))] { // none: the engine has given its kernels back
					_ = k.Close(d)
				}
			}, err
		},
	})
	r.natives, r.owners = map[string]*simkernel.Process{}, map[string]*life{}
	var devices []simverbs.DeviceSpec
	for i := range r.rails() {
		devices = append(devices, simverbs.DeviceSpec{Name: deviceName(i)})
	}
	for _, s := range r.slots {
		f.Host(s.host.String(), devices...)
	}
	return f
}

func (r *run) rails() int { return min(max(1, r.script.World.Int(faults.Rails)), 8) }

func deviceName(rail int) string { return fmt.Sprintf("rail%d", rail) }

// wireUp gives an engine that is about to start its native library.
func (l *life) wireUp(c *orbitte.Config) {
	r, own := l.run, l.slot.config
	if r.fabric == nil || own.Bool(faults.Plain) {
		return
	}
	l.native = r.fabric.Host(l.slot.host.String()).Process(l.process.Name())
	r.natives[l.process.Name()], r.owners[l.process.Name()] = l.process, l
	progress := orbitte.RDMAEventDriven
	if own.Get(faults.RDMAProgress) == 1 {
		progress = orbitte.RDMAPolling
	}
	l.tomb = newTomb(l)
	c.Verbs = l.tomb
	c.RDMA = &orbitte.RDMAConfig{
		HostMemory: orbitte.HostMemory(own.Get(faults.HostMemory)), Progress: progress, Width: own.Int(faults.Width),
		BlockBytes: uint64(own.Get(faults.BlockBytes)),
		Limits: orbitte.RDMALimits{
			Endpoints: own.Int(faults.Endpoints), Grants: own.Int(faults.Grants), SendWork: own.Int(faults.SendWork),
			CompletionEntries: own.Int(faults.CompletionEntries), DirectBytes: uint64(own.Get(faults.DirectBytes)),
			StagingBytes: uint64(own.Get(faults.StagingBytes)), CachedRegions: own.Int(faults.CachedRegions),
			WindowKeyIndices: own.Int(faults.KeyIndices),
		},
	}
}

// direct says whether the life's devices reach its memory themselves.
func (l *life) exposes() bool { return l.slot.config.Get(faults.HostMemory) == 0 }

// lookAgain explains what devices have done to any memory since it was last looked at.
func (r *run) lookAgain() {
	if r.fabric == nil {
		return
	}
	for _, l := range r.lives {
		if l.alive() && l.native != nil && r.violation == nil {
			r.explain(l)
		}
	}
}

// late is how long after its deadline a submission may end.
func (s *submission) late() time.Duration {
	extra := time.Duration(0)
	for _, o := range s.ops {
		if o.rdma {
			extra = max(extra, cleanup)
		}
		extra = max(extra, o.copyTime())
	}
	return grace + extra
}

// unquiesced holds a claim that memory is not quiet against the faults of the world: only a library that refused a call, or
// lost a completion, leaves that unknown (G-9, R-17).
func (r *run) unquiesced(s *submission, err error) bool {
	if !s.life.doubtful || class(err) != "unquiesced" {
		return false
	}
	if o := s.failedOp(err); o.overRDMA() {
		r.count("rdma: unquiesced")
	} else {
		r.count("cuda: unquiesced")
	}
	s.life.keeps = true
	return true
}

// killNative ends the devices' part of a killed process. An engine that already kept something for good, because its library
// had refused a call or lost a proof, is not buried: its memory stays mapped, as it has to.
func (l *life) killNative() {
	if l.native != nil {
		l.native.Kill()
		l.tomb.closed = true
	}
	if l.vault != nil {
		l.vault.closed = true
	}
	if (l.native != nil || l.vault != nil) && len(l.engine.RetainedResources()) > 0 {
		l.lost = true
		l.run.leaks = true
	}
}

// port is one port of the engine's host.
func (r *run) port(a faults.Action, p faults.Param) *simverbs.Port {
	if r.fabric == nil || a.Int(p) >= len(r.slots) {
		return nil
	}
	return r.fabric.Host(r.slots[a.Int(p)].host.String()).Device(deviceName(a.Int(faults.Rail) % r.rails())).Port(1)
}

func (r *run) portDown(a faults.Action) string { return r.atPort(a, (*simverbs.Port).Down) }

func (r *run) portUp(a faults.Action) string { return r.atPort(a, (*simverbs.Port).Up) }

func (r *run) atPort(a faults.Action, do func(*simverbs.Port)) string {
	p := r.port(a, faults.EngineOf)
	if p == nil {
		return absent
	}
	do(p)
	return "ok"
}

// changeGID moves the IPv4 entry between its two places in the table.
func (r *run) changeGID(a faults.Action) string {
	if r.port(a, faults.EngineOf) == nil {
		return absent
	}
	fault := simverbs.Fault{
		Kind: simverbs.GIDMove, Host: r.slots[a.Int(faults.EngineOf)].host.String(), Device: deviceName(a.Int(faults.Rail) % r.rails()), GID: 1, To: 3,
	}
	if r.moved[fault.Host+fault.Device] {
		fault.GID, fault.To = 3, 1
	}
	r.moved[fault.Host+fault.Device] = fault.GID == 1
	r.fabric.Plan(fault)
	return "ok"
}

func (r *run) removeDevice(a faults.Action) string {
	if r.port(a, faults.EngineOf) == nil {
		return absent
	}
	r.fabric.Host(r.slots[a.Int(faults.EngineOf)].host.String()).Device(deviceName(a.Int(faults.Rail) % r.rails())).Remove()
	if l := r.life(a, faults.EngineOf); l != nil { // its pairs cannot be brought to an end by work any more
		l.doubtful = true
	}
	return "ok"
}

func (r *run) cutRail(a faults.Action) string {
	from, to := r.port(a, faults.EngineOf), r.port(a, faults.Peer)
	if from == nil || to == nil || from == to {
		return absent
	}
	r.fabric.Cut(from, to, a.Bool(faults.On))
	return "ok"
}

func (r *run) delayRail(a faults.Action) string {
	from, to := r.port(a, faults.EngineOf), r.port(a, faults.Peer)
	if from == nil || to == nil || from == to {
		return absent
	}
	r.fabric.Delay(from, to, a.Duration(faults.DelayMin), a.Duration(faults.DelayMax))
	return "ok"
}

// plan gives the fabric a fault of the engine's process. One that takes a proof away makes the life doubtful.
func (r *run) plan(a faults.Action, fault simverbs.Fault, doubt bool) string {
	l := r.life(a, faults.EngineOf)
	if l == nil || l.native == nil {
		return absent
	}
	fault.Process, fault.Index, fault.Count = l.native.Name(), a.Int(faults.Index), min(a.Int(faults.Count), 1<<20)
	l.doubtful = l.doubtful || doubt
	r.fabric.Plan(fault)
	return "ok"
}

func (r *run) spoilCompletion(a faults.Action) string {
	kinds := []simverbs.FaultKind{
		simverbs.LoseCompletion, simverbs.LateCompletion, simverbs.DoubleCompletion, simverbs.ForeignID, simverbs.ForeignPair, simverbs.FullQueue,
	}
	kind := kinds[a.Int(faults.Way)]
	return r.plan(a, simverbs.Fault{Kind: kind, By: a.Duration(faults.By)}, kind != simverbs.LateCompletion && kind != simverbs.DoubleCompletion)
}

func (r *run) badWork(a faults.Action) string {
	fault := simverbs.Fault{Kind: simverbs.BadWork, Element: a.Int(faults.Element), Errno: errnos["ENOMEM"]}
	if a.Bool(faults.Unknown) {
		fault.Kind = simverbs.UnknownBadWork
	}
	return r.plan(a, fault, a.Bool(faults.Unknown))
}

// makes are the calls whose failure leaves nothing behind.
var makes = map[string]bool{
	"ibv_create_qp": true, "ibv_reg_mr": true, "ibv_alloc_mw": true, "ibv_create_cq": true, "ibv_query_port": true, "ibv_query_gid_ex": true,
	"ibv_alloc_pd": true, "ibv_reg_dmabuf_mr": true,
}

func (r *run) failCall(a faults.Action) string {
	name := a.Word(faults.Call)
	plan, err := simverbs.ParsePlan("(fail-call (call " + name + "))")
	if err != nil {
		panic("world: " + err.Error())
	}
	plan[0].Errno = errnos[a.Word(faults.Errno)]
	return r.plan(a, plan[0], !makes[name])
}

// healFabric ends what has an end.
func (r *run) healFabric() {
	if r.fabric == nil {
		return
	}
	for rail := range r.rails() {
		var ports []*simverbs.Port
		for _, s := range r.slots {
			ports = append(ports, r.fabric.Host(s.host.String()).Device(deviceName(rail)).Port(1))
		}
		for i, p := range ports {
			p.Up()
			for _, other := range ports[:i] {
				r.fabric.Cut(p, other, false)
				r.fabric.Delay(p, other, time.Microsecond, 20*time.Microsecond)
			}
		}
	}
}

// nativeLeft looks for native objects when all engines have ended. An engine keeps some only when its library refused a
// call or lost a proof, and then lists them (G-9, R-18).
func (r *run) nativeLeft() {
	if r.fabric == nil {
		return
	}
	for _, left := range r.fabric.Live() {
		for _, l := range r.lives {
			if l.native == nil || l.native.Name() != left.Process {
				continue
			}
			if !l.doubtful || len(l.engine.RetainedResources()) == 0 {
				r.violate(OracleLeft, "%v has native objects left and retains %v: %+v", l, l.engine.RetainedResources(), left)
			}
		}
	}
}

// unopened checks an engine that was refused by its devices.
func (r *run) unopened(l *life) {
	if l.vault != nil {
		if left := l.vault.driver.Live(); left != (simcuda.Live{}) {
			r.violate(OracleLeft, "%v was not opened, and its driver has left %+v", l, left)
		}
		l.vault.driver.Kill()
	}
	if l.native == nil {
		return
	}
	if left := l.native.Live(); !left.Empty() && !l.doubtful {
		r.violate(OracleLeft, "%v was not opened, and has native objects left: %+v", l, left)
	}
	l.native.Kill()
}

// retainedFor takes the word of an engine that cannot end, because its devices do not let go: it lists what it keeps, and
// that stays charged. The process is ended.
func (r *run) retainedFor(l *life, err error) {
	if class(err) != "unquiesced" || len(l.engine.RetainedResources()) == 0 {
		r.violate(OracleLeft, "%v does not end, and retains %v: %v", l, l.engine.RetainedResources(), err)
	}
	r.count("retained")
	r.received(l, l.engine.ReceiveNotifications())
	l.keeps, l.closed = true, true
	l.task.Remove()
	l.killNative()
	l.process.Kill()
}

// abandonLife returns the memory of a life that nobody buries.
func (r *run) abandonLife(l *life) {
	if l.caller != nil {
		l.caller.stop()
		l.caller = nil
	}
	for _, m := range l.memories {
		if !m.closed {
			m.closed = true
			m.object.Close()
		}
	}
}

// patience is how long a life has to give everything back; 0: without an end. One whose devices may never let go has
// several cleanup windows.
func (l *life) patience() time.Duration {
	if l.doubtful {
		return 4 * cleanup
	}
	return 0
}

// wounded is true exactly when devices, or their library, fail in the script.
func wounded(s faults.Script) bool {
	return slices.ContainsFunc(s.Lines, func(line faults.Line) bool { return line.Action.Kind >= faults.PortDown })
}

// failedOp is the op that an error is about; nil: none.
func (s *submission) failedOp(err error) *op {
	var own *orbitte.Error
	if !errors.As(err, &own) || own.Index < 0 || own.Index >= len(s.ops) {
		return nil
	}
	return s.ops[own.Index]
}

func (o *op) overRDMA() bool { return o != nil && o.rdma }

// peerFailed explains what a source says of itself: its library may fail.
func (r *run) peerFailed(s *submission, err error) bool {
	o := s.failedOp(err)
	return (o.overRDMA() && r.wounded || o.sourceFailed() || o.takenBack(err)) && errors.Is(err, orbitte.ErrPeer)
}

// scattered says whether every open change is content's: devices bring the slices of one request, and the packets of one
// slice, side by side.
func scattered(content, data []byte, open []bool) bool {
	for i := range content {
		if open[i] && content[i] != data[i] {
			return false
		}
	}
	return true
}
