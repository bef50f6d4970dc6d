package orbitte

import (
	"time"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/rdma"
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/verbs"
)

// HostMemory says how this engine's host memory meets RDMA devices. Each side of a transfer chooses for itself (SPEC R-6).
type HostMemory uint8

const (
	// HostDirect registers each range with every device when it is registered with the engine; devices read and write it
	// itself. A registration that a device refuses is an error and never becomes staging (SPEC R-5).
	HostDirect HostMemory = iota
	// HostStaged moves payload through registered buffers of the engine's own: nothing of the application's memory is
	// registered with a device, and a failed READ leaves the local range as it was. Costs one copy, and queue pairs of its
	// own for each transfer (SPEC R-16).
	HostStaged
)

func (h HostMemory) String() string {
	if h == HostStaged {
		return "staged"
	}
	return "direct"
}

// RDMAProgress says how lanes learn of completions (SPEC R-19).
type RDMAProgress uint8

const (
	// RDMAPolling looks at the completion queues in each turn while work is outstanding: lowest latency, one busy CPU per
	// lane meanwhile.
	RDMAPolling RDMAProgress = iota
	// RDMAEventDriven arms the queues and blocks until the device raises an event.
	RDMAEventDriven
)

func (p RDMAProgress) String() string {
	if p == RDMAEventDriven {
		return "event-driven"
	}
	return "polling"
}

// RDMAConfig makes an engine use RDMA devices. Its zero value discovers every allowed device, port and address (SPEC R-1).
// What is pinned never falls back: a device, port or address that is not usable is an error of Open, or, when it fails
// later, of the requests.
type RDMAConfig struct {
	// Device pins one device, such as "mlx5_0"; then port 1 and GID index 0 are pinned, too, unless Port and GIDIndex say
	// otherwise. Empty: all devices that the lists allow.
	Device string
	// Port (1 to 255) and GIDIndex (from 0) pin the port and the entry of its GID table on every device. Nil: the first
	// active port, and the best entry (`orbitte devices` shows the ranking and why).
	Port, GIDIndex *int
	// Whitelist and Blacklist name the devices that may be opened, or may not. A whitelist that is not empty wins.
	Whitelist, Blacklist []string
	// DeviceMask limits the devices that requests of this engine leave by, a bit for each NIC ID (the position among the
	// allowed devices, by name, from 0). All are opened and registered with all the same. 0: all.
	DeviceMask uint64
	// PreferredNUMANode is a hint: devices of this node come first for memory whose node is not known. Nil: none.
	PreferredNUMANode *int

	HostMemory   HostMemory
	DeviceMemory DeviceMemory
	// DirectWithoutSyncMemOps lets DeviceDirect have memory of the virtual-memory API (cuMemCreate) and of pools, too. The driver
	// cannot set SYNC_MEMOPS on it (SPEC C-6): a copy or fill of yours that is called synchronous (cuMemcpyDtoD, cuMemsetD8 and
	// the like) may return before it has ended, and devices neither wait for it nor keep it waiting. So, before you submit a
	// request, and before you let a peer begin one, on that memory: wait with cuStreamSynchronize or cuEventSynchronize for every copy, fill and kernel of
	// yours that touches it, also on the default stream; and start none that reads it, or writes it, before the request has ended
	// (its report, or the peer's notification, says so). Otherwise wrong bytes are sent or read, and nothing notices. False:
	// such memory is refused by Register, with the reason and ErrUnavailable.
	DirectWithoutSyncMemOps bool
	Progress                RDMAProgress
	// BlockBytes is the base size of the slices of one transfer (SPEC R-8), a power of two from 4 KiB to 64 MiB; 0: 64 KiB.
	BlockBytes uint64
	// Width is how many queue pairs one connection to a peer has; the smaller one of both sides counts. 1 to 32; 0: 1.
	Width int
	// ConnectTimeout bounds the exchange that makes a connection; 0: 10 s.
	ConnectTimeout time.Duration

	Limits RDMALimits
}

// RDMALimits are the budgets of RDMA; zero takes the default named with each (SPEC U).
type RDMALimits struct {
	Endpoints         int    // max_endpoints: queue pairs of both roles, retained ones included; 64
	Grants            int    // max_grants: transfers served at a time; 64
	SendWork          int    // max_send_wr: work requests of one queue pair without their completion; 16
	CompletionEntries int    // max_cqes: entries of each completion queue; 1,024
	DirectBytes       uint64 // max_direct_bytes: bytes of registered ranges that transfers and grants hold; 64 MiB
	StagingBytes      uint64 // max_staging_bytes: registered buffers of the engine's own, for host memory; 64 MiB
	CachedRegions     int    // max_cached_mrs: memory regions, one or two for each registration and device; 64
	CachedBytes       uint64 // bytes of them, each copy; 64 MiB
	WindowKeyIndices  int    // max_window_key_indices: window indices that a protection domain has ever used; 65,536
}

// complete fills defaults in and checks; the error wraps ErrInvalid and names field, value and remedy.
func (c *RDMAConfig) complete() error {
	set(&c.BlockBytes, lanes.SliceBlock)
	set(&c.Width, 1)
	switch {
	case c.Port != nil && (*c.Port < 1 || *c.Port > 255):
		return invalid("Config.RDMA.Port is %d; it must be 1 to 255, or nil for the first active one", *c.Port)
	case c.GIDIndex != nil && (*c.GIDIndex < 0 || *c.GIDIndex > 65535):
		return invalid("Config.RDMA.GIDIndex is %d; it must be 0 to 65535, or nil for the best entry", *c.GIDIndex)
	case c.PreferredNUMANode != nil && *c.PreferredNUMANode < 0:
		return invalid("Config.RDMA.PreferredNUMANode is %d; it must be 0 or more, or nil for none", *c.PreferredNUMANode)
	case c.HostMemory > HostStaged:
		return invalid("Config.RDMA.HostMemory is %d; it must be HostDirect or HostStaged", c.HostMemory)
	case c.DeviceMemory > DeviceDirect:
		return invalid("Config.RDMA.DeviceMemory is %d; it must be DeviceStaged or DeviceDirect", c.DeviceMemory)
	case c.DirectWithoutSyncMemOps && c.DeviceMemory != DeviceDirect:
		return invalid("Config.RDMA.DirectWithoutSyncMemOps is set, but Config.RDMA.DeviceMemory is DeviceStaged; set that to DeviceDirect, or leave this false: staged memory needs neither")
	case c.Progress > RDMAEventDriven:
		return invalid("Config.RDMA.Progress is %d; it must be RDMAPolling or RDMAEventDriven", c.Progress)
	case c.BlockBytes < 4096 || c.BlockBytes > payloadBytesMax || c.BlockBytes&(c.BlockBytes-1) != 0:
		return invalid("Config.RDMA.BlockBytes is %d; it must be a power of two from 4096 to %d", c.BlockBytes, payloadBytesMax)
	case c.Width < 1 || c.Width > netproto.PairsMax:
		return invalid("Config.RDMA.Width is %d; it must be 1 to %d", c.Width, netproto.PairsMax)
	case c.ConnectTimeout < 0:
		return invalid("Config.RDMA.ConnectTimeout is %v; it must not be negative", c.ConnectTimeout)
	}
	set(&c.ConnectTimeout, rdma.ConnectTimeoutDefault)
	return c.Limits.complete(c.Width)
}

func (l *RDMALimits) complete(width int) error {
	for _, n := range []struct {
		name           string
		value          *int
		standard, most int
	}{
		{"Endpoints", &l.Endpoints, rdma.EndpointsDefault, 1 << 20}, {"Grants", &l.Grants, rdma.GrantsDefault, 1 << 20},
		{"SendWork", &l.SendWork, rdma.SendDepthDefault, 1 << 14}, {"CompletionEntries", &l.CompletionEntries, rdma.QueueEntriesDefault, 1 << 20},
		{"CachedRegions", &l.CachedRegions, rdma.CachedRegionsDefault, 1 << 20}, {"WindowKeyIndices", &l.WindowKeyIndices, rdma.KeyIndicesDefault, 1 << 24},
	} {
		set(n.value, n.standard)
		if *n.value < 1 || *n.value > n.most {
			return invalid("Config.RDMA.Limits.%s is %d; it must be 1 to %d, or 0 for the default of %d", n.name, *n.value, n.most, n.standard)
		}
	}
	for _, n := range []struct {
		name     string
		value    *uint64
		standard uint64
	}{
		{"DirectBytes", &l.DirectBytes, rdma.DirectBytesDefault}, {"StagingBytes", &l.StagingBytes, rdma.StagingBytesDefault},
		{"CachedBytes", &l.CachedBytes, rdma.CachedBytesDefault},
	} {
		set(n.value, n.standard)
		if *n.value > 1<<62 {
			return invalid("Config.RDMA.Limits.%s is %d; no machine has so many bytes", n.name, *n.value)
		}
	}
	switch {
	case l.CompletionEntries < 8 || l.SendWork > l.CompletionEntries/2:
		return invalid("Config.RDMA.Limits.SendWork is %d, but CompletionEntries only %d; all queue pairs of a device share the entries, half of which may be kept for their ends, and one pair must find room for all its sends, so it must be at least %d",
			l.SendWork, l.CompletionEntries, max(8, 2*l.SendWork))
	case l.Endpoints < width:
		return invalid("Config.RDMA.Limits.Endpoints is %d, but Config.RDMA.Width %d; one connection takes that many queue pairs", l.Endpoints, width)
	}
	return nil
}

// completeRDMA checks that library and configuration come together: neither stands for the other (field case F-70).
func (c *Config) completeRDMA() error {
	switch {
	case c.RDMA == nil && c.Verbs == nil:
		return nil
	case c.Verbs == nil:
		return invalid("Config.RDMA is set, but Config.Verbs is nil; pass what verbs/libibverbs.Load returned, and do not open the engine if it failed")
	case c.RDMA == nil:
		return invalid("Config.Verbs is set, but Config.RDMA is nil; set it to &RDMAConfig{} to discover all devices")
	}
	own := *c.RDMA // the caller's stays as it is
	c.RDMA = &own
	if err := c.RDMA.complete(); err != nil {
		return err
	}
	return c.checkDirect()
}

// pins are the strict choices: naming a device pins port 1 and GID index 0 as well (SPEC R-1).
func (c *RDMAConfig) pins() verbs.Pins {
	var p verbs.Pins
	if c.Device != "" {
		p = verbs.PinDevice(c.Device)
	}
	if c.Port != nil {
		port := uint8(*c.Port)
		p.Port = &port
	}
	if c.GIDIndex != nil {
		index := *c.GIDIndex
		p.GIDIndex = &index
	}
	return p
}
