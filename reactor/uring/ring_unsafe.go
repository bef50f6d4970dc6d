package uring

import (
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setup is io_uring_setup(2).
func setup(entries uint32, p *parameters) (int, syscall.Errno) {
	fd, _, e := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(p)), 0)
	if e != 0 {
		return -1, e
	}
	return int(fd), 0
}

// mapRings maps what the system shares with us.
func (r *Ring) mapRings(p *parameters) error {
	size := max(p.cq.sixth+p.cqEntries*uint32(unsafe.Sizeof(CompletionEvent{})), p.sq.seventh+p.sqEntries*4)
	var err error
	if r.rings, err = mapShared(r.descriptor, offsetRings, int(size)); err != nil {
		return err
	}
	bytes := int(p.sqEntries) * int(unsafe.Sizeof(SubmissionEntry{}))
	if r.entries, err = mapShared(r.descriptor, offsetEntries, bytes); err != nil {
		return err
	}
	if r.private, err = mapPrivate(int(unsafe.Sizeof(waitArgument{}))); err != nil {
		return err
	}
	r.sqHead, r.sqTail = r.word(p.sq.head), r.word(p.sq.tail)
	r.sqFlags = r.word(p.sq.fifth)
	r.cqHead, r.cqTail = r.word(p.cq.head), r.word(p.cq.tail)
	r.sqMask, r.cqMask = *r.word(p.sq.mask), *r.word(p.cq.mask)
	r.sqes = unsafe.Slice((*SubmissionEntry)(unsafe.Pointer(&r.entries[0])), p.sqEntries)
	r.cqes = unsafe.Slice((*CompletionEvent)(unsafe.Pointer(&r.rings[p.cq.sixth])), p.cqEntries)
	if p.flags&setupNoSQArray == 0 {
		// Entry i always stands at place i.
		array := unsafe.Slice(r.word(p.sq.seventh), p.sqEntries)
		for i := range array {
			array[i] = uint32(i)
		}
	}
	r.argument = (*waitArgument)(unsafe.Pointer(&r.private[0]))
	r.argument.timespec = uint64(uintptr(unsafe.Pointer(&r.argument.seconds)))
	return nil
}

func (r *Ring) word(offset uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.rings[offset])) }

func mapShared(fd int, offset int64, size int) ([]byte, error) {
	b, err := unix.Mmap(fd, offset, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	return keepFromChildren(b), err
}

// mapPrivate maps zeroed memory that the collector neither moves nor frees.
func mapPrivate(size int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	return keepFromChildren(b), err
}

// keepFromChildren leaves a mapping out of forked children: the rings' state is shared with the system, and
// copy-on-write would move pages that the system reads.
func keepFromChildren(b []byte) []byte {
	if b != nil {
		_ = unix.Madvise(b, unix.MADV_DONTFORK)
	}
	return b
}

// enter is io_uring_enter(2) that does not wait; raw, since it cannot block.
func (r *Ring) enter(submit uint32) (uint32, syscall.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_IO_URING_ENTER, uintptr(r.descriptor), uintptr(submit), 0, enterGetEvents, 0, 0)
	if e != 0 {
		return 0, e
	}
	return uint32(n), 0
}

// enterAndWait is io_uring_enter(2) that waits for one completion at most d (negative: for ever), by way of
// the Go scheduler, which gives the lane's P away meanwhile.
func (r *Ring) enterAndWait(submit uint32, d time.Duration) (uint32, syscall.Errno) {
	flags, argument, size := uintptr(enterGetEvents), uintptr(0), uintptr(0)
	if d >= 0 {
		r.argument.seconds, r.argument.nanoseconds = int64(d/time.Second), int64(d%time.Second)
		flags |= enterExtArg
		argument, size = uintptr(unsafe.Pointer(r.argument)), unsafe.Offsetof(r.argument.seconds)
	}
	n, _, e := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.descriptor), uintptr(submit), 1, flags, argument, size)
	if e != 0 {
		return 0, e
	}
	return uint32(n), 0
}

// enable is IORING_REGISTER_ENABLE_RINGS (io_uring_register(2)).
func (r *Ring) enable() syscall.Errno {
	_, _, e := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.descriptor), registerEnableRings, 0, 0, 0, 0)
	return e
}

// registerFile is IORING_REGISTER_FILES of one descriptor (io_uring_register(2)).
func (r *Ring) registerFile(fd int32) syscall.Errno {
	_, _, e := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.descriptor), registerFiles, uintptr(unsafe.Pointer(&fd)), 1, 0, 0)
	return e
}

// addressOf is where the system finds b. The operation's record keeps b alive until its completion.
func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// address is where the system finds the block, which is off-heap and stays.
func (b *block) address() uint64 { return uint64(uintptr(unsafe.Pointer(b))) }

// point lets the block describe two buffers of the given lengths.
func (b *block) point(first, second []byte) {
	*b = block{vectorCount: 2}
	b.vectors = uint64(uintptr(unsafe.Pointer(&b.vector)))
	b.vector[0].base, b.vector[0].length = addressOf(first), uint64(len(first))
	b.vector[1].base, b.vector[1].length = addressOf(second), uint64(len(second))
}

// blocksPerChunk blocks are mapped at once.
const blocksPerChunk = 256

// blocks holds one block per operation slot. It grows by whole mappings, so that no block ever moves.
type blocks struct {
	memory [][]byte
	chunks [][]block
}

// at returns the block of a slot, mapping more when needed.
func (b *blocks) at(slot int32) (*block, error) {
	for int(slot) >= len(b.chunks)*blocksPerChunk {
		memory, err := mapPrivate(blocksPerChunk * int(unsafe.Sizeof(block{})))
		if err != nil {
			return nil, err
		}
		b.memory = append(b.memory, memory)
		b.chunks = append(b.chunks, unsafe.Slice((*block)(unsafe.Pointer(&memory[0])), blocksPerChunk))
	}
	return &b.chunks[slot/blocksPerChunk][slot%blocksPerChunk], nil
}

// close unmaps all blocks; nothing may be in the ring any more.
func (b *blocks) close() {
	for _, memory := range b.memory {
		_ = unix.Munmap(memory)
	}
	*b = blocks{}
}
