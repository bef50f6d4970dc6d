package orbitte

import (
	"github.com/orbitte/orbitte/lanes/hptcp"
	"github.com/orbitte/orbitte/netproto"
)

// HPTCPConfig makes an engine serve and use HP-TCP, the fast data plane over TCP: pipelined requests on streams of
// their own, straight from and into the registered ranges (SPEC H). Its zero value takes every default. Ranges that
// peers may reach over it are registered with Range.HPTCP or OverHPTCP, and requests name TransportHPTCP.
type HPTCPConfig struct {
	// Bind is the address of the data listener, "host:port". Empty: the host of Config.Bind, with a port that the
	// system chooses. Peers reach it under the host of the engine's endpoint; its port is told to them.
	Bind string
	// Streams is how many streams one peer may have, to it and from it; one of them is for small requests, so that
	// no large one stands in front of them. The others follow the CPU quota and the gain seen, and are spread over the
	// engine's lanes, which share a transfer of 8 chunks or more. 1 to 64; 0: 4.
	Streams int
	// ChunkBytes is the largest piece of a request, which has 1,000 ranges at most besides; the size of a second-level cache
	// is best. From 4 KiB (or Limits.PayloadBytes, if that is less) to Limits.PayloadBytes; 0: 1 MiB, or Limits.PayloadBytes
	// if that is less. With a peer the smaller one of both sides' figures counts, even below 4 KiB.
	ChunkBytes uint64
	// InFlightBytes is the credit of one stream: payload bytes of requests without an answer. At least one chunk; 0: 4 MiB,
	// or one chunk if that is more. With a peer the smaller one of both sides' figures counts.
	InFlightBytes uint64
	// Checksums makes this engine ask for a CRC32C of every chunk, in both directions. A mismatch is an error that names
	// the request and the offset (SPEC H-9). It costs one look at every byte at each end.
	Checksums bool

	Limits HPTCPLimits
}

// HPTCPLimits are the budgets of HP-TCP; zero takes the default named with each (SPEC U).
type HPTCPLimits struct {
	Streams int // streams to peers at a time, and as many accepted ones; split over the lanes, each of which needs one; 4,096
}

const (
	hptcpStreamsMax      = 64
	hptcpStreamsStandard = 4096
	// hptcpChunkBytesMin keeps what each piece costs, some microseconds at both ends and 64 bytes of frames, within
	// what copying it costs. Simulated kernels may have less: there few bytes make many pieces.
	hptcpChunkBytesMin = 4 << 10
)

// completeHPTCP fills defaults in and checks; the error wraps ErrInvalid and names field, value and remedy.
func (c *Config) completeHPTCP() error {
	if c.HPTCP == nil {
		return nil
	}
	own := *c.HPTCP // the caller's stays as it is
	c.HPTCP = &own
	set(&own.Streams, hptcp.StreamsDefault)
	set(&own.ChunkBytes, min(hptcp.ChunkBytesDefault, c.Limits.PayloadBytes))
	set(&own.InFlightBytes, max(hptcp.InFlightBytesDefault, own.ChunkBytes))
	set(&own.Limits.Streams, hptcpStreamsStandard)
	switch {
	case own.Streams < 1 || own.Streams > hptcpStreamsMax:
		return invalid("Config.HPTCP.Streams is %d; it must be 1 to %d, or 0 for the default of %d", own.Streams, hptcpStreamsMax, hptcp.StreamsDefault)
	case own.ChunkBytes > c.Limits.PayloadBytes:
		return invalid("Config.HPTCP.ChunkBytes is %d, but Limits.PayloadBytes, which bounds each chunk, only %d", own.ChunkBytes, c.Limits.PayloadBytes)
	case own.ChunkBytes < min(hptcpChunkBytesMin, c.Limits.PayloadBytes) && c.OpenKernel == nil:
		return invalid("Config.HPTCP.ChunkBytes is %d; it must be %d to %d, or 0 for the default of %d",
			own.ChunkBytes, min(hptcpChunkBytesMin, c.Limits.PayloadBytes), c.Limits.PayloadBytes, min(hptcp.ChunkBytesDefault, c.Limits.PayloadBytes))
	case own.InFlightBytes < own.ChunkBytes || own.InFlightBytes > 1<<40:
		return invalid("Config.HPTCP.InFlightBytes is %d; it must be at least one chunk (%d) and at most %d", own.InFlightBytes, own.ChunkBytes, uint64(1)<<40)
	case own.Limits.Streams < 1 || own.Limits.Streams > 1<<20:
		return invalid("Config.HPTCP.Limits.Streams is %d; it must be 1 to %d, or 0 for the default of %d", own.Limits.Streams, 1<<20, hptcpStreamsStandard)
	case c.Lanes > own.Limits.Streams:
		return invalid("Config.Lanes is %d, but HPTCP.Limits.Streams only %d; each lane needs a stream", c.Lanes, own.Limits.Streams)
	}
	return nil
}

// RegisterOption changes a registration.
type RegisterOption func(*Range)

// OverHPTCP lets peers reach the range over HP-TCP as well (SPEC H, W-8).
func OverHPTCP(r *Range) { r.HPTCP = true }

// profile is what peers are told about a range besides its extent and permission.
func (r *Range) profile() (p netproto.Region) {
	if r.HPTCP {
		p.Flags = netproto.RegionHPTCP
	}
	if ordinal := r.Memory.GPU(); ordinal >= 0 { // (SPEC W-7, W-8)
		p.Memory = netproto.MemoryCUDA
		p.Flags |= netproto.RegionScoped
		p.Scope.Ordinal = uint32(ordinal)
	}
	return p
}
