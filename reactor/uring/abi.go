package uring

// The system's interface, linux/io_uring.h. Sizes are checked by TestLayoutMatchesTheHeader.

// SubmissionEntry is struct io_uring_sqe. Its unions are named after the use made of them here.
type SubmissionEntry struct {
	Opcode    uint8
	Flags     uint8
	Priority  uint16 // for RECV and SEND: recvSendPollFirst
	FD        int32
	Offset    uint64
	Address   uint64
	Length    uint32 // for POLL_ADD: pollAddMulti
	OpFlags   uint32 // msg_flags, poll32_events, cancel_flags
	UserData  uint64
	Buffer    uint16
	Identity  uint16
	FileIndex int32
	Address3  uint64
	_         uint64
}

// CompletionEvent is struct io_uring_cqe.
type CompletionEvent struct {
	UserData uint64
	Result   int32
	Flags    uint32
}

// parameters is struct io_uring_params.
type parameters struct {
	sqEntries, cqEntries, flags, sqThreadCPU, sqThreadIdle, features, wqFD uint32
	reserved                                                               [3]uint32
	sq                                                                     ringOffsets
	cq                                                                     ringOffsets
}

// ringOffsets is struct io_sqring_offsets and io_cqring_offsets, which differ from the fifth field on.
type ringOffsets struct {
	head, tail, mask, entries uint32
	fifth                     uint32 // sq: flags; cq: overflow
	sixth                     uint32 // sq: dropped; cq: cqes
	seventh                   uint32 // sq: array; cq: flags
	_                         uint32
	_                         uint64
}

// waitArgument is struct io_uring_getevents_arg, and the timespec it points to.
type waitArgument struct {
	signalMask     uint64
	signalMaskSize uint32
	_              uint32
	timespec       uint64 // address of seconds
	seconds        int64
	nanoseconds    int64
}

// block is what an entry of two buffers points to: struct msghdr and its two struct iovec.
type block struct {
	name          uint64
	nameLength    uint32
	_             uint32
	vectors       uint64 // address of vector
	vectorCount   uint64
	control       uint64
	controlLength uint64
	flags         uint32
	_             uint32
	vector        [2]struct{ base, length uint64 }
	_             [40]byte // two blocks to three cache lines would share one
}

const (
	opPollAdd     = 6
	opSendMsg     = 9
	opRecvMsg     = 10
	opAsyncCancel = 14
	opSend        = 26
	opRecv        = 27

	setupCQSize       = 1 << 3
	setupClamp        = 1 << 4
	setupDisabled     = 1 << 6
	setupSubmitAll    = 1 << 7
	setupCoopTaskrun  = 1 << 8
	setupTaskrunFlag  = 1 << 9
	setupSingleIssuer = 1 << 12
	setupDeferTaskrun = 1 << 13
	setupNoSQArray    = 1 << 16

	featSingleMmap   = 1 << 0
	featNoDrop       = 1 << 1
	featSubmitStable = 1 << 2
	featFastPoll     = 1 << 5
	featPoll32       = 1 << 6
	featExtArg       = 1 << 8
	// features is what the kernel must have. EXT_ARG, the youngest, came with Linux 5.11, as did every
	// operation used here.
	featuresNeeded = featSingleMmap | featNoDrop | featSubmitStable | featFastPoll | featPoll32 | featExtArg

	enterGetEvents = 1 << 0
	enterExtArg    = 1 << 3

	sqCQOverflow = 1 << 1
	sqTaskrun    = 1 << 2

	cqeMore           = 1 << 1
	cqeSocketNonempty = 1 << 2

	registerFiles       = 2
	registerEnableRings = 12

	recvSendPollFirst = 1 << 0
	pollAddMulti      = 1 << 0

	offsetRings   = 0
	offsetEntries = 0x10000000
)
