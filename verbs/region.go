package verbs

import (
	"fmt"
	"sync/atomic"
)

// retiredBit marks a region that takes no new users; the other bits count the users it has.
const retiredBit = 1 << 62

// MemoryRegion is one physical registration. Any loop may lend it; whoever registered it destroys it.
type MemoryRegion struct {
	domain          *Domain
	handle          RegionHandle
	address, length uint64
	access          Access
	local           LocalKey
	remote          RemoteKey

	uses atomic.Int64 // users, and retiredBit
	kept atomic.Int64 // users that will never return it: retained windows
	life life
}

// Register pins and registers memory at an address of this process. A paused context allows it. The memory has to stay
// mapped until Destroy succeeded: the device goes on writing to the old pages (field case F-56). Slow.
func (d *Domain) Register(address, length uint64, a Access) (*MemoryRegion, error) {
	d.life.mustBeOpen(d.String(), "Register")
	handle, local, remote, err := d.calls.Register(d.handle, address, length, a)
	return d.adoptRegion(handle, local, remote, address, length, a, err)
}

// RegisterDescriptor registers the bytes behind a DMA-BUF descriptor, seen by peers at address. Slow.
func (d *Domain) RegisterDescriptor(offset, length, address uint64, descriptor int, a Access) (*MemoryRegion, error) {
	d.life.mustBeOpen(d.String(), "RegisterDescriptor")
	handle, local, remote, err := d.calls.RegisterDescriptor(d.handle, offset, length, address, descriptor, a)
	return d.adoptRegion(handle, local, remote, address, length, a, err)
}

func (d *Domain) adoptRegion(handle RegionHandle, local LocalKey, remote RemoteKey, address, length uint64, a Access, err error) (*MemoryRegion, error) {
	if err != nil {
		return nil, err
	}
	d.regions.live.Add(1)
	return &MemoryRegion{domain: d, handle: handle, local: local, remote: remote, address: address, length: length, access: a}, nil
}

func (m *MemoryRegion) String() string {
	return fmt.Sprintf("memory region [%#x, +%d) of %s", m.address, m.length, m.domain.context.info.Name)
}

// LocalKey names the region in this side's work requests.
func (m *MemoryRegion) LocalKey() LocalKey { return m.local }

// RemoteKey is the region's own remote key. It is exported only for a region that was registered for exactly one grant
// (SPEC C-7); the parent of windows keeps it to itself (SPEC R-5).
func (m *MemoryRegion) RemoteKey() RemoteKey { return m.remote }

// Covers is true exactly when the region holds all of [address, address+length).
func (m *MemoryRegion) Covers(address, length uint64) bool {
	return address >= m.address && length <= m.length && address-m.address <= m.length-length
}

// Lend adds a user: posted work, a grant, a bound window. False: the region is retired or gone.
func (m *MemoryRegion) Lend() bool {
	if m.uses.Add(1)&retiredBit == 0 {
		return true
	}
	m.uses.Add(-1)
	return false
}

// Return ends one use; the caller has the proof that the device is done with it.
func (m *MemoryRegion) Return() {
	if left := m.uses.Add(-1) &^ retiredBit; left < 0 || left >= retiredBit/2 {
		panic(fmt.Sprintf("verbs: Return of %s with 0 users, want 1 or more", m))
	}
}

// RetainUse says that one user will never return it, because what it waits for is retained.
func (m *MemoryRegion) RetainUse() { m.kept.Add(1) }

// Retire hides the region from new users; those it has go on.
func (m *MemoryRegion) Retire() { m.uses.Or(retiredBit) }

// Uses is how many users it has.
func (m *MemoryRegion) Uses() int64 { return m.uses.Load() &^ retiredBit }

// Destroy retires the region and deregisters it: *BusyError while it is lent, *RetainedError when the library refuses,
// which is final. Slow.
func (m *MemoryRegion) Destroy() error {
	if done, err := m.life.ended(); done {
		return err
	}
	m.Retire()
	if uses := m.Uses(); uses != 0 {
		return m.life.wait(&m.domain.context.book, busy(m.String(), uses == m.kept.Load(), Debt{"users", uses}), &m.domain.regions)
	}
	return m.life.end(&m.domain.context.book, m.String(), "ibv_dereg_mr",
		func() error { return m.domain.calls.Deregister(m.handle) }, &m.domain.regions)
}

// Retained is true exactly when the library refused to deregister it.
func (m *MemoryRegion) Retained() bool { return m.life.stage() == retained }
