package netproto

// Bodies of the RDMA operations. A body stands directly behind its request, so that a
// source that refuses the request has read all of it and the stream goes on. The layouts are the
// project's:
//
//	grants asked for (operations 4 to 7), 32 + 32 a connection + 24 a slice
//	  slices 2, connections 1, profile 1, zero 4, requester epoch 16, parent generation 8
//	  each connection: requester's incarnation 16, source's incarnation 16
//	  each slice: offset in the region 8, length 8, connection 1, pair 1, zero 6
//	grants given (payload of the success reply), 40 a slice
//	  grant generation 8, address 8, length 8, key 4, receive slot 4, connection 1, pair 1, zero 6
//	parent (operations 65 and 66), 32: requester epoch 16, parent generation 8, slices 2, zero 6
const (
	GrantHeadSize       = 32
	GrantConnectionSize = 32
	GrantSliceSize      = 24
	GrantSize           = 40
	ParentSize          = 32

	// GrantRequestSizeMax bounds the body of operations 4 to 7.
	GrantRequestSizeMax = GrantHeadSize + SlicesMax*(GrantConnectionSize+GrantSliceSize)
	// GrantsSizeMax bounds the payload of their success reply.
	GrantsSizeMax = SlicesMax * GrantSize
)

const (
	grantFrame  = "grant request"
	grantsFrame = "grants"
	parentFrame = "parent"
)

// Incarnation names one life of one end of an RDMA connection: random, never zero, never used again.
type Incarnation [16]byte

// IsZero is true exactly when the incarnation names nothing.
func (i Incarnation) IsZero() bool { return i == Incarnation{} }

// GrantProfile says how a grant ends (R-13, C-7).
type GrantProfile uint8

// The profiles.
const (
	ProfileWindow GrantProfile = 1 // a memory window, ended by SEND_WITH_INV
	ProfileRegion GrantProfile = 2 // a memory region of its own, ended by a fenced SEND and by destruction
)

// GrantRequest asks for one grant for each slice of one parent. The request in front of it names region,
// offset and length of the whole.
type GrantRequest struct {
	Profile     GrantProfile
	Requester   Epoch  // the requester's life
	Generation  uint64 // of the parent: rises in the requester's life, never zero
	Connections []GrantConnection
	Slices      []GrantSlice
}

// GrantConnection names a connection that slices use, by both of its ends.
type GrantConnection struct {
	Requester, Source Incarnation
}

// GrantSlice is one part of the parent, and where its work will be posted.
type GrantSlice struct {
	Offset, Length uint64 // inside the region
	Connection     uint8  // index in Connections
	Pair           uint8  // index in the connection's queue pairs
}

// Grant is one-use authority over one slice.
type Grant struct {
	Generation uint64 // of the grant: rises in the source's life, never zero
	Address    uint64 // first byte, in the source's address space
	Length     uint64
	Key        uint32
	Slot       uint32 // the source's receive that the binding is expected in; names a buffer, not the grant
	Connection uint8
	Pair       uint8
}

// Parent names all grants of one GrantRequest: the requester is done with them, or gives them up.
type Parent struct {
	Requester  Epoch
	Generation uint64
	Slices     uint16
}

// GrantRequestSize reads the first GrantHeadSize bytes of a body and returns the size of the whole; the
// error is a *FrameError and the stream cannot go on.
func GrantRequestSize(head []byte) (int, error) {
	if len(head) < GrantHeadSize {
		return 0, refuseSize(grantFrame, uint64(len(head)), GrantHeadSize)
	}
	slices, connections := order.Uint16(head), head[2]
	switch {
	case slices == 0 || slices > SlicesMax:
		return 0, refuse(grantFrame, "slices", uint64(slices), "1 to 64")
	case connections == 0 || uint16(connections) > slices:
		return 0, refuse(grantFrame, "connections", uint64(connections), "1 to as many as slices")
	}
	return GrantHeadSize + int(connections)*GrantConnectionSize + int(slices)*GrantSliceSize, nil
}

// AppendGrantRequest appends g. It encodes any value with at most SlicesMax slices and connections; call
// Check first to know that a peer will accept it. It allocates only when dst is too short.
func AppendGrantRequest(dst []byte, g *GrantRequest) []byte {
	dst = order.AppendUint16(dst, uint16(len(g.Slices)))
	dst = append(dst, byte(len(g.Connections)), byte(g.Profile), 0, 0, 0, 0)
	dst = append(dst, g.Requester[:]...)
	dst = order.AppendUint64(dst, g.Generation)
	for i := range g.Connections {
		dst = append(dst, g.Connections[i].Requester[:]...)
		dst = append(dst, g.Connections[i].Source[:]...)
	}
	for _, s := range g.Slices {
		dst = order.AppendUint64(dst, s.Offset)
		dst = order.AppendUint64(dst, s.Length)
		dst = append(dst, s.Connection, s.Pair, 0, 0, 0, 0, 0, 0)
	}
	return dst
}

// DecodeGrantRequest reads a whole body into g, reusing g's slices, and refuses what Check refuses. g is
// undefined after an error. It allocates only while g's slices grow, at most to SlicesMax.
func DecodeGrantRequest(g *GrantRequest, r Request, b []byte) error {
	size, err := GrantRequestSize(b)
	switch {
	case err != nil:
		return err
	case len(b) != size:
		return refuseSize(grantFrame, uint64(len(b)), uint64(size))
	case !isZero(b[4:8]):
		return refuse(grantFrame, "reserved bytes", uint64(order.Uint32(b[4:])), "0")
	}
	g.Profile, g.Requester, g.Generation = GrantProfile(b[3]), Epoch(b[8:24]), order.Uint64(b[24:])
	g.Connections, g.Slices = g.Connections[:0], g.Slices[:0]
	slices, connections := int(order.Uint16(b)), int(b[2])
	b = b[GrantHeadSize:]
	for range connections {
		g.Connections = append(g.Connections, GrantConnection{Incarnation(b), Incarnation(b[16:])})
		b = b[GrantConnectionSize:]
	}
	for i := range slices {
		if !isZero(b[18:GrantSliceSize]) {
			return refuse(grantFrame, "reserved slice bytes", uint64(b[18]), "0").at(i)
		}
		g.Slices = append(g.Slices, GrantSlice{order.Uint64(b), order.Uint64(b[8:]), b[16], b[17]})
		b = b[GrantSliceSize:]
	}
	return g.Check(r)
}

// Check tells whether the slices cover the request's range exactly and in order, and whether
// everything else may be sent with it. The error is a *FrameError.
func (g *GrantRequest) Check(r Request) error {
	switch n := len(g.Slices); {
	case n == 0 || n > SlicesMax || !r.Operation.sliced() && n != 1:
		return refuse(grantFrame, "slices", uint64(n), "1, or up to 64 for a sliced operation")
	case len(g.Connections) == 0 || len(g.Connections) > n:
		return refuse(grantFrame, "connections", uint64(len(g.Connections)), "1 to as many as slices")
	case g.Profile != ProfileWindow && g.Profile != ProfileRegion:
		return refuse(grantFrame, "profile", uint64(g.Profile), "1 or 2")
	case g.Requester.IsZero():
		return refuse(grantFrame, "requester epoch", 0, "a life of a requester")
	case g.Generation == 0:
		return refuse(grantFrame, "parent generation", 0, "1 or more")
	}
	for i, c := range g.Connections {
		if c.Requester.IsZero() || c.Source.IsZero() {
			return refuse(grantFrame, "incarnation", 0, "lives of both ends").at(i)
		}
	}
	return g.checkSlices(r)
}

func (g *GrantRequest) checkSlices(r Request) error {
	next, left := r.Offset, r.Length
	for i, s := range g.Slices {
		switch {
		case s.Offset != next:
			return refuse(grantFrame, "slice offset", s.Offset, "the end of the slice before").at(i).with(StatusInvalidRange)
		case s.Length == 0 || s.Length > left:
			return refuse(grantFrame, "slice length", s.Length, "1 or more, within the request").at(i).with(StatusInvalidRange)
		case int(s.Connection) >= len(g.Connections):
			return refuse(grantFrame, "slice connection", uint64(s.Connection), "a connection of the same frame").at(i)
		case s.Pair >= PairsMax:
			return refuse(grantFrame, "slice pair", uint64(s.Pair), "below 32").at(i)
		}
		next, left = next+s.Length, left-s.Length
	}
	if left != 0 {
		return refuse(grantFrame, "slices", uint64(len(g.Slices)), "slices that cover the whole request").with(StatusInvalidRange)
	}
	return nil
}

// AppendGrants appends the payload of a success reply: one grant for each slice, in their order.
func AppendGrants(dst []byte, grants []Grant) []byte {
	for i := range grants {
		x := &grants[i]
		dst = order.AppendUint64(dst, x.Generation)
		dst = order.AppendUint64(dst, x.Address)
		dst = order.AppendUint64(dst, x.Length)
		dst = order.AppendUint32(dst, x.Key)
		dst = order.AppendUint32(dst, x.Slot)
		dst = append(dst, x.Connection, x.Pair, 0, 0, 0, 0, 0, 0)
	}
	return dst
}

// DecodeGrants reads the answer to g and appends it to dst. It refuses, with a *FrameError, anything that is
// not one grant of the asked length over the asked pair for each slice; then authority is unknown.
func DecodeGrants(dst []Grant, g *GrantRequest, b []byte) ([]Grant, error) {
	if len(b) != len(g.Slices)*GrantSize {
		return dst, refuseSize(grantsFrame, uint64(len(b)), uint64(len(g.Slices)*GrantSize))
	}
	for i, s := range g.Slices {
		x := Grant{
			Generation: order.Uint64(b), Address: order.Uint64(b[8:]), Length: order.Uint64(b[16:]),
			Key: order.Uint32(b[24:]), Slot: order.Uint32(b[28:]), Connection: b[32], Pair: b[33],
		}
		switch {
		case !isZero(b[34:GrantSize]):
			return dst, refuse(grantsFrame, "reserved bytes", uint64(b[34]), "0").at(i)
		case x.Generation == 0:
			return dst, refuse(grantsFrame, "grant generation", 0, "1 or more").at(i)
		case x.Length != s.Length || x.Length-1 > ^uint64(0)-x.Address:
			return dst, refuse(grantsFrame, "length", x.Length, "the slice's, below 2^64").at(i).with(StatusInvalidRange)
		case x.Connection != s.Connection || x.Pair != s.Pair:
			return dst, refuse(grantsFrame, "connection and pair", uint64(x.Connection)<<8|uint64(x.Pair), "those of the slice").at(i)
		}
		dst = append(dst, x)
		b = b[GrantSize:]
	}
	return dst, nil
}

// AppendParent appends the body of operations 65 and 66.
func AppendParent(dst []byte, p Parent) []byte {
	dst = append(dst, p.Requester[:]...)
	dst = order.AppendUint64(dst, p.Generation)
	dst = order.AppendUint16(dst, p.Slices)
	return append(dst, 0, 0, 0, 0, 0, 0)
}

// DecodeParent reads exactly ParentSize bytes; the error is a *FrameError.
func DecodeParent(b []byte) (Parent, error) {
	if len(b) != ParentSize {
		return Parent{}, refuseSize(parentFrame, uint64(len(b)), ParentSize)
	}
	p := Parent{Requester: Epoch(b), Generation: order.Uint64(b[16:]), Slices: order.Uint16(b[24:])}
	switch {
	case !isZero(b[26:]):
		return Parent{}, refuse(parentFrame, "reserved bytes", uint64(order.Uint16(b[26:])), "0")
	case p.Requester.IsZero():
		return Parent{}, refuse(parentFrame, "requester epoch", 0, "a life of a requester")
	case p.Generation == 0:
		return Parent{}, refuse(parentFrame, "parent generation", 0, "1 or more")
	case p.Slices == 0 || p.Slices > SlicesMax:
		return Parent{}, refuse(parentFrame, "slices", uint64(p.Slices), "1 to 64")
	}
	return p, nil
}
