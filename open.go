package orbitte

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/control"
	"github.com/orbitte/orbitte/lanes/tcp"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/epoll"
	"github.com/orbitte/orbitte/reactor/uring"
	"github.com/orbitte/orbitte/segments"
)

// listenBacklog is how many connections may wait to be accepted; the system caps it (net.core.somaxconn, 4,096 by
// default). Those that find it full ask again after one second, then two: a restarted source is asked by all its peers.
const listenBacklog = 4096

// Open makes an engine: listener bound, lanes running. Errors: ErrInvalid (configuration), ErrSystem (the
// port is taken, …), ErrUnavailable (io_uring was asked for and is forbidden, …), ErrExhausted (no descriptor or memory
// left). A failed Open leaves nothing behind.
func Open(config Config) (*Engine, error) {
	e, err := open(config)
	if err != nil {
		return nil, failure("Open", err)
	}
	return e, nil
}

func open(config Config) (*Engine, error) {
	if err := config.complete(); err != nil {
		return nil, err
	}
	bind, err := bindAddress("Config.Bind", config.Bind)
	if err != nil {
		return nil, err
	}
	places, err := placeLanes(&config)
	if err != nil {
		return nil, err
	}
	if config.CUDA != nil {
		if err := config.Limits.completeStaging(len(places)); err != nil {
			return nil, err
		}
	}
	if err := config.completeRemoteStaging(len(places)); err != nil {
		return nil, err
	}
	e := &Engine{
		config: config, requester: lanes.NewGate(), peers: map[peerKey]*peer{}, ways: map[Epoch][]*peer{},
		budgets: newBudgets(&config, len(places)), driver: driverSeat{left: make(chan struct{}, 1)},
		notes: make(chan struct{}, 1), notesEnd: make(chan struct{}), logEnd: make(chan struct{}),
	}
	e.policy = e.newPolicy()
	e.tracker = segments.NewTracker(e.budgets.registrations, e.budgets.registeredBytes, e.registrationEnded)
	e.inbox = control.NewInbox(e.budgets.notifications, e.budgets.notificationBytes)
	e.admission = control.Admission{Gate: lanes.NewGate(), Handlers: e.budgets.handlers, Queue: e.budgets.queue}
	e.idle.New = func() any { return newGroup(e) }
	if err := e.build(places); err != nil {
		return nil, e.abandon(err)
	}
	if err := e.listen(bind); err != nil {
		return nil, e.abandon(err)
	}
	if err := e.start(); err != nil {
		return nil, e.unwind(err)
	}
	return e, nil
}

func (e *Engine) newPolicy() lanes.Policy {
	c := &e.config
	epoch := c.Epoch
	if epoch.IsZero() {
		epoch = newEpoch()
	}
	return lanes.Policy{
		Epoch: epoch, Direct: c.TCPHostMemory == Direct, PayloadBytesMax: c.Limits.PayloadBytes,
		NotificationBytesMax: c.Limits.NotificationBytes, SourceTimeout: c.SourceTimeout, IdleTimeout: c.IdleTimeout,
		TCPNotifications: c.TCPNotifications.on(true),
		Socket: reactor.SocketOptions{
			KeepaliveIdle: c.KeepaliveIdle, KeepaliveInterval: c.KeepaliveInterval, KeepaliveCount: c.KeepaliveCount,
			UserTimeout: c.UserTimeout, Congestion: c.Congestion,
		},
	}
}

// bindAddress resolves the bind address; only here, before there is a lane, may a look-up block.
func bindAddress(field, bind string) (netip.AddrPort, error) {
	if address, err := netip.ParseAddrPort(bind); err == nil {
		return netip.AddrPortFrom(address.Addr().Unmap(), address.Port()), nil
	}
	resolved, err := net.ResolveTCPAddr("tcp", bind)
	if err != nil {
		return netip.AddrPort{}, invalid("%s is %q: %v", field, bind, err)
	}
	address := resolved.AddrPort()
	if !address.Addr().IsValid() { // ":7000"
		return netip.AddrPortFrom(netip.IPv4Unspecified(), address.Port()), nil
	}
	return netip.AddrPortFrom(address.Addr().Unmap(), address.Port()), nil
}

// placeLanes decides how many lanes run where (SPEC L-5; field cases F-51, F-52).
func placeLanes(c *Config) ([]lanes.Place, error) {
	allowed := allowedCPUs()
	if len(c.CPUs) > 0 {
		for _, cpu := range c.CPUs {
			if !slices.Contains(allowed, cpu) {
				return nil, invalid("Config.CPUs names CPU %d, which this process may not use; allowed are %v", cpu, allowed)
			}
		}
		allowed = c.CPUs
	}
	n := c.Lanes
	if n == 0 {
		n = lanesFor(len(allowed), cpuQuota("/sys/fs/cgroup", "/proc/self/cgroup"), c.Progress == Busy)
	}
	if c.Progress == Manual && c.Lanes == 0 {
		n = 1
	}
	n = min(n, c.Limits.PeerSegments) // each lane has at least one stream
	if c.HPTCP != nil {
		n = min(n, c.HPTCP.Limits.Streams)
	}
	pinned := len(c.CPUs) > 0
	return lanes.Plan(n, allowed, numaNodes("/sys/devices/system/node"), pinned), nil
}

// build makes loops, pools and servers; nothing runs yet.
func (e *Engine) build(places []lanes.Place) error {
	for i, place := range places {
		kernel, why, err := e.openKernel(i)
		if err != nil {
			return err
		}
		e.kernel = why
		lane := &lanes.Lane{
			Loop: reactor.NewLoop(kernel, reactor.Options{
				Name: fmt.Sprintf("lane %d", i), Mode: e.mode(), Spin: e.config.Spin, CPUs: place.CPUs, Guests: true,
			}),
			Index: i, Policy: &e.policy, Tracker: e.tracker,
			Streams: e.budgets.streams[i], Sessions: e.budgets.sessions[i],
		}
		if e.config.Logger != nil {
			lane.Journal.Signal = e.notes
		}
		r := &runner{lane: lane, pool: control.NewPool(lane), server: control.NewServer(lane, &e.admission), stopped: make(chan struct{})}
		e.offerSlots(r, tcp.NewService(r.server))
		notify := control.NewNotifyService(e.inbox)
		r.server.Handle(netproto.OperationNotify, notify)
		r.server.Handle(netproto.OperationControlNotify, notify)
		r.server.Handle(netproto.OperationDescribe, control.NewDescribeService(e.describe))
		e.runners = append(e.runners, r)
	}
	e.buildHPTCP()
	if err := e.buildCUDA(); err != nil {
		return err
	}
	if err := e.buildRDMA(); err != nil || e.config.Progress == Manual {
		return err
	}
	kernel, _, err := e.openKernel(-1)
	if err != nil {
		return err
	}
	e.cold = &runner{
		lane: &lanes.Lane{
			Loop: reactor.NewLoop(kernel, reactor.Options{Name: "cold lane", Mode: reactor.EventDriven}), Index: -1, Policy: &e.policy,
		},
		stopped: make(chan struct{}),
	}
	return nil
}

func (e *Engine) mode() reactor.Mode {
	return [...]reactor.Mode{Adaptive: reactor.Adaptive, EventDriven: reactor.EventDriven, Busy: reactor.Busy, Manual: reactor.Manual}[e.config.Progress]
}

// openKernel opens one lane's kernel and says why it is this one (SPEC L-1). The cold lane has no sockets and takes epoll,
// which needs fewest resources. So does Auto where callers may turn the lane themselves, which a ring does not allow: two
// hand-overs between threads cost a small request five to ten times the rest of its round trip, and the ring gains less.
//
// A process that is merely out of descriptors is not kept from io_uring by the system: Auto fails then, as with every other
// kernel, instead of being slower for an engine's life because of a moment. Memory is another matter: before Linux 5.12 rings
// are charged to RLIMIT_MEMLOCK, which is small by default and stays.
func (e *Engine) openKernel(lane int) (reactor.Kernel, string, error) {
	if e.config.OpenKernel != nil {
		kernel, err := e.config.OpenKernel(lane)
		return kernel, "given by Config.OpenKernel", err
	}
	any := e.config.Progress == Manual
	guests := lane >= 0 && e.config.Progress <= EventDriven
	plain := epoll.Options{AnyThread: any, Guests: guests}
	if guests && e.config.Kernel == Auto && len(e.config.CPUs) == 0 {
		return openEpoll(plain, "synchronous calls turn their lane themselves, which io_uring does not allow")
	}
	if lane >= 0 && e.config.Kernel != Epoll {
		kernel, err := uring.New(uring.Options{AnyThread: any})
		if err == nil {
			return kernel, "io_uring is available", nil
		}
		if e.config.Kernel == IOUring || outOfDescriptors(err) {
			return nil, "", unopened(err)
		}
		return openEpoll(plain, err.Error())
	}
	return openEpoll(plain, "Config.Kernel asks for epoll")
}

func openEpoll(o epoll.Options, why string) (reactor.Kernel, string, error) {
	kernel, err := epoll.New(o)
	if err != nil {
		return nil, "", unopened(err)
	}
	return kernel, why, nil
}

// unopened is the error of a kernel or listener that did not come to be.
func unopened(err error) error {
	own := &Error{Index: -1, Class: ErrSystem, Cause: err, situation: opening}
	var refused *uring.Unavailable
	switch {
	case outOfDescriptors(err):
		own.Class, own.Cause = ErrExhausted, &lack{err, "raise RLIMIT_NOFILE (ulimit -n, LimitNOFILE=) or fs.file-max, or close descriptors of this process, then open again"}
	case errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.ENOBUFS):
		own.Class, own.Cause = ErrExhausted, &lack{err, "raise RLIMIT_MEMLOCK (ulimit -l, LimitMEMLOCK=), which counts for io_uring before Linux 5.12, or the memory limit of this process's cgroup, then open again"}
	case errors.Is(err, syscall.EADDRINUSE):
		own.Cause = &lack{err, "name another port there, or 0 for a free one; or end what listens on this one (ss -ltnp shows it)"}
	case errors.As(err, &refused):
		own.Class, own.Cause = ErrUnavailable, &lack{err, "let Config.Kernel be Auto or Epoll, or let this process use io_uring (kernel.io_uring_disabled, seccomp)"}
	}
	return own
}

func outOfDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

func (e *Engine) listen(bind netip.AddrPort) error {
	listener, bound, err := listenOn(e, "Config.Bind", bind, func(r *runner) *control.Server { return r.server })
	if err != nil {
		return err
	}
	e.listener = listener
	e.endpoint, err = advertised(e.config.Advertise, bound, hostAddresses())
	if err == nil {
		err = e.listenHPTCP(bound)
	}
	if err != nil {
		e.listener.Close(func() {}) // it never started; its error would hide the configuration's
	}
	return err
}

// listenOn opens the listener that a field of Config asks for, and which deals what it accepts out to one server of each lane.
// The first lane accepts.
func listenOn[A control.Adopter](e *Engine, field string, bind netip.AddrPort, server func(*runner) A) (*control.Listener, netip.AddrPort, error) {
	first := e.runners[0].lane
	options := e.policy.Socket
	options.ReuseAddress = true // a restarted source takes its old port back at once
	options.Backlog = listenBacklog
	descriptor, bound, err := first.Kernel().Listen(bind, options)
	if err != nil {
		return nil, bound, unopened(fmt.Errorf("%s: listen on %v: %w", field, bind, err))
	}
	servers := make([]A, len(e.runners))
	for i, r := range e.runners {
		servers[i] = server(r)
	}
	return control.NewListener(first, descriptor, servers), bound, nil
}

// eachListener calls do with the engine's listeners, on the first lane or when it does not run.
func (e *Engine) eachListener(do func(*control.Listener)) {
	do(e.listener)
	if e.hptcp != nil {
		do(e.hptcp.listener)
	}
}

// abandon undoes a build whose loops never ran, and says why it came to that.
func (e *Engine) abandon(why error) error {
	left := errors.Join(e.rdma.abandon(), e.cuda.abandon())
	for _, r := range e.loops() {
		_ = r.lane.Loop.Close() // nothing was submitted, so nothing can be outstanding; the build's error is told
	}
	return leaving(why, left)
}

// leaving adds to the reason of a failed Open what a device did not give back.
func leaving(why, left error) error {
	if left == nil {
		return why
	}
	return &Error{Index: -1, Class: classOf(why), Cause: fmt.Errorf("%w; and something was left behind: %w", why, left), situation: opening}
}

// start runs the loops, or binds them to no thread in manual mode, begins to accept, and lets the log be
// written. After an error the caller unwinds.
func (e *Engine) start() error {
	var err error
	if e.config.Progress == Manual {
		err = e.bindLoops()
	} else {
		err = e.runLoops()
	}
	if err == nil {
		err = e.startRails()
	}
	if err == nil {
		err = e.runners[0].call(context.Background(), e, func() { e.eachListener((*control.Listener).Start) })
	}
	if err != nil {
		return err
	}
	if e.config.Logger != nil {
		go e.writeLog()
	} else {
		close(e.logEnd)
	}
	return nil
}

func (e *Engine) bindLoops() error {
	for _, r := range e.loops() {
		if err := r.lane.Bind(); err != nil {
			return err
		}
	}
	e.driver.leave()
	return nil
}

// runLoops gives each loop its thread and waits until it turns: a lane that cannot start (affinity,
// kernel) is Open's error and no later surprise.
func (e *Engine) runLoops() error {
	for _, r := range e.loops() {
		go r.run()
	}
	for _, r := range e.loops() {
		var failed error
		if err := r.call(context.Background(), e, func() { failed = r.err }); err != nil {
			return err
		}
		if failed != nil {
			return failed
		}
	}
	return nil
}

// unwind ends an engine whose start failed, and says why it did. The listener is closed where its lane can still do it.
func (e *Engine) unwind(why error) error {
	first := e.runners[0]
	shut := func(l *control.Listener) { l.Close(func() {}) }
	closing := &call{done: make(chan struct{}), do: func() { e.eachListener(shut) }}
	sealed := first.lane.Post(&closing.letter, closing) != nil
	for _, r := range e.loops() {
		r.lane.Loop.Stop()
		if e.config.Progress == Manual {
			r.end()
		}
		<-r.stopped
	}
	if sealed {
		e.eachListener(shut) // their lane has ended: nobody else uses the kernel
	}
	return leaving(why, errors.Join(e.rdma.abandon(), e.cuda.abandon()))
}

// run is a lane's goroutine. The error is set before the loop delivers its last letters.
func (r *runner) run() {
	r.err = r.lane.Run()
	r.end()
}

// end closes a loop that does not turn any more.
func (r *runner) end() {
	r.lane.Arena.Close()
	if err := r.lane.Loop.Close(); r.err == nil {
		r.err = err
	}
	close(r.stopped)
}
