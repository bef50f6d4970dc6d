package orbitte

import (
	"context"
	"testing"
	"time"

	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/test/twins"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// After a flush that does not return, the call says ErrUnquiesced when the cleanup window has passed, and so does Close,
// which ends instead of waiting for it.
//
// proves C-7, G-6, G-9, R-18
func TestAFlushThatNeverReturnsEndsInErrUnquiescedAndSoDoesClose(t *testing.T) {
	const size = 8192
	s := newRDMASim(t, 290, simverbs.Hardware)
	s.deliberate["requester"] = true
	keepsOnPurpose(t, 1) // the range
	source := s.rdmaEngine(s.native("source", hostA), hostA, Config{})
	remote := allocated(t, size)
	registered(t, source, remote, ReadWrite)
	n := s.native("requester", hostB)
	c := newCUDASimOn(s.sim)
	driver := c.driver("requester", s.processes["requester"], hostB, unordered())
	c.deliberate[driver] = true
	s.gpus.drivers = map[string]*simcuda.Driver{"requester": driver}
	config := direct(t)
	config.CUDA, config.RDMA.Progress = driver, RDMAEventDriven
	e, err := Open(s.rdmaConfig(n, hostB, config))
	must(t, err)
	s.drive(e)
	var held []func()
	e.rdma.transport.Config().Thread = func(f func()) { held = append(held, f) }
	m, err := AllocateDevice(driver, 0, size)
	must(t, err)
	_, err = e.Register(m, 0, size, LocalOnly)
	must(t, err)
	segment, err := e.OpenSegment(soon(t), source.Endpoint(), source.Epoch())
	must(t, err)
	report, err := e.SubmitAndWait(soon(t), []Request{{Operation: Read, Transport: TransportRDMA, Segment: segment, Local: m.Address(), Remote: remote.Address(), Length: size}})
	wants(t, err, ErrUnquiesced)
	if report.LocallyDrained || report.Local != EffectPartial || len(held) != 1 {
		t.Errorf("%+v; %d flushes", report, len(held))
	}
	mentions(t, err.Error(), "cuFlushGPUDirectRDMAWrites")
	mentions(t, wants(t, e.Close(soon(t)), ErrUnquiesced).Error(), "RetainedResources")
	kinds := map[string]int{}
	for _, r := range e.RetainedResources() {
		kinds[r.Kind]++
	}
	if kinds["RDMA work"] != 1 || kinds["submission"] == 0 || len(RetainedByCUDA()) == 0 {
		t.Errorf("retained are %v, by CUDA %v", e.RetainedResources(), RetainedByCUDA())
	}
}

// While a flush takes its time, an engine with threads makes connections to other peers; a Close meanwhile says what it waits
// for, and a later one ends it all.
//
// proves C-7, G-6, L-2
func TestASlowFlushHoldsUpNoOtherPeer(t *testing.T) {
	const size, slow = 8192, 2 * time.Second
	var door gpuDoor
	fabric := twins.RDMA(1, simverbs.Options{Peer: door.peer, Export: door.export})
	driver := twins.CUDA(1, unordered())
	defer driver.Kill()
	door.drivers = map[string]*simcuda.Driver{"requester": driver}
	open := func(host string, c Config) *Engine {
		c.Verbs = fabric.Host(host).Process(host)
		e, err := Open(c)
		must(t, err)
		return e
	}
	config := direct(t)
	config.CUDA = driver
	requester := open("requester", config)
	host := allocated(t, size)
	here, err := AllocateDevice(driver, 0, size)
	must(t, err)
	closes := []func() error{here.Close}
	register := func(e *Engine, m *Memory, p Permission) {
		r, err := e.Register(m, 0, size, p)
		must(t, err)
		closes = append(closes, func() error { return e.Unregister(soon(t), r) })
	}
	register(requester, here, LocalOnly)
	register(requester, host, LocalOnly)
	read := Request{Operation: Read, Transport: TransportRDMA, Local: here.Address(), Length: size}
	write := Request{Operation: Write, Transport: TransportRDMA, Local: host.Address(), Length: size}
	engines := []*Engine{requester}
	for name, r := range map[string]*Request{"near": &read, "far": &write} {
		e := open(name, Config{RDMA: &RDMAConfig{}})
		m := allocated(t, size)
		register(e, m, ReadWrite)
		r.Remote = m.Address()
		r.Segment, err = requester.OpenSegment(soon(t), e.Endpoint(), e.Epoch())
		must(t, err)
		engines = append(engines, e)
	}
	driver.Plan(simcuda.Fault{Kind: simcuda.SlowCall, Call: simcuda.CallFlush, By: slow})
	b, err := requester.Submit(soon(t), []Request{read})
	must(t, err)
	for driver.Calls(simcuda.CallFlush) == 0 {
		time.Sleep(time.Millisecond)
	}
	_, err = requester.SubmitAndWait(soon(t), []Request{write}) // its queue pairs are made
	must(t, err)
	ended, stop := context.WithTimeout(context.Background(), time.Millisecond)
	defer stop()
	wants(t, requester.Close(ended), ErrUnquiesced)
	if _, over, _ := b.Poll(); over {
		t.Error("the flush was over before")
	}
	_, err = b.Wait(soon(t))
	must(t, err)
	must(t, b.Free())
	for i := len(closes) - 1; i >= 0; i-- {
		must(t, closes[i]())
	}
	for _, e := range engines {
		must(t, e.Close(soon(t)))
	}
	if left := fabric.Live(); len(left) > 0 {
		t.Errorf("native objects are left: %+v", left)
	}
}
