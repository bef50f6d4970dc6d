package hptcp

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
)

// Defaults of what SPEC H leaves open.
const (
	// ChunkBytesDefault is a second-level cache, and what one call moves; from here on larger chunks gain nothing.
	ChunkBytesDefault = 1 << 20
	// InFlightBytesDefault is the credit of one stream: enough chunks that the source never waits for a request, and few
	// enough that the system's buffers stay in the caches of those who copy.
	InFlightBytesDefault = 4 << 20
	// StreamsDefault is how many streams one peer may have, the one for small requests included.
	StreamsDefault = 4
	// SlotsDefault is how many requests one stream may have without an answer.
	SlotsDefault = 256

	// dozeAfter is how long an idle stream keeps its inbox; then it waits for IdleTimeout without any memory.
	dozeAfter = 100 * time.Millisecond

	// SmallBytes is the largest request that goes over the stream for small ones.
	SmallBytes = 64 << 10
)

// Config is what all lanes of one engine agree on; the budgets are one lane's. It does not change while the
// engine is open. Zero values choose the defaults named with each field.
type Config struct {
	// Streams are the lane's slots for data streams to sources, Sessions those for accepted ones; charged from
	// before the socket is made, or taken over, until its close is proven.
	Streams, Sessions *budgets.Budget
	// Gate counts the requests being served, and refuses them when it is fenced (SPEC G-6).
	Gate *lanes.Gate
	// StreamsMax bounds the streams of one peer, both ways, small requests' stream included; at most 64; 0: StreamsDefault.
	StreamsMax int
	// CPUs is how many processors the process may use, its quota included; streams for large requests are at
	// most so many. 0: one.
	CPUs int
	// ChunkBytes is the largest piece of a transfer, both ways; 0: ChunkBytesDefault. A peer that names less gets no
	// larger pieces (SPEC H-1): it may have a small limit for payload, and would refuse them (SPEC W-15). If it names one byte
	// for no reason, that costs those who ask it, within their deadlines.
	ChunkBytes uint64
	// InFlightBytes is the credit of one stream, both ways; 0: InFlightBytesDefault, at least one chunk.
	InFlightBytes uint64
	// Checksums makes the requester ask for a CRC32C with every chunk (SPEC H-9).
	Checksums bool
	// Counts are the engine's own for this plane; nil: none are kept.
	Counts *Counts
}

// Counts are lifetime counts of the plane, beside those of the lane (lanes.Counts). Any goroutine may read.
type Counts struct {
	Requests   atomic.Uint64 // sent: pieces of transfers
	Late       atomic.Uint64 // replies that found nobody (SPEC H-3)
	Mismatches atomic.Uint64 // chunks whose CRC32C was another one, found at either end
	Refused    atomic.Uint64 // hellos that a source refused
}

// A hello's stream number is the link's, in the lowest bits, and above them the way: one source may be several peers, under
// several names, and none of them takes another one's streams for its own old ones.
const (
	streamIndexBits = 6
	streamIndexes   = 1 << streamIndexBits
	// WaysMax bounds the peers of one requester that one life of a source is at a time; their ways are below it.
	WaysMax = 1 << 16 / streamIndexes
)

func (c *Config) complete() {
	fill := func(n *int, standard int) {
		if *n <= 0 {
			*n = standard
		}
	}
	fill(&c.StreamsMax, StreamsDefault)
	c.StreamsMax = min(c.StreamsMax, streamIndexes)
	fill(&c.CPUs, 1)
	if c.ChunkBytes == 0 {
		c.ChunkBytes = ChunkBytesDefault
	}
	if c.InFlightBytes == 0 {
		c.InFlightBytes = InFlightBytesDefault
	}
	c.InFlightBytes = max(c.InFlightBytes, c.ChunkBytes)
	if c.Counts == nil {
		c.Counts = new(Counts)
	}
}

// Endpoint is what the descriptor says about a source's listener at this port (SPEC H-1, W-9). The family is that of
// the listener's address.
func (c Config) Endpoint(family netproto.AddressFamily, port uint16) *netproto.HPTCPEndpoint {
	c.complete()
	return &netproto.HPTCPEndpoint{Family: family, Port: port, StreamsMax: uint16(c.StreamsMax),
		ChunkBytesMax: c.ChunkBytes, InFlightBytesMax: c.InFlightBytes}
}

// MismatchError says that the bytes of a chunk are not those that were sent (SPEC H-9). The bytes from Offset on may
// be wrong.
type MismatchError struct {
	Region uint64
	Offset uint64 // of the chunk's first byte in the payload of the transfer
	Source bool   // true exactly when the source found it
}

func (e *MismatchError) Error() string {
	where := "here"
	if e.Source {
		where = "at the source"
	}
	return fmt.Sprintf("hptcp: CRC32C of the chunk at payload offset %d of a transfer with region %d differs (found %s); the range has wrong bytes from there on: transfer it again, and suspect the path's memory or network cards if it comes again",
		e.Offset, e.Region, where)
}
