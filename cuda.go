package orbitte

import (
	"context"
	"fmt"
	"sync"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/staging"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
)

// deviceLane is the number of the loop for what may block in the CUDA driver: a drain of a failed copy, the end of memory.
const deviceLane = -3

// cudaPart is what an engine with CUDA has besides. Each lane has a stage, which takes pinned memory, and with it the
// primary context of a GPU, when the first registration of device memory asks for it. Close ends the stages after all
// work, then the lanes, then this engine's use of the driver.
type cudaPart struct {
	engine   *Engine
	platform *cuda.Platform
	slow     *runner
	stages   []*staging.Stage // by lane
	thread   func(func())     // Engine.threads

	closing chan struct{} // set by the first Close that comes so far, closed when all stages have ended; guarded by Engine.mu
	left    sync.Once     // gives the platform back
}

// buildCUDA opens the driver and makes each lane's stage, before anything runs. It makes no context on any GPU.
func (e *Engine) buildCUDA() error {
	if e.config.CUDA == nil {
		return nil
	}
	kernel, _, err := e.openKernel(deviceLane)
	if err != nil {
		return err
	}
	mode := reactor.EventDriven
	if e.config.Progress == Manual {
		mode = reactor.Manual
	}
	p := &cudaPart{engine: e, thread: e.threads()}
	p.slow = &runner{
		lane:    &lanes.Lane{Loop: reactor.NewLoop(kernel, reactor.Options{Name: "cold lane of CUDA", Mode: mode}), Index: deviceLane, Policy: &e.policy},
		stopped: make(chan struct{}),
	}
	e.cuda = p
	if p.platform, err = cuda.Open(e.config.CUDA); err != nil {
		return unusable(err)
	}
	config := staging.Config{
		ChunkBytes: e.config.Limits.StagingChunkBytes, Chunks: e.config.Limits.stagingChunks(len(e.runners)),
		Slots: e.config.laneSlots(len(e.runners)), Budget: e.budgets.pinned, Cold: p.slow.lane.Loop,
	}
	for _, r := range e.runners {
		stage := staging.New(r.lane, config)
		r.lane.Staging = stage
		p.stages = append(p.stages, stage)
	}
	return nil
}

// abandon ends what buildCUDA made, when the lanes do not run.
func (p *cudaPart) abandon() error {
	if p == nil || p.platform == nil {
		return nil
	}
	return p.leave()
}

// leave gives the platform back, once.
func (p *cudaPart) leave() (err error) {
	p.left.Do(func() { err = p.platform.Close() })
	return err
}

// prepare makes each lane ready for the device memory of a batch, before it is visible: streams, events, and the first
// time the pinned chunks. The error is a *segments.ElementError. The caller has Engine.registering.
func (e *Engine) prepareDevices(specs []segments.Spec) error {
	for i := range specs {
		native, ok := specs[i].Backing.Owner().(*cuda.Memory)
		if !ok || specs[i].Backing.Kind() != segments.Device {
			continue
		}
		if err := e.cuda.prepare(native); err != nil {
			return &segments.ElementError{Element: i, Err: err}
		}
	}
	return nil
}

func (p *cudaPart) prepare(m *cuda.Memory) error {
	for _, stage := range p.stages {
		if err := stage.Prepare(m); err != nil {
			return err
		}
	}
	return nil
}

// closeStages ends every lane's stage: no stream carries anything any more, so that no copy is under way but those that
// are in doubt.
func (e *Engine) closeStages(ctx context.Context) error {
	p := e.cuda
	if p == nil {
		return nil
	}
	e.registering.Lock() // nobody prepares any more
	e.mu.Lock()
	first := p.closing == nil
	if first {
		p.closing = make(chan struct{})
	}
	done := p.closing
	e.mu.Unlock()
	e.registering.Unlock()
	if first {
		ends := newCountdown(len(e.runners), func() { close(done) })
		for i, r := range e.runners {
			x := &call{done: make(chan struct{}), do: func() { p.stages[i].Close(ends.one) }}
			if r.lane.Post(&x.letter, x) != nil { // the lane has ended
				p.stages[i].Abandon()
				ends.one()
			}
		}
	}
	return e.quiet(ctx, "Close", done, func() string { return "copies from and to GPUs are being ended" })
}

// ended is what Close says about GPUs once the lanes have ended: nil when nothing is retained.
func (p *cudaPart) ended() error {
	if p == nil {
		return nil
	}
	_ = p.leave() // what keeps the driver open is memory of the caller's, or retained and listed
	if kept := p.resources(); len(kept) > 0 {
		return &Error{Op: "Close", Index: -1, Class: ErrUnquiesced, Cause: fmt.Errorf("CUDA: %s: %s", kept[0].Object, kept[0].Reason), situation: copying}
	}
	return nil
}

// aside does what may wait for the driver as long as it likes. Without GPUs, and in a simulation, which has no threads, that
// is here.
func (p *cudaPart) aside(do func()) {
	if p == nil || p.thread == nil {
		do()
		return
	}
	p.thread(do)
}

// reclaim asks for the proofs that copies are missing; false: some still are. After the lanes have ended.
func (p *cudaPart) reclaim() bool {
	if p == nil {
		return true
	}
	all := true
	for _, stage := range p.stages {
		all = stage.Reclaim() && all
	}
	return all
}

// release gives the staging memory back that was kept beside them.
func (p *cudaPart) release() {
	if p == nil {
		return
	}
	for _, stage := range p.stages {
		stage.Release()
	}
}

// rejoin has the driver open once more, for the end of what is left on it; something is, so that the platform is known.
func (p *cudaPart) rejoin() (leave func()) {
	if p == nil || len(p.resources()) == 0 {
		return func() {}
	}
	platform, err := cuda.Open(p.platform.Calls())
	if err != nil {
		return func() {}
	}
	return func() { _ = platform.Close() } // as leave
}

// resources lists what this engine's copies left without a proof (SPEC C-3, G-9).
func (p *cudaPart) resources() (list []Resource) {
	if p == nil {
		return nil
	}
	for _, stage := range p.stages {
		for _, r := range stage.Residues() {
			list = append(list, Resource{"GPU copy", r.Object, textOf(r.Reason)})
		}
	}
	return list
}

// RetainedByCUDA lists what the CUDA drivers of this process did not take back, or what is not proven quiet, whichever
// engine or memory it belonged to (SPEC C-3). Empty as long as every native call has succeeded.
func RetainedByCUDA() []Resource {
	var list []Resource
	for _, r := range cuda.RetainedResources() {
		list = append(list, Resource{r.Kind.String(), r.Object, r.Reason.Error()})
	}
	return list
}

// deviceRelease gives back a registration's hold of device or pinned memory, off the data lanes; then the registration
// has ended for whoever waits.
type deviceRelease struct {
	letter reactor.Letter
	memory *driverMemory
	then   func()
}

// Receive (reactor.Recipient).
func (r *deviceRelease) Receive(*reactor.Letter, reactor.Instant) {
	_ = r.memory.drop() // a refusal is retained by the platform, which lists it
	r.then()
}

// releaseDriverMemory ends a registration's hold. A registration ends on whatever goroutine returned its last loan, and
// the end of memory may wait for a GPU: it is the cold loop's. An engine without one, or whose loops have ended, has no
// device memory in use: the hold is of pinned memory, or the caller's goroutine ended it.
func (e *Engine) releaseDriverMemory(d *driverMemory, then func()) {
	r := &deviceRelease{memory: d, then: then}
	for _, cold := range []*runner{e.coldOfCUDA(), e.cold} {
		if cold != nil && cold.lane.Post(&r.letter, r) == nil {
			return
		}
	}
	r.Receive(nil, 0)
}

func (e *Engine) coldOfCUDA() *runner {
	if e.cuda == nil {
		return nil
	}
	return e.cuda.slow
}
