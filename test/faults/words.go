package faults

import (
	"fmt"
	"slices"
	"time"
)

// Kind says what a form does.
type Kind uint8

// The head of a script.
const (
	World Kind = iota + 1
	Engine
)

// What programs do.
const (
	Allocate Kind = iota + 10
	FreeMemory
	Register
	Unregister
	Fill
	OpenSegment
	Refresh
	CloseSegment
	Transfer
	Submit
	Cancel
	FreeBatch
	RetryNotes
	Notify
	Receive
	CloseSource
	CloseRequester
	Close
	Start
	RegisterBadBatch
)

// Faults.
const (
	Kill Kind = iota + 40
	Stop
	Continue
	Reset
	ResetAfter
	HalfClose
	Stall
	BlackHole
	Delay
	FailAccepts
	FailConnects
	FailOpens
	HangConnects
	LimitDescriptors
	StepWall
	Advance
)

// Faults of RDMA devices, their links and their library.
const (
	PortDown Kind = iota + 60
	PortUp
	ChangeGID
	RemoveDevice
	CutRail
	DelayRail
	SpoilCompletion
	BadWork
	FailCall
)

// Faults of GPUs and their driver.
const (
	SlowCopy Kind = iota + 80
	SpoilCallback
	FailDriver
	LoseGPU
)

// Param names one value of a form.
type Param uint8

const (
	Seed Param = iota + 1
	Engines
	DelayMin
	DelayMax
	ChopReceive
	ChopSend
	Buffer
	Descriptors
	Ports
	CallCost
	Poison
	Number
	Placement
	Lanes
	Registrations
	RegisteredBytes
	BatchRequests
	Batches
	BatchSlots
	Submissions
	SubmittedBytes
	PayloadBytes
	Handlers
	Queue
	PeerSegments
	Notifications
	NotificationQueue
	NotificationBytes
	RequestTimeout
	SourceTimeout
	IdleTimeout
	KeepaliveIdle
	UserTimeout
	TCPNotes
	RPCNotes
	EngineOf
	Peer
	Memory
	Length
	Offset
	Registration
	Permission
	Stamp
	Segment
	Stale
	Batch
	Deadline
	Note
	Size
	Target
	At
	Connection
	Direction
	Bytes
	On
	Errno
	Count
	By
	Adopted
	Within
	Doubles
	RDMA
	Rails
	Plain
	HostMemory
	RDMAProgress
	Width
	BlockBytes
	Endpoints
	Grants
	SendWork
	CompletionEntries
	DirectBytes
	StagingBytes
	CachedRegions
	KeyIndices
	Transport
	Rail
	Way
	Index
	Element
	Unknown
	Call
	HPTCP
	DataStreams
	DataSlots
	ChunkBytes
	CreditBytes
	Checksums
	Atomic
	Page
	GPUs
	CopyMin
	CopyMax
	CallbackMax
	PinnedChunk
	PinnedChunks
	GPU
	Pinned
	DriverCall
	Sticky
	GPUDirect
	Unordered
	Peermem
	RemoteStaging
	PinnedSlots
	PeerSlots
	Slots
	Reorder
)

// form is how a value is written.
type form uint8

const (
	number form = iota
	duration
	step // a duration that may be negative
	word
)

type spec struct {
	name  string
	form  form
	words []string // by value, for word
}

var (
	onOff       = []string{"off", "on"}
	placements  = []string{"staged", "direct"}
	permissions = []string{"local-only", "remote-read", "remote-write", "read-write"}
	directions  = []string{"to-server", "to-client"}
	// personalities are simverbs', behind "off".
	personalities = []string{"off", "hardware", "softroce", "softroce-6.1"}
	transports    = []string{"tcp", "rdma", "hptcp"}
	ways          = []string{"lose", "late", "double", "foreign-id", "foreign-pair", "full-queue"}
	// calls are the names of native calls (verbs/simverbs, Call), as manual pages have them.
	calls = []string{
		"ibv_modify_qp", "ibv_create_qp", "ibv_destroy_qp", "ibv_reg_mr", "ibv_dereg_mr", "ibv_alloc_mw", "ibv_dealloc_mw", "ibv_create_cq",
		"ibv_destroy_cq", "ibv_poll_cq", "ibv_req_notify_cq", "ibv_get_cq_event", "ibv_dealloc_pd", "ibv_close_device", "ibv_query_port",
		"ibv_query_gid_ex", "ibv_alloc_pd", "ibv_reg_dmabuf_mr",
	}
	// driverCalls are names of driver calls (cuda/simcuda, Call), and read, the one of a signal's eventfd.
	driverCalls = []string{
		"cuMemcpyAsync", "cuEventRecord", "cuLaunchHostFunc", "cuEventQuery", "cuStreamSynchronize", "cuCtxPopCurrent_v2", "read", "cuMemAlloc_v2",
		"cuMemHostAlloc", "cuStreamCreate", "cuEventCreate", "cuDevicePrimaryCtxRetain", "cuMemFree_v2", "cuMemFreeHost", "cuEventDestroy_v2",
		"cuStreamDestroy_v2", "cuDevicePrimaryCtxRelease_v2", "cuFlushGPUDirectRDMAWrites", "cuPointerSetAttribute", "cuMemGetHandleForAddressRange",
	}
	errnos = []string{"EMFILE", "ENFILE", "ENOBUFS", "ECONNABORTED", "EINTR", "ENOMEM", "ECONNREFUSED", "ENETUNREACH", "ETIMEDOUT"}
)

var params = map[Param]spec{
	Seed: {name: "seed"}, Engines: {name: "engines"}, DelayMin: {name: "delay-min", form: duration},
	DelayMax: {name: "delay-max", form: duration}, ChopReceive: {name: "chop-receive"}, ChopSend: {name: "chop-send"},
	Reorder: {name: "reorder"}, Buffer: {name: "buffer"}, Descriptors: {name: "descriptors"}, Ports: {name: "ports"}, CallCost: {name: "call-cost", form: duration},
	Poison: {name: "poison", form: word, words: onOff}, Number: {name: "number"},
	Placement: {name: "placement", form: word, words: placements}, Lanes: {name: "lanes"},
	Registrations: {name: "registrations"}, RegisteredBytes: {name: "registered-bytes"}, BatchRequests: {name: "batch-requests"},
	Batches: {name: "batches"}, BatchSlots: {name: "batch-slots"}, Submissions: {name: "submissions"},
	SubmittedBytes: {name: "submitted-bytes"}, PayloadBytes: {name: "payload-bytes"}, Handlers: {name: "handlers"},
	Queue: {name: "queue"}, PeerSegments: {name: "peer-segments"}, Notifications: {name: "notifications"},
	NotificationQueue: {name: "notification-queue"}, NotificationBytes: {name: "notification-bytes"},
	RequestTimeout: {name: "request-timeout", form: duration}, SourceTimeout: {name: "source-timeout", form: duration},
	IdleTimeout: {name: "idle-timeout", form: duration}, KeepaliveIdle: {name: "keepalive-idle", form: duration},
	UserTimeout: {name: "user-timeout", form: duration}, TCPNotes: {name: "tcp-notes", form: word, words: []string{"default", "on", "off"}},
	RPCNotes: {name: "rpc-notes", form: word, words: []string{"default", "on", "off"}},
	EngineOf: {name: "engine"}, Peer: {name: "peer"}, Memory: {name: "memory"}, Length: {name: "length"}, Offset: {name: "offset"},
	Registration: {name: "registration"}, Permission: {name: "permission", form: word, words: permissions}, Stamp: {name: "stamp"},
	Segment: {name: "segment"}, Stale: {name: "stale", form: word, words: onOff}, Batch: {name: "batch"},
	Deadline: {name: "deadline", form: duration}, Note: {name: "note"}, Size: {name: "size"}, Target: {name: "target"}, At: {name: "at"},
	Connection: {name: "connection"}, Direction: {name: "direction", form: word, words: directions}, Bytes: {name: "bytes"},
	On: {name: "state", form: word, words: onOff}, Errno: {name: "errno", form: word, words: errnos}, Count: {name: "count"},
	By: {name: "by", form: step}, Adopted: {name: "adopted", form: word, words: onOff}, Within: {name: "within", form: duration},
	Doubles: {name: "doubles"}, RDMA: {name: "rdma", form: word, words: personalities}, Rails: {name: "rails"},
	Plain: {name: "plain", form: word, words: onOff}, HostMemory: {name: "host-memory", form: word, words: []string{"direct", "staged"}},
	RDMAProgress: {name: "progress", form: word, words: []string{"events", "polling"}}, Width: {name: "width"}, BlockBytes: {name: "block-bytes"},
	Endpoints: {name: "endpoints"}, Grants: {name: "grants"}, SendWork: {name: "send-wr"}, CompletionEntries: {name: "cqes"},
	DirectBytes: {name: "direct-bytes"}, StagingBytes: {name: "staging-bytes"}, CachedRegions: {name: "cached-mrs"}, KeyIndices: {name: "key-indices"},
	Transport: {name: "transport", form: word, words: transports}, Rail: {name: "rail"}, Way: {name: "way", form: word, words: ways},
	Index: {name: "index"}, Element: {name: "element"}, Unknown: {name: "unknown", form: word, words: onOff},
	Call: {name: "call", form: word, words: calls}, HPTCP: {name: "hptcp", form: word, words: onOff}, DataStreams: {name: "data-streams"},
	DataSlots: {name: "data-slots"}, ChunkBytes: {name: "chunk-bytes"}, CreditBytes: {name: "credit-bytes"},
	Checksums: {name: "checksums", form: word, words: onOff}, Atomic: {name: "atomic", form: word, words: onOff}, Page: {name: "page"},
	GPUs: {name: "gpus"}, CopyMin: {name: "copy-min", form: duration}, CopyMax: {name: "copy-max", form: duration},
	CallbackMax: {name: "callback-max", form: duration}, PinnedChunk: {name: "pinned-chunk"}, PinnedChunks: {name: "pinned-chunks"},
	GPU: {name: "gpu"}, Pinned: {name: "pinned", form: word, words: onOff}, Sticky: {name: "sticky", form: word, words: onOff},
	DriverCall: {name: "driver-call", form: word, words: driverCalls}, GPUDirect: {name: "gpu-direct", form: word, words: onOff},
	Unordered: {name: "unordered", form: word, words: onOff}, Peermem: {name: "peermem", form: word, words: onOff},
	RemoteStaging: {name: "remote-staging", form: word, words: onOff}, PinnedSlots: {name: "pinned-slots"}, PeerSlots: {name: "peer-slots"},
	Slots: {name: "slots"},
}

type kindSpec struct {
	name     string
	params   []Param // in the order in which they are printed
	requests bool
}

var kinds = map[Kind]kindSpec{
	World: {name: "world", params: []Param{Seed, Engines, DelayMin, DelayMax, ChopReceive, ChopSend, Buffer, Descriptors, Ports, CallCost, Poison, Doubles, RDMA, Rails, Reorder}},
	Engine: {name: "engine", params: []Param{Number, Placement, Lanes, Registrations, RegisteredBytes, BatchRequests, Batches, BatchSlots,
		Submissions, SubmittedBytes, PayloadBytes, Handlers, Queue, PeerSegments, Notifications, NotificationQueue, NotificationBytes,
		RequestTimeout, SourceTimeout, IdleTimeout, KeepaliveIdle, UserTimeout, TCPNotes, RPCNotes, Plain, HostMemory, RDMAProgress, Width, BlockBytes, Endpoints, Grants, SendWork,
		CompletionEntries, DirectBytes, StagingBytes, CachedRegions, KeyIndices, HPTCP, DataStreams, DataSlots, ChunkBytes,
		CreditBytes, Checksums, GPUs, CopyMin, CopyMax, CallbackMax, PinnedChunk, PinnedChunks, GPUDirect, Unordered, Peermem,
		RemoteStaging, PinnedSlots, PeerSlots}},

	Allocate:         {name: "allocate", params: []Param{EngineOf, Memory, Length, Adopted, GPU, Pinned}},
	FreeMemory:       {name: "free-memory", params: []Param{Memory}},
	RegisterBadBatch: {name: "register-bad-batch", params: []Param{EngineOf, Memory, Offset, Length, Permission}},

	Register:       {name: "register", params: []Param{EngineOf, Registration, Memory, Offset, Length, Permission}},
	Unregister:     {name: "unregister", params: []Param{Registration, Deadline}},
	Fill:           {name: "fill", params: []Param{Memory, Offset, Length, Stamp}},
	OpenSegment:    {name: "open-segment", params: []Param{EngineOf, Segment, Peer, Stale, Deadline}},
	Refresh:        {name: "refresh", params: []Param{Segment, Deadline}},
	CloseSegment:   {name: "close-segment", params: []Param{Segment, Deadline}},
	Transfer:       {name: "transfer", params: []Param{EngineOf, Deadline, Note, Size, Within}, requests: true},
	Submit:         {name: "submit", params: []Param{EngineOf, Batch, Deadline, Note, Size, Within}, requests: true},
	Cancel:         {name: "cancel", params: []Param{EngineOf, Batch}},
	FreeBatch:      {name: "free-batch", params: []Param{Batch}},
	RetryNotes:     {name: "retry-notes", params: []Param{Batch, Deadline}},
	Notify:         {name: "notify", params: []Param{EngineOf, Segment, Note, Size, Deadline}},
	Receive:        {name: "receive", params: []Param{EngineOf}},
	CloseSource:    {name: "close-source", params: []Param{EngineOf, Deadline}},
	CloseRequester: {name: "close-requester", params: []Param{EngineOf, Deadline}},
	Close:          {name: "close", params: []Param{EngineOf}},
	Start:          {name: "start", params: []Param{EngineOf}},

	Kill:             {name: "kill", params: []Param{EngineOf}},
	Stop:             {name: "stop", params: []Param{EngineOf}},
	Continue:         {name: "continue", params: []Param{EngineOf}},
	Reset:            {name: "reset", params: []Param{EngineOf, Connection}},
	ResetAfter:       {name: "reset-after", params: []Param{EngineOf, Connection, Direction, Bytes}},
	HalfClose:        {name: "half-close", params: []Param{EngineOf, Connection, Direction}},
	Stall:            {name: "stall", params: []Param{EngineOf, Connection, Direction, On}},
	BlackHole:        {name: "black-hole", params: []Param{EngineOf, Peer, On}},
	Delay:            {name: "delay", params: []Param{EngineOf, Peer, DelayMin, DelayMax}},
	FailAccepts:      {name: "fail-accepts", params: []Param{EngineOf, Errno, Count}},
	FailConnects:     {name: "fail-connects", params: []Param{EngineOf, Errno, Count}},
	FailOpens:        {name: "fail-opens", params: []Param{EngineOf, Errno, Count}},
	HangConnects:     {name: "hang-connects", params: []Param{EngineOf, Count}},
	LimitDescriptors: {name: "limit-descriptors", params: []Param{EngineOf, Count}},
	StepWall:         {name: "step-wall", params: []Param{By}},
	Advance:          {name: "advance", params: []Param{By}},

	PortDown:        {name: "port-down", params: []Param{EngineOf, Rail}},
	PortUp:          {name: "port-up", params: []Param{EngineOf, Rail}},
	ChangeGID:       {name: "change-gid", params: []Param{EngineOf, Rail}},
	RemoveDevice:    {name: "remove-device", params: []Param{EngineOf, Rail}},
	CutRail:         {name: "cut-rail", params: []Param{EngineOf, Peer, Rail, On}},
	DelayRail:       {name: "delay-rail", params: []Param{EngineOf, Peer, Rail, DelayMin, DelayMax}},
	SpoilCompletion: {name: "spoil-completion", params: []Param{EngineOf, Way, Index, Count, By}},
	BadWork:         {name: "bad-work", params: []Param{EngineOf, Element, Unknown, Index, Count}},
	FailCall:        {name: "fail-call", params: []Param{EngineOf, Call, Errno, Index, Count}},

	SlowCopy:      {name: "slow-copy", params: []Param{EngineOf, Index, Count, By}},
	SpoilCallback: {name: "spoil-callback", params: []Param{EngineOf, Way, Index, Count, By}},
	FailDriver:    {name: "fail-driver", params: []Param{EngineOf, DriverCall, Sticky, Unknown, Index, Count}},
	LoseGPU:       {name: "lose-gpu", params: []Param{EngineOf, GPU, By}},
}

var (
	kindByName  = map[string]Kind{}
	paramByName = map[string]Param{}
)

func init() {
	for k, s := range kinds {
		kindByName[s.name] = k
	}
	for p, s := range params {
		if _, again := paramByName[s.name]; again {
			panic("faults: two parameters are named " + s.name)
		}
		paramByName[s.name] = p
	}
}

// String is the word of the text form.
func (k Kind) String() string {
	if s, ok := kinds[k]; ok {
		return s.name
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// IsFault is true exactly for what happens to programs, and not by them.
func (k Kind) IsFault() bool { return k >= Kill }

// Params lists the parameters of the kind, in the order in which they are printed.
func (k Kind) Params() []Param { return slices.Clone(kinds[k].params) }

// Has is true exactly when an action of this kind has the parameter, written or left out.
func (k Kind) Has(p Param) bool { return slices.Contains(kinds[k].params, p) }

// String is the word of the text form.
func (p Param) String() string {
	if s, ok := params[p]; ok {
		return s.name
	}
	return fmt.Sprintf("parameter %d", uint8(p))
}

// Words lists the values of a parameter that is written as a word; nil for another one.
func (p Param) Words() []string { return params[p].words }

// Kinds lists every action in a fixed order: what programs do, then faults.
func Kinds() []Kind {
	var all []Kind
	for k := Allocate; k <= LoseGPU; k++ {
		if _, ok := kinds[k]; ok {
			all = append(all, k)
		}
	}
	return all
}

func appendValue(text []byte, p Param, value int64) []byte {
	switch s := params[p]; s.form {
	case duration, step:
		return append(text, time.Duration(value).String()...)
	case word:
		if value >= 0 && value < int64(len(s.words)) {
			return append(text, s.words[value]...)
		}
	}
	return fmt.Append(text, value)
}
