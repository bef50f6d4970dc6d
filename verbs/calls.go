package verbs

// Handles name native objects. They are opaque: the library's own numbers, never dereferenced here, valid from
// the call that made the object until the call that destroyed it. Zero names nothing.
type (
	// DeviceHandle is an opened device (struct ibv_context).
	DeviceHandle uint64
	// DomainHandle is a protection domain (struct ibv_pd).
	DomainHandle uint64
	// ChannelHandle is a completion channel (struct ibv_comp_channel).
	ChannelHandle uint64
	// QueueHandle is a completion queue (struct ibv_cq).
	QueueHandle uint64
	// PairHandle is a queue pair (struct ibv_qp).
	PairHandle uint64
	// RegionHandle is a memory region (struct ibv_mr).
	RegionHandle uint64
	// WindowHandle is a memory window (struct ibv_mw).
	WindowHandle uint64
)

// Keys and numbers that devices give out.
type (
	// LocalKey lets this side's work requests name a memory region.
	LocalKey uint32
	// RemoteKey lets a peer's work requests name a memory region or window. Its low byte is the tag that a
	// bind changes; the rest is the index.
	RemoteKey uint32
	// PairNumber is a queue pair's number on its port, 24 bits.
	PairNumber uint32
	// GID is a port's address, as the wire has it.
	GID [16]byte
)

// Calls is the native library behind everything in this package, one method for each raw call. A program gets one
// from verbs/libibverbs (the real library) or verbs/simverbs (the twin) and passes it in the engine's configuration.
//
// Every method may be called from any goroutine, as libibverbs allows; calls about one object are serialised by its
// owner in this package. No method keeps a slice that it was given, none blocks on the peer unless its comment says
// "slow" (these belong on the cold loop), and PostSend, PostReceive, Poll, Arm, NextEvent and NextAsync allocate
// nothing. A failure is a *CallError; it says whether the effect is known.
type Calls interface {
	// Library says what was loaded.
	Library() Library

	// Devices lists the devices that the process can see (ibv_get_device_list), in the library's order. Slow.
	Devices() ([]DeviceInfo, error)
	// OpenDevice opens a device by its name (ibv_open_device). Slow. The context's async descriptor is non-blocking.
	OpenDevice(name string) (DeviceHandle, error)
	// CloseDevice is ibv_close_device. Slow.
	CloseDevice(DeviceHandle) error
	// DeviceLimits is ibv_query_device.
	DeviceLimits(DeviceHandle) (Limits, error)
	// Port is ibv_query_port.
	Port(d DeviceHandle, port uint8) (PortInfo, error)
	// GIDs lists the entries of a port's GID table that are not empty, by rising index, each with its type and
	// network interface (ibv_query_gid_ex, or sysfs where the library is older). Slow.
	GIDs(d DeviceHandle, port uint8) ([]GIDEntry, error)
	// AsyncDescriptor is the file descriptor that becomes readable when NextAsync has something.
	AsyncDescriptor(DeviceHandle) int
	// NextAsync takes one asynchronous event and acknowledges it (ibv_get_async_event, ibv_ack_async_event); false:
	// there is none. It never blocks.
	NextAsync(DeviceHandle) (AsyncEvent, bool, error)

	AllocateDomain(DeviceHandle) (DomainHandle, error) // ibv_alloc_pd
	FreeDomain(DomainHandle) error                     // ibv_dealloc_pd

	CreateChannel(DeviceHandle) (ChannelHandle, error) // ibv_create_comp_channel; its descriptor is non-blocking
	DestroyChannel(ChannelHandle) error                // ibv_destroy_comp_channel
	// ChannelDescriptor is the file descriptor that becomes readable when NextEvent has something.
	ChannelDescriptor(ChannelHandle) int
	// NextEvent takes one completion event, acknowledges it and names its queue (ibv_get_cq_event,
	// ibv_ack_cq_events); false: there is none. It never blocks.
	NextEvent(ChannelHandle) (QueueHandle, bool, error)

	// CreateQueue is ibv_create_cq for at least entries completions; the channel may be zero.
	CreateQueue(d DeviceHandle, entries int, c ChannelHandle) (QueueHandle, error)
	DestroyQueue(QueueHandle) error // ibv_destroy_cq; slow while events are unacknowledged
	// Arm asks for one event when the next completion arrives (ibv_req_notify_cq). Completions that are in the queue
	// already raise none: arm, then poll again.
	Arm(QueueHandle) error
	// Poll takes completions from two queues in one crossing (ibv_poll_cq twice): first sends into out, then receives
	// behind them. It returns how many of each. Either queue may be zero, and both may be the same. After an error
	// what was taken before it is still returned.
	Poll(sends, receives QueueHandle, out []Completion) (sent, received int, err error)

	// CreatePair is ibv_create_qp for a reliable connection.
	CreatePair(DomainHandle, PairOptions) (PairHandle, PairNumber, error)
	// ModifyPair is ibv_modify_qp to the transition's state, with exactly the attributes that the state needs. To
	// ReadyToReceive is slow: it may resolve an address (one second when nobody has it).
	ModifyPair(PairHandle, Transition) error
	QueryPair(PairHandle) (PairState, error) // ibv_query_qp
	DestroyPair(PairHandle) error            // ibv_destroy_qp; slow

	// Register is ibv_reg_mr of memory at an address of this process. Slow: it pins every page.
	Register(d DomainHandle, address, length uint64, a Access) (RegionHandle, LocalKey, RemoteKey, error)
	// RegisterDescriptor is ibv_reg_dmabuf_mr.
	RegisterDescriptor(d DomainHandle, offset, length, address uint64, descriptor int, a Access) (RegionHandle, LocalKey, RemoteKey, error)
	Deregister(RegionHandle) error // ibv_dereg_mr; slow

	AllocateWindow(DomainHandle) (WindowHandle, RemoteKey, error) // ibv_alloc_mw, type 2
	FreeWindow(WindowHandle) error                                // ibv_dealloc_mw; ends a bound window's authority

	// PostSend posts work in order (ibv_post_send of one list). The count is how many the device accepted. With an
	// error it is what bad_wr proves; a negative count says that the library left it unknown, and every element may
	// have been accepted.
	PostSend(PairHandle, []SendWork) (accepted int, err error)
	// PostReceive is ibv_post_recv, with the same meaning of the count.
	PostReceive(PairHandle, []ReceiveWork) (accepted int, err error)
}

// Library says which native library stands behind Calls.
type Library struct {
	Name    string // "libibverbs" or "simverbs"
	Path    string // the file that the loader took; empty for a twin
	Version string // what the file says of itself, such as "1.14.44.0"; empty when unknown
}

// DeviceInfo is one device before it is opened.
type DeviceInfo struct {
	Name       string // "mlx5_0", "rxe0"
	GUID       uint64 // host byte order
	SysfsPath  string // /sys/class/infiniband/NAME; empty for a twin
	NUMANode   int    // -1: unknown
	PCI        string // the PCI address, such as "0000:18:00.0"; empty: none, as for soft-RoCE
	Accessible error  // why the process cannot open it (permission, missing uverbs node); nil: it can
}

// Limits are what a device allows (struct ibv_device_attr). Counts are whole devices', shared by all processes.
type Limits struct {
	Firmware                                 string
	Pairs, PairWork, SGE, Queues, QueueDepth int
	Regions, Windows, Domains, ReadAtomic    int
	RegionBytes                              uint64
	Ports                                    int
	WindowsType2B                            bool // IBV_DEVICE_MEM_WINDOW_TYPE_2B
	RelaxedOrdering                          bool
}

// PortState is enum ibv_port_state.
type PortState uint8

const (
	PortNop PortState = iota
	PortDown
	PortInit
	PortArmed
	PortActive
	PortActiveDefer
)

// PortInfo is struct ibv_port_attr, as far as a route needs it.
type PortInfo struct {
	State      PortState
	Ethernet   bool // link layer; otherwise InfiniBand
	MTU        int  // active, bytes
	GIDs       int  // size of the GID table
	LID        uint16
	MaxMessage uint32
	// BitsPerSecond is lanes × rate per lane as the port reports it; 0: unknown.
	BitsPerSecond uint64
}

// GIDType is the protocol that a GID stands for.
type GIDType uint8

const (
	GIDInfiniBand GIDType = iota
	GIDRoCEv1
	GIDRoCEv2
)

// GIDEntry is one entry of a port's table.
type GIDEntry struct {
	Index     int
	GID       GID
	Type      GIDType
	Interface string // the network interface; empty: none
}

// AsyncKind is enum ibv_event_type, with the kernel's numbers.
type AsyncKind uint8

const (
	AsyncQueueError AsyncKind = iota // IBV_EVENT_CQ_ERR
	AsyncPairFatal
	AsyncPairRequestError
	AsyncPairAccessError
	AsyncCommunicationEstablished
	AsyncSendQueueDrained
	AsyncPathMigrated
	AsyncPathMigrationError
	AsyncDeviceFatal
	AsyncPortActive
	AsyncPortError
	AsyncLIDChange
	AsyncPKeyChange
	AsyncManagerChange
	AsyncSharedReceiveError
	AsyncSharedReceiveLimit
	AsyncPairLastWork
	AsyncClientReregister
	AsyncGIDChange
)

// AsyncEvent is struct ibv_async_event: what happened, and to which object. Only the field that fits the kind is set.
type AsyncEvent struct {
	Kind  AsyncKind
	Port  uint8
	Queue QueueHandle
	Pair  PairHandle
}

// Access is enum ibv_access_flags, with its bits.
type Access uint32

const (
	AccessLocalWrite  Access = 1 << 0
	AccessRemoteWrite Access = 1 << 1
	AccessRemoteRead  Access = 1 << 2
	AccessWindowBind  Access = 1 << 4
	AccessRelaxed     Access = 1 << 20 // IBV_ACCESS_RELAXED_ORDERING; a device may ignore it
)

// PairOptions is struct ibv_qp_init_attr. Depths are what the owner will use: devices round them up, and the owner
// never uses more than it asked for.
type PairOptions struct {
	Sends, Receives         QueueHandle
	SendDepth, ReceiveDepth int
	Inline                  int // bytes
}

// PairState is enum ibv_qp_state.
type PairState uint8

const (
	PairReset PairState = iota
	PairInit
	PairReadyToReceive
	PairReadyToSend
	PairDraining
	PairSendError
	PairError
)

// Transition moves a queue pair to a state. Only the fields of that state are read.
type Transition struct {
	To   PairState
	Port uint8 // Init and ReadyToReceive: the address vector names it too

	Access Access // Init: what a peer may do at all over this pair

	// ReadyToReceive:
	Remote           PairNumber
	ReceiveStart     uint32 // rq_psn
	MTU              int    // bytes
	SourceGID        int    // index on this side's port
	RemoteGID        GID
	RemoteLID        uint16 // InfiniBand
	HopLimit         uint8
	TrafficClass     uint8
	ServiceLevel     uint8
	ReadsAnswered    uint8 // max_dest_rd_atomic
	ReceiverNotReady uint8 // min_rnr_timer code

	// ReadyToSend:
	SendStart       uint32 // sq_psn
	Timeout         uint8  // 4.096 µs · 2^Timeout
	Retries         uint8  // at most 6: soft-RoCE takes 7 for "for ever"
	NotReadyRetries uint8
	ReadsAsked      uint8 // max_rd_atomic
}

// SendOperation is what one piece of send work does.
//
// BindWindow: the native library remembers a window's present key and names the window by it in the next bind. The
// binding tells it the new key as soon as the bind is accepted. A window whose bind was accepted and did not complete
// with success can therefore only be freed: its key is another one for the device than for the library.
type SendOperation uint32

const (
	Write SendOperation = iota + 1
	Read
	Send
	SendWithInvalidate
	BindWindow
	LocalInvalidate
)

// SendFlags qualify send work (enum ibv_send_flags, with its bits).
type SendFlags uint32

const (
	Fence     SendFlags = 1 << 0
	Signaled  SendFlags = 1 << 1
	Solicited SendFlags = 1 << 2
	Inline    SendFlags = 1 << 3
)

// SendWork is one send work request with one scatter/gather element. Its layout is shared with the C side
// (verbs/libibverbs proves it), so that a list crosses without a copy.
type SendWork struct {
	ID        uint64
	Address   uint64 // local bytes; unused by BindWindow and LocalInvalidate
	Remote    uint64 // Write, Read: where in the peer's memory; BindWindow: first byte of the window
	Span      uint64 // BindWindow: bytes of the window
	Window    WindowHandle
	Region    RegionHandle
	Operation SendOperation
	Flags     SendFlags
	Length    uint32 // local bytes
	LocalKey  LocalKey
	RemoteKey RemoteKey // Write, Read: the peer's key; BindWindow: the new key; the invalidating ones: the key that ends
	Access    Access    // BindWindow: what the window permits
}

// ReceiveWork is one receive work request with one scatter/gather element.
type ReceiveWork struct {
	ID       uint64
	Address  uint64
	Length   uint32
	LocalKey LocalKey
}

// WorkStatus is enum ibv_wc_status, with its numbers.
type WorkStatus uint32

const (
	WorkSuccess WorkStatus = iota
	WorkLocalLength
	WorkLocalPair
	WorkLocalContext
	WorkLocalProtection
	WorkFlushed
	WorkBind
	WorkBadResponse
	WorkLocalAccess
	WorkRemoteRequest
	WorkRemoteAccess
	WorkRemoteOperation
	WorkRetryExceeded
	WorkNotReadyExceeded
	WorkLocalDomain
	WorkRemoteDomain
	WorkRemoteAborted
	WorkInvalidContextNumber
	WorkInvalidContextState
	WorkFatal
	WorkResponseTimeout
	WorkGeneral
)

// CompletionOperation is enum ibv_wc_opcode, with its numbers; meaningless unless the status is success.
type CompletionOperation uint32

const (
	CompletedSend            CompletionOperation = 0
	CompletedWrite           CompletionOperation = 1
	CompletedRead            CompletionOperation = 2
	CompletedBind            CompletionOperation = 5
	CompletedLocalInvalidate CompletionOperation = 6
	CompletedReceive         CompletionOperation = 128
)

// WithImmediate is IBV_WC_WITH_IMM of Completion.Flags: a message with immediate data, which ibv_wc keeps in the very field of
// the key that a SEND_WITH_INV ended. Whoever sends it chooses that number, and nothing was invalidated.
const WithImmediate uint32 = 1 << 1

// Completion is struct ibv_wc. When the status is not success only ID, Status, Vendor and Pair mean anything, as
// ibv_poll_cq(3) says; the twin scrambles the rest.
type Completion struct {
	ID          uint64
	Status      WorkStatus
	Operation   CompletionOperation
	Vendor      uint32
	Length      uint32 // bytes received
	Invalidated RemoteKey
	Pair        PairNumber
	Flags       uint32 // wc_flags; devices differ in how they mark an invalidation: compare the key, and mind WithImmediate
	_           uint32
}
