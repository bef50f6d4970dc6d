package orbitte

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/reactor/simkernel"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// A refusal for want of something says it once, and its remedy is what helps there, in words of the call.
//
// field case F-24
func TestWhatIsMissingIsSaidOnceWithWhatHelps(t *testing.T) {
	s := newCUDASim(t, 1)
	d := s.process("one", hostA, simcuda.Options{})
	plain, withCUDA := s.engine(d, Config{}), s.engine(d, Config{CUDA: d, HPTCP: &HPTCPConfig{}})
	host, device := allocated(t, 100), onGPU(t, d, 0, 100)
	register := func(e *Engine, m *Memory, options ...RegisterOption) error {
		_, err := e.Register(m, 0, 100, ReadWrite, options...)
		return err
	}
	p := newPair(t, Config{Kernel: Epoll, Lanes: 1, HPTCP: &HPTCPConfig{}}, Config{Kernel: Epoll, Lanes: 1, HPTCP: &HPTCPConfig{}}, 4096)
	submit := func(r Request) error {
		_, err := p.requester.SubmitAndWait(soon(t), []Request{r})
		return err
	}
	overRDMA := p.request(Read, 0, 1)
	overRDMA.Transport = TransportRDMA
	directing := newPair(t, Config{Kernel: Epoll, Lanes: 1}, Config{Kernel: Epoll, Lanes: 1, RemoteStaging: &RemoteStagingConfig{}}, 4096)
	directed := func(p *pair) error {
		r := p.request(Read, 0, 1)
		r.RemoteSlots = 1
		_, err := p.requester.SubmitAndWait(soon(t), []Request{r})
		return err
	}
	for what, x := range map[string]struct {
		err           error
		remedy, known string
	}{
		"no HP-TCP":             {register(plain, host, OverHPTCP), "Config.HPTCP", "nothing was registered"},
		"no CUDA":               {register(plain, device), "Config.CUDA", "nothing was registered"},
		"a GPU's over HP-TCP":   {register(withCUDA, device, OverHPTCP), "leave OverHPTCP away", "nothing was registered"},
		"not registered for it": {submit(hurried(p.request(Read, 0, 1))), "register the range with OverHPTCP", "no byte was moved"},
		"no slots here":         {directed(p), "open the engine with Config.RemoteStaging", "no byte was moved"},
		"no slots there":        {directed(directing), "open the peer's engine with both", "no byte was moved"},
		"no RDMA":               {submit(overRDMA), "Config.RDMA", "no byte was moved"},
	} {
		own := wants(t, x.err, ErrUnavailable)
		text := own.Error()
		if strings.Count(text, "orbitte: ") != 1 || strings.Count(text, "known:") != 1 || strings.Count(text, "remedy:") != 1 || strings.Contains(text, "kernel") {
			t.Errorf("%s: %s", what, text)
		}
		if !strings.Contains(own.Remedy(), x.remedy) || !strings.Contains(own.Known(), x.known) {
			t.Errorf("%s: known %q, remedy %q", what, own.Known(), own.Remedy())
		}
	}
}

// An Atomic WRITE of more ranges than one request holds is refused before anything runs, with the number.
//
// proves H-5, U-3
func TestAnAtomicWriteOfTooManyRangesIsRefusedBeforeItStarts(t *testing.T) {
	const n = 1001
	s := newFastSim(t, 3, simkernel.WorldOptions{}, Config{}, Config{}, 2*n)
	r := hurried(s.request(Write, 0, 0))
	r.Atomic, r.Strides = true, &Strides{Length: 1, Count: n, Local: 2, Remote: 2}
	posted := s.requester.Stats().HPTCP.Requests
	report, err := s.requester.SubmitAndWait(soon(t), []Request{s.request(Read, 0, 8), r})
	own := wants(t, err, ErrExhausted)
	if own.Index != 1 || report.Completed != 0 || !strings.Contains(own.Error(), "limit 1000") || !strings.Contains(own.Error(), "can never fit") || strings.Contains(own.Remedy(), "wait") {
		t.Errorf("%v", err)
	}
	if s.requester.Stats().HPTCP.Requests != posted {
		t.Error("something was posted")
	}
	r.Strides.Count = n - 1
	_, err = s.requester.SubmitAndWait(soon(t), []Request{r})
	must(t, err)
}

// One range out of many that nothing covers is named, by its place in the request.
func TestTheRangeOutOfManyThatIsNotCoveredIsNamed(t *testing.T) {
	s := newFastSim(t, 3, simkernel.WorldOptions{}, Config{}, Config{}, 64<<10)
	for words, change := range map[string]func(*Request){
		"remote page 9999, at index 2": func(r *Request) { r.Pages = &Pages{Size: 4096, Local: []uint32{0, 1, 2}, Remote: []uint32{0, 3, 9999}} },
		"local page 7777, at index 1":  func(r *Request) { r.Pages = &Pages{Size: 4096, Local: []uint32{0, 7777, 2}, Remote: []uint32{0, 3, 5}} },
		"remote row 16":                func(r *Request) { r.Strides = &Strides{Length: 8, Count: 17, Local: 8, Remote: 4096} },
		"local span 1":                 func(r *Request) { r.Spans = []Span{{Length: 4}, {Local: 1 << 30, Length: 4}} },
	} {
		r := hurried(s.request(Read, 0, 0))
		change(&r)
		_, err := s.requester.SubmitAndWait(soon(t), []Request{r})
		class := ErrUncovered
		if strings.HasPrefix(words, "remote") {
			class = ErrUnknownRegion
		}
		if own := wants(t, err, class); !strings.Contains(own.Error(), words) {
			t.Errorf("%q is not in: %v", words, err)
		}
	}
}

// A registration that does not fit the budget of memory regions is told with all of its copies, and what is in use is what
// others have.
//
// proves R-5, U-3
func TestABudgetOfMemoryRegionsCountsTheWholeRegistration(t *testing.T) {
	s := newRDMASim(t, 5, simverbs.Hardware)
	n := s.native("source", hostA, simverbs.DeviceSpec{Name: "mlx5_0"}, simverbs.DeviceSpec{Name: "mlx5_1"})
	e := s.rdmaEngine(n, hostA, Config{RDMA: &RDMAConfig{Limits: RDMALimits{CachedBytes: 64 << 10}}})
	m := allocated(t, 40<<10)
	_, err := e.Register(m, 0, 17<<10, RemoteRead) // on two devices, twice each
	own := wants(t, err, ErrExhausted)
	mentions(t, own.Error(), "asked 69632, in use 0, limit 65536 bytes", "on 2 device(s)", "can never fit", "RDMA.Limits.CachedBytes")
	r, err := e.Register(m, 0, 1<<10, LocalOnly)
	must(t, err)
	_, err = e.Register(m, 17<<10, 16<<10, RemoteRead)
	own = wants(t, err, ErrExhausted)
	mentions(t, own.Error(), "asked 65536, in use 2048, limit 65536 bytes", "wait for work to end")
	var budget *budgets.Exhausted
	if !errors.As(err, &budget) || liveRegions(n) != 2 {
		t.Errorf("%v, or %d regions are left", err, liveRegions(n))
	}
	must(t, e.Unregister(soon(t), r))
}

// A mask that allows no device is a mistake, and no engine that refuses every request.
//
// proves R-1
func TestADeviceMaskThatAllowsNothingIsRefused(t *testing.T) {
	s := newRDMASim(t, 6, simverbs.Hardware)
	n := s.native("source", hostA, simverbs.DeviceSpec{Name: "mlx5_0"}, simverbs.DeviceSpec{Name: "mlx5_1"})
	_, err := Open(s.rdmaConfig(n, hostA, Config{RDMA: &RDMAConfig{DeviceMask: 1 << 40}}))
	mentions(t, wants(t, err, ErrInvalid).Error(), "Config.RDMA.DeviceMask is 0x10000000000", "0 is mlx5_0, 1 is mlx5_1")
	closeEngine(t, s.rdmaEngine(n, hostA, Config{RDMA: &RDMAConfig{DeviceMask: 1<<40 | 2}}))
}

// field case F-24
func TestAWrongConfigurationNamesItsField(t *testing.T) {
	for field, c := range map[string]Config{
		"Config.Progress is 9":                    {Progress: 9},
		"Config.Kernel is 3":                      {Kernel: 3},
		"Config.TCPHostMemory is 2":               {TCPHostMemory: 2},
		"Config.TCPNotifications is 7":            {TCPNotifications: 7},
		"Config.NotificationRPCFallback is 7":     {NotificationRPCFallback: 7},
		"Config.IdleTimeout is -1ns":              {IdleTimeout: -1},
		"Config.Spin is -1s":                      {Spin: -time.Second},
		"Config.Limits.NotificationQueue is 4611": {Limits: Limits{NotificationQueue: 1<<62 + 1}},
	} {
		_, err := Open(c)
		if own := wants(t, err, ErrInvalid); !strings.Contains(own.Error(), field) || strings.Count(own.Error(), "Config.") != 1 {
			t.Errorf("%q is not what is named: %v", field, err)
		}
	}
}

// Of an exact repetition the first registration's permission and options stay, and can be asked for.
//
// proves M-5
func TestARepeatedRegistrationSaysWhatTheFirstAskedFor(t *testing.T) {
	e := newEngine(t, Config{Kernel: Epoll, Lanes: 1, HPTCP: &HPTCPConfig{}})
	m := allocated(t, 8192)
	first, second := registered(t, e, m, RemoteRead), registered(t, e, m, ReadWrite, OverHPTCP)
	if first.ID() != second.ID() || second.HPTCP() || second.Permission() != RemoteRead {
		t.Errorf("region %d and %d: %v, over HP-TCP %v", first.ID(), second.ID(), second.Permission(), second.HPTCP())
	}
	other, err := e.Register(m, 4096, 4096, RemoteRead, OverHPTCP)
	must(t, err)
	if !other.HPTCP() {
		t.Error("an option was lost")
	}
	must(t, e.Unregister(soon(t), other))
}

func TestChoicesOfRDMAPrintAsTheirNames(t *testing.T) {
	if text := fmt.Sprint(RDMAPolling, RDMAEventDriven, HostDirect, HostStaged); text != "polling event-driven direct staged" {
		t.Error(text)
	}
}

// What no engine could ever carry out is the caller's mistake, and the text has what was asked for.
//
// field case F-24
func TestARequestThatCanNeverBeIsInvalidAndSaysWhatWasAsked(t *testing.T) {
	const top = ^uint64(0)
	p := newFastPair(t, Config{Kernel: Epoll, Lanes: 1}, Config{Kernel: Epoll, Lanes: 1}, 4096)
	for words, change := range map[string]func(*Request){
		"Transport is 9; it must be TransportTCP":                          func(r *Request) { r.Transport = 9 },
		"Transport is 10; it must be TransportTCP":                         func(r *Request) { r.Transport, r.RemoteSlots, r.Atomic = 10, 1, true },
		"Length is 18446744073709551615; no memory has":                    func(r *Request) { r.Length = top },
		"Length is 4611686018427387905; no memory has":                     func(r *Request) { *r = hurried(*r); r.Length = 1<<62 + 1 },
		"200 bytes from address 0xfffffffffffffff6 on goes beyond the end": func(r *Request) { r.Local, r.Length = top-9, 200 },
		"201 bytes from address 0xfffffffffffffff7 on goes beyond the end": func(r *Request) { r.Remote, r.Length = top-8, 201 },
		"have more bytes than any memory, or go beyond the end of the address": func(r *Request) {
			*r = hurried(*r)
			r.Length, r.Spans = 0, []Span{{Length: 1 << 63}, {Length: 1 << 63}}
		},
	} {
		r := p.request(Read, 0, 1)
		change(&r)
		_, err := p.requester.SubmitAndWait(soon(t), []Request{r})
		if own := wants(t, err, ErrInvalid); own.Remedy() != "correct the argument" || !strings.Contains(own.Error(), words) {
			t.Errorf("%q is not in: %v", words, err)
		}
	}
	r := p.request(Read, 0, 1)
	r.Length = 1 << 40
	_, err := p.requester.SubmitAndWait(soon(t), []Request{r})
	mentions(t, wants(t, err, ErrExhausted).Error(), "asked 1099511627776,")
	_, err = p.segment.Path(Read, 9)
	wants(t, err, ErrInvalid)
}

// A range that goes beyond the end of a region is to be split, and one that no region has any part of is looked for in a newer
// view: each is told what helps it.
//
// field case F-24
func TestARangeThatLeavesItsRegionIsToldSo(t *testing.T) {
	p := newPair(t, Config{Kernel: Epoll, Lanes: 1}, Config{Kernel: Epoll, Lanes: 1}, 8192)
	must(t, p.source.Unregister(soon(t), p.export))
	for _, offset := range []uint64{0, 4096} {
		half, err := p.source.Register(p.remote, offset, 4096, RemoteRead)
		must(t, err)
		defer func() { must(t, p.source.Unregister(soon(t), half)) }()
	}
	must(t, p.segment.Refresh(soon(t)))
	for at, remedy := range map[uint64]string{4000: leavingRemedy, 8100: leavingRemedy, 8192 + 8192: advices[ErrUnknownRegion].remedy} {
		r := p.request(Read, 0, 200)
		r.Remote = p.remote.Address() + at
		_, err := p.requester.SubmitAndWait(soon(t), []Request{r})
		own := wants(t, err, ErrUnknownRegion)
		if text := own.Error(); own.Remedy() != remedy || strings.Count(text, "refresh") != 1 || strings.Contains(own.fact(), "split") {
			t.Errorf("at %d: %v", at, err)
		}
	}
}
