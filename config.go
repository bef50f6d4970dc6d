package orbitte

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"runtime"
	"time"

	"github.com/rs/zerolog"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/verbs"
)

// Switch is a setting that has a default.
type Switch uint8

const (
	Default Switch = iota
	On
	Off
)

func (s Switch) on(standard bool) bool { return s == On || s == Default && standard }

// Placement says how TCP payload reaches host memory (SPEC T-1, T-2).
type Placement uint8

const (
	// Staged moves payload through buffers of the engine's own, at the sender only what the socket does not take at once: a
	// failed READ leaves the local range as it was, an uncommitted WRITE the remote one.
	Staged Placement = iota
	// Direct lets the socket read and write the registered range itself. Faster by one copy; a failure
	// may leave part of the bytes changed, and the report says so.
	Direct
)

// Progress says how lanes wait for work (SPEC L-4).
type Progress uint8

const (
	// Adaptive spins for a bounded time after work, then blocks. On epoll, and without Config.CPUs, a SubmitAndWait of at
	// most 64 KiB that is alone and finds its peer's lane idle turns the lane itself, which saves two wake-ups; the
	// caller's thread then does the lane's work for the length of the call. So does EventDriven.
	Adaptive Progress = iota
	// EventDriven blocks as soon as a lane is idle.
	EventDriven
	// Busy never blocks: each lane takes a CPU of its own, for pinned deployments. Name the CPUs (Config.CPUs) where several
	// engines share a host; lanes are tied to none otherwise. With GOMAXPROCS or more of them in the process, some let callers
	// run now and then, and are slower for it.
	Busy
	// Manual starts no threads: the program calls Engine.Progress; of the calls that wait, one drives the
	// lanes for all. Host names are looked up on the caller's own goroutine.
	Manual
)

// KernelChoice picks what drives the sockets (SPEC L-1).
type KernelChoice uint8

const (
	// Auto takes epoll in the Adaptive and EventDriven modes without Config.CPUs, where a caller turns the lane itself (see
	// Adaptive); otherwise io_uring where the system lets it, and epoll where not. Stats says which and why. Where descriptors
	// run out Open fails, as with the other choices: a passing shortage must not choose the kernel for an engine's whole life.
	Auto KernelChoice = iota
	// IOUring fails at Open where io_uring cannot be used.
	IOUring
	// Epoll never tries io_uring.
	Epoll
)

// Limits are the engine's budgets; zero takes the default named with each (SPEC U).
type Limits struct {
	Registrations     int    // retained registrations, unregistered handles included; 1,024
	RegisteredBytes   uint64 // their bytes; 1 GiB
	BatchRequests     int    // requests of one submission; 1,024
	Batches           int    // async batches open, finished but unfreed, or detached; 32
	BatchSlots        int    // their requests; 32,768
	Submissions       int    // submissions, opens and notifications in flight; 32
	SubmittedBytes    uint64 // their request and notification bytes; 64 MiB
	PayloadBytes      uint64 // one request, asked or served; 8 MiB, at most 64 MiB
	SourceHandlers    int    // frames served at a time; 4
	SourceQueue       int    // frames waiting for a handler; 4
	PeerSegments      int    // requester streams, and accepted streams, at a time; 1,024
	Notifications     int    // queued, plus reserved for bodies under way; 1,024
	NotificationQueue uint64 // their bytes; 1 MiB, or NotificationBytes if that is more
	NotificationBytes uint64 // name plus message of one, at most NotificationQueue and 16 MiB; 64 KiB, or NotificationQueue if that is less
	Lookups           int    // host-name look-ups in flight; 32

	// For Config.CUDA only. Pinned host memory through which memory on GPUs is staged, over TCP and RDMA, taken whole when such memory is
	// first registered, and given back by Close; 16 MiB for each lane.
	PinnedStagingBytes uint64
	// Its pieces; each lane has half of its share for its own requests and half for those of peers. Over RDMA a request to a
	// peer that stages moves in parts of the peer's pieces (the 11 leading binary digits of their size). 1 MiB.
	StagingChunkBytes uint64
}

// Config of an engine. Its zero value is a loopback engine with every default.
type Config struct {
	// Bind is the address of the source side, "host:port"; port 0 lets the system choose. Default 127.0.0.1:0.
	Bind string
	// Advertise is the endpoint that peers are told (Engine.Endpoint), when it differs from the bound
	// address. An unspecified Bind ("0.0.0.0:7000") needs it unless the host has exactly one address.
	Advertise string

	// Lanes is the number of lanes; 0 follows the CPU quota and affinity mask, at most 4. Busy lanes leave one of those CPUs
	// to the callers.
	Lanes int
	// CPUs restricts the lanes to these CPUs, out of those that the process may use.
	CPUs     []int
	Progress Progress
	// Spin is how long an adaptive lane spins before it blocks; 0: 50 µs. While payload moves it is ten times as long. While
	// other threads want the CPU it is less, down to nothing. Of all lanes of the process one less than GOMAXPROCS spin at a
	// time, so that callers have a processor to run on.
	Spin   time.Duration
	Kernel KernelChoice

	TCPHostMemory Placement
	// TCPNotifications installs the TCP channel for notifications, NotificationRPCFallback the control
	// RPC behind it (SPEC N-5). Both default to On.
	TCPNotifications, NotificationRPCFallback Switch

	Limits Limits

	// Verbs is the RDMA library, as verbs/libibverbs.Load returns it, and RDMA says what of it is used. Both or neither: an
	// engine without them links no C, and refuses requests that name TransportRDMA with ErrUnavailable. With them Open
	// fails unless at least one device is usable; nothing ever becomes TCP silently (SPEC G-4).
	Verbs verbs.Calls
	RDMA  *RDMAConfig

	// CUDA is the driver, as cuda/libcuda.Load returns it. It lets the engine register memory from AllocateDevice and
	// AdoptDevice, and copy from and to it. Nil: device memory is refused with ErrUnavailable. Open fails when the driver is
	// too old or there is no GPU (SPEC C-1); it makes no context on any. An engine without it links no C.
	CUDA cuda.Calls

	// HPTCP makes the engine serve and use HP-TCP, the fast data plane over TCP. Nil: it neither listens for it nor
	// tells peers of it, and refuses requests that name TransportHPTCP with ErrUnavailable (SPEC G-4, W-9).
	HPTCP *HPTCPConfig

	// RemoteStaging lets the engine direct how peers stage their memory on GPUs, for requests with RemoteSlots, and with CUDA
	// lets peers direct it here. Nil: neither; then such requests are refused with ErrUnavailable, and peers are told that
	// nothing is offered (SPEC C-8, G-4).
	RemoteStaging *RemoteStagingConfig

	// RequestTimeout applies to a submission whose context has no deadline; 0: 30 s.
	RequestTimeout time.Duration
	// SourceTimeout bounds each served frame, from its acceptance; 0: 5 s, at most 300 s.
	SourceTimeout time.Duration
	// IdleTimeout closes streams that carry no frame, at both ends; 0: 2 min.
	IdleTimeout time.Duration
	// QuiesceTimeout is how long a cancelled or expired call waits for the proof that its memory is quiet
	// before it returns ErrUnquiesced; 0: 5 s.
	QuiesceTimeout time.Duration

	// KeepaliveIdle, KeepaliveInterval, KeepaliveCount and UserTimeout find a silently dead peer: a
	// stream without traffic after idle + interval × count, unacknowledged bytes after UserTimeout.
	// Defaults 15 s, 5 s, 3, 30 s: found within 30 s. A paused peer's kernel still answers (SPEC T-12). A connect that nobody
	// answers is asked for again after 5 s at the latest, at the next address if the peer's name has several.
	KeepaliveIdle, KeepaliveInterval time.Duration
	KeepaliveCount                   int
	UserTimeout                      time.Duration
	// Congestion names the TCP congestion control. Default "auto": reno for peers on the same host,
	// where the bbr of many systems costs up to five times, the system's choice otherwise.
	Congestion string

	// Logger receives structured, rate-limited lines. Nil: silent.
	Logger *zerolog.Logger
	// Resolver looks host names up, on the engine's cold lane, one at a time; it should return when its
	// context ends. Nil: the system's resolver.
	Resolver func(ctx context.Context, host string) ([]netip.Addr, error)

	// Epoch names this life of the engine. Leave it zero for a random one; anything else is for
	// simulations, and must never have been used before (SPEC G-1).
	Epoch netproto.Epoch
	// OpenKernel opens the kernel of each lane, instead of Kernel: the door for simulated kernels. The cold
	// lane, which manual mode has not, is number -1; that for RDMA's slow calls, which every engine with RDMA has, -2.
	OpenKernel func(lane int) (reactor.Kernel, error)
}

const payloadBytesMax = 64 << 20

// What Linux takes for TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT (net/tcp.h, MAX_TCP_KEEP*) and TCP_USER_TIMEOUT (milliseconds in an int).
const (
	keepaliveMax      = 32767 * time.Second
	keepaliveCountMax = 127
	userTimeoutMax    = math.MaxInt32 * time.Millisecond
)

// complete fills defaults in and checks; the error wraps ErrInvalid and names the field.
func (c *Config) complete() error {
	setString(&c.Bind, "127.0.0.1:0")
	setString(&c.Congestion, "auto")
	if c.Resolver == nil {
		c.Resolver = systemResolver
	}
	for _, d := range []struct {
		name     string
		value    *time.Duration
		standard time.Duration
		most     time.Duration // 0: there is no limit
	}{
		{"RequestTimeout", &c.RequestTimeout, 30 * time.Second, 0}, {"SourceTimeout", &c.SourceTimeout, 5 * time.Second, 300 * time.Second},
		{"IdleTimeout", &c.IdleTimeout, 2 * time.Minute, 0}, {"QuiesceTimeout", &c.QuiesceTimeout, 5 * time.Second, 0},
		{"KeepaliveIdle", &c.KeepaliveIdle, 15 * time.Second, keepaliveMax}, {"KeepaliveInterval", &c.KeepaliveInterval, 5 * time.Second, keepaliveMax},
		{"UserTimeout", &c.UserTimeout, 30 * time.Second, userTimeoutMax}, {"Spin", &c.Spin, 50 * time.Microsecond, time.Minute},
	} {
		if *d.value < 0 {
			return invalid("Config.%s is %v; it must not be negative", d.name, *d.value)
		}
		if d.most > 0 && *d.value > d.most {
			return invalid("Config.%s is %v; it must be at most %v", d.name, *d.value, d.most)
		}
		if *d.value == 0 {
			*d.value = d.standard
		}
	}
	set(&c.KeepaliveCount, 3)
	if c.KeepaliveCount < 0 || c.KeepaliveCount > keepaliveCountMax {
		return invalid("Config.KeepaliveCount is %d; it must be 0 (3) to %d", c.KeepaliveCount, keepaliveCountMax)
	}
	for _, n := range []struct {
		name      string
		value     uint8
		last      uint8
		constants string
	}{
		{"Progress", uint8(c.Progress), uint8(Manual), "Adaptive, EventDriven, Busy or Manual"}, {"Kernel", uint8(c.Kernel), uint8(Epoll), "Auto, IOUring or Epoll"},
		{"TCPHostMemory", uint8(c.TCPHostMemory), uint8(Direct), "Staged or Direct"}, {"TCPNotifications", uint8(c.TCPNotifications), uint8(Off), "Default, On or Off"},
		{"NotificationRPCFallback", uint8(c.NotificationRPCFallback), uint8(Off), "Default, On or Off"},
	} {
		if n.value > n.last {
			return invalid("Config.%s is %d; it must be %s", n.name, n.value, n.constants)
		}
	}
	if c.Lanes < 0 || c.Lanes > 64 {
		return invalid("Config.Lanes is %d; it must be 0 (automatic) to 64", c.Lanes)
	}
	if err := c.Limits.complete(); err != nil {
		return err
	}
	if err := c.completeRDMA(); err != nil {
		return err
	}
	if err := c.completeHPTCP(); err != nil {
		return err
	}
	if c.Lanes > c.Limits.PeerSegments {
		return invalid("Config.Lanes is %d, but Limits.PeerSegments only %d; each lane needs a stream", c.Lanes, c.Limits.PeerSegments)
	}
	return nil
}

func (l *Limits) complete() error {
	for _, n := range []struct {
		name     string
		value    *int
		standard int
	}{
		{"Registrations", &l.Registrations, 1024}, {"BatchRequests", &l.BatchRequests, 1024}, {"Batches", &l.Batches, 32},
		{"BatchSlots", &l.BatchSlots, 32768}, {"Submissions", &l.Submissions, 32}, {"SourceHandlers", &l.SourceHandlers, 4},
		{"SourceQueue", &l.SourceQueue, 4}, {"PeerSegments", &l.PeerSegments, 1024}, {"Notifications", &l.Notifications, 1024},
		{"Lookups", &l.Lookups, 32},
	} {
		if *n.value < 0 {
			return invalid("Config.Limits.%s is %d; it must not be negative", n.name, *n.value)
		}
		set(n.value, n.standard)
	}
	set(&l.RegisteredBytes, 1<<30)
	set(&l.SubmittedBytes, 64<<20)
	set(&l.PayloadBytes, 8<<20)
	l.completeNotifications()
	switch {
	case l.PayloadBytes > payloadBytesMax:
		return invalid("Config.Limits.PayloadBytes is %d; it must be at most %d", l.PayloadBytes, payloadBytesMax)
	case l.NotificationBytes > netproto.NotificationBytesMax:
		return invalid("Config.Limits.NotificationBytes is %d; it must be at most %d", l.NotificationBytes, netproto.NotificationBytesMax)
	}
	if l.NotificationBytes > l.NotificationQueue {
		return invalid("Config.Limits.NotificationBytes is %d, but Limits.NotificationQueue only %d; the inbox could never take such a notification", l.NotificationBytes, l.NotificationQueue)
	}
	for _, n := range []struct {
		name  string
		bytes uint64
	}{{"RegisteredBytes", l.RegisteredBytes}, {"SubmittedBytes", l.SubmittedBytes}, {"NotificationQueue", l.NotificationQueue}} {
		if n.bytes > 1<<62 {
			return invalid("Config.Limits.%s is %d; it must be at most %d", n.name, n.bytes, uint64(1)<<62)
		}
	}
	return nil
}

// completeNotifications fills in what is zero so that the queue takes the largest notification.
func (l *Limits) completeNotifications() {
	if l.NotificationQueue == 0 {
		l.NotificationQueue = max(1<<20, l.NotificationBytes)
	}
	set(&l.NotificationBytes, min(64<<10, l.NotificationQueue))
}

func set[T int | uint64 | time.Duration](value *T, standard T) {
	if *value == 0 {
		*value = standard
	}
}

func setString(value *string, standard string) {
	if *value == "" {
		*value = standard
	}
}

func invalid(format string, args ...any) error {
	return &Error{Index: -1, Class: ErrInvalid, Cause: fmt.Errorf(format, args...)}
}

// lanesFor is the default number of lanes: whole CPUs of the quota, no more than the mask has, at most four. Busy ones
// never give theirs back, and the callers need one, too.
func lanesFor(cpus int, quota float64, busy bool) int {
	n := min(cpus, runtime.GOMAXPROCS(0))
	if quota > 0 {
		n = min(n, int(quota))
	}
	if busy {
		n--
	}
	return max(min(n, 4), 1)
}
