package staging

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/segments"
)

const (
	// ChunkBytesDefault is the size of one pinned chunk, in bytes.
	ChunkBytesDefault = 1 << 20
	// ChunksDefault is how many chunks a lane has in each role.
	ChunksDefault = 8

	// flowChunksMax is how many chunks one flow uses at most: two overlap copy and network, two more hide how late a
	// lane hears of a copy.
	flowChunksMax = 4
	// acrossMax is how many copies without chunks a lane has under way at most.
	acrossMax = 4
	// lookMin and lookMax are the pauses of the safety timer, which looks at copies that no callback announced.
	lookMin = time.Millisecond
	lookMax = 16 * time.Millisecond
	// confirmWindow is how long a copy may stay unconfirmed before its device counts as hung: nothing is proven about
	// such a copy then, and everything that it may touch is retained. A chunk takes a device less than a millisecond.
	confirmWindow = 30 * time.Second
)

// Role says on whose behalf a lane stages. Each role has chunks of its own: a requester's transfer waits for the peer's
// source, and a source's for its requester. With chunks in common two engines could hold all of both and wait for each
// other; so whoever holds a chunk can always go on with it alone (SPEC C-4).
type Role uint8

const (
	// Requester stages for transfers that this engine asked for.
	Requester Role = iota
	// Source stages for transfers that peers asked for.
	Source
	// Lent has the slots: chunks that peers direct for longer than one copy (SPEC C-8). They are nobody else's, so that
	// a slow peer keeps no transfer waiting.
	Lent
	// Devices has no chunks, but places for copies that need none: from device to device, and to and from pinned memory.
	Devices
	roles
)

var roleNames = [...]string{"requester", "source", "lent", "chunkless"}

func (r Role) String() string { return roleNames[r] }

// Way says which way a flow moves bytes.
type Way uint8

const (
	// Out moves device → chunk → wire.
	Out Way = iota
	// In moves wire → chunk → device.
	In
	// Across moves device → device, or between a device and pinned host memory, in one copy without chunks.
	Across
)

var wayNames = [...]string{"device to host", "host to device", "without chunks"}

func (w Way) String() string { return wayNames[w] }

// Cold takes work that may block: the engine's cold loop (*reactor.Loop). It outlives the stages that use it.
type Cold interface {
	Post(*reactor.Letter, reactor.Recipient) error
}

// Config is what all lanes of an engine agree on.
type Config struct {
	// ChunkBytes is the size of a chunk, at least 1; 0: ChunkBytesDefault.
	ChunkBytes uint64
	// Chunks is how many chunks each lane has in each role; 0: ChunksDefault.
	Chunks int
	// Slots is how many chunks each lane has for peers to direct; 0: none.
	Slots int
	// Budget is charged with the pinned bytes of each lane: (2 × Chunks + Slots) × ChunkBytes, from the first Prepare on.
	Budget *budgets.Budget
	// Cold runs what may block in the driver.
	Cold Cold
}

func (c *Config) complete() {
	if c.ChunkBytes == 0 {
		c.ChunkBytes = ChunkBytesDefault
	}
	if c.Chunks <= 0 {
		c.Chunks = ChunksDefault
	}
}

// LaneBytes is how many pinned bytes each lane takes.
func (c Config) LaneBytes() uint64 {
	c.complete()
	return (2*uint64(c.Chunks) + uint64(c.Slots)) * c.ChunkBytes
}

// chunks is how many chunks a role has.
func (c *Config) chunks(r Role) int {
	if r == Lent {
		return c.Slots
	}
	return c.Chunks
}

// Memory is the device memory that flows copy from and to, under a name for rooms that know nothing else of CUDA.
type Memory = cuda.Memory

// MemoryOf is the device memory behind a registration: the Owner of its Backing, whose address is the device pointer.
// Nil: it is host memory, or somebody else's. The caller holds a loan.
func MemoryOf(r *segments.Registration) *Memory {
	b := r.Backing()
	if b.Kind() != segments.Device {
		return nil
	}
	m, _ := b.Owner().(*Memory)
	return m
}

// PinnedOf is the pinned memory of a driver behind a registration, which a device can copy from and to by itself. Nil: it
// is other memory. The caller holds a loan.
func PinnedOf(r *segments.Registration) *cuda.Pinned {
	b := r.Backing()
	if b.Kind() != segments.Foreign {
		return nil
	}
	p, _ := b.Owner().(*cuda.Pinned)
	return p
}

// OnDevice is true exactly when the registration's bytes cannot be touched by a CPU.
func OnDevice(r *segments.Registration) bool { return r.Backing().Kind() == segments.Device }

var (
	// ErrAbsent says that a lane has no staging: the engine was opened without CUDA.
	ErrAbsent = errors.New("staging: this engine has no CUDA driver, so that device memory cannot be staged; set Config.CUDA")
	// ErrUnprepared says that device memory was used on a lane before Prepare.
	ErrUnprepared = errors.New("staging: the memory was not prepared for this lane")
	// ErrAllRetained says that every chunk of a role is retained, so that nothing can be staged any more.
	ErrAllRetained = errors.New("staging: every pinned chunk is retained after copies whose end is unproven; only a new process can stage again")
	// ErrHung says that a device did not finish a copy, or a drain, within 30 seconds.
	ErrHung = errors.New("staging: the device has not finished a copy for 30 seconds")
	// ErrClosed says that the stage takes no more flows.
	ErrClosed = errors.New("staging: closed")
)

// DeviceLost says that a device takes no more work, since an error of its context stays until the process ends
// (CUDA's sticky errors). Remedy: end the process.
type DeviceLost struct {
	Ordinal int
	Err     error // the first error that stays
}

func (e *DeviceLost) Error() string {
	return fmt.Sprintf("staging: GPU %d takes no more work: %v; only a new process can use it again", e.Ordinal, e.Err)
}

// Unwrap returns the first error that stays.
func (e *DeviceLost) Unwrap() error { return e.Err }

// Stats is a reading of one stage's counts. Any goroutine.
type Stats struct {
	PinnedBytes  uint64 // of this lane's chunks, retained ones included
	Chunks       int64  // of all roles, retained ones included
	InUse        int64  // lent to flows and peers, retained ones included
	Waiting      int64  // flows that wait for their first chunk
	Flying       int64  // copies started and not confirmed
	Retained     int64  // entries of Residues
	Copies       uint64 // ever: confirmed copies
	CopiedBytes  uint64 // and their bytes
	Callbacks    uint64 // ever: host callbacks that were heard of
	TimerFound   uint64 // ever: copies that the safety timer found complete, since no callback had announced them
	Failed       uint64 // ever: copies that failed
	Drained      uint64 // ever: drains after a failure that proved the device quiet
	Stalled      uint64 // ever: tries to start a copy that found no place on its memory's stream
	Deaf         uint64 // ever: watches and readings of the signal that failed
	WaitsExpired uint64 // ever: flows whose deadline passed while they waited for a chunk
}

// counts are Stats in the making: the lane's thread changes them, anybody reads.
type counts struct {
	pinned, chunks, inUse, waiting, flying, retained                                   atomic.Int64
	copies, bytes, callbacks, timerFound, failed, drained, stalled, deaf, waitsExpired atomic.Uint64
}

func (c *counts) read() Stats {
	return Stats{
		PinnedBytes: uint64(c.pinned.Load()), Chunks: c.chunks.Load(), InUse: c.inUse.Load(), Waiting: c.waiting.Load(),
		Flying: c.flying.Load(), Retained: c.retained.Load(), Copies: c.copies.Load(), CopiedBytes: c.bytes.Load(),
		Callbacks: c.callbacks.Load(), TimerFound: c.timerFound.Load(), Failed: c.failed.Load(), Drained: c.drained.Load(),
		Stalled: c.stalled.Load(), Deaf: c.deaf.Load(), WaitsExpired: c.waitsExpired.Load(),
	}
}

// Of is the stage of a lane; nil: none.
func Of(lane *lanes.Lane) *Stage {
	s, _ := lane.Staging.(*Stage)
	return s
}
