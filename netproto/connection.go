package netproto

// Bodies with which RDMA connections are made and ended. The layouts are the
// project's:
//
//	connection (operation 64, and the payload of its success reply), 112 + 8 a pair
//	  epoch 16, incarnation 16, peer's incarnation 16 (zero when asking),
//	  NIC 1, peer's NIC 1, port 1, link 1, direction 1 (operation 4 or 5), profile 1, pairs 1, zero 1,
//	  PD 8, peer's PD 8, GID 16, LID 2, MTU 2, send depth 2, reads 1, zero 17
//	  each pair: number 4, first packet's number 4
//	disconnect (operation 67), 48: requester epoch 16, requester's incarnation 16, source's 16
const (
	ConnectionHeadSize = 112
	ConnectionPairSize = 8
	DisconnectSize     = 48

	// ConnectionSizeMax bounds the body of operation 64 and its answer.
	ConnectionSizeMax = ConnectionHeadSize + PairsMax*ConnectionPairSize
)

const (
	connectionFrame = "connection"
	disconnectFrame = "disconnect"
)

// Connection is what one end of an RDMA connection tells the other. It must match the path that the
// descriptor published.
type Connection struct {
	Epoch              Epoch       // of the end that speaks
	Incarnation        Incarnation // of the end that speaks
	Peer               Incarnation // of the other end; zero in the question
	NIC, PeerNIC       uint8
	Port               uint8
	Link               LinkLayer
	Direction          Operation // OperationRDMARead or OperationRDMAWrite: what the requester will do
	Profile            GrantProfile
	Domain, PeerDomain uint64 // identities of the protection domains
	GID                [GIDSize]byte
	LID, MTU, Depth    uint16 // MTU in bytes; Depth: sends that this end may have outstanding on one pair
	ReadsOutstanding   uint8
	Pairs              []PairAddress // in both directions the same number
}

// PairAddress is one queue pair.
type PairAddress struct {
	Number      uint32 // 24 bits
	FirstPacket uint32 // 24 bits
}

// Disconnect names a connection by both of its ends; the source answers when its own end is destroyed.
type Disconnect struct {
	Requester      Epoch
	End, SourceEnd Incarnation
}

// AppendConnection appends c. It encodes any value with at most PairsMax pairs.
func AppendConnection(dst []byte, c *Connection) []byte {
	dst = append(dst, c.Epoch[:]...)
	dst = append(dst, c.Incarnation[:]...)
	dst = append(dst, c.Peer[:]...)
	dst = append(dst, c.NIC, c.PeerNIC, c.Port, byte(c.Link), byte(c.Direction), byte(c.Profile), byte(len(c.Pairs)), 0)
	dst = order.AppendUint64(dst, c.Domain)
	dst = order.AppendUint64(dst, c.PeerDomain)
	dst = append(dst, c.GID[:]...)
	for _, v := range [...]uint16{c.LID, c.MTU, c.Depth} {
		dst = order.AppendUint16(dst, v)
	}
	dst = append(dst, c.ReadsOutstanding)
	dst = append(dst, make([]byte, ConnectionHeadSize-95)...)
	for _, p := range c.Pairs {
		dst = order.AppendUint32(dst, p.Number)
		dst = order.AppendUint32(dst, p.FirstPacket)
	}
	return dst
}

// DecodeConnection reads a whole body and refuses what Check refuses with a *FrameError. It allocates
// only for pairs whose bytes are at hand.
func DecodeConnection(b []byte) (Connection, error) {
	if len(b) < ConnectionHeadSize {
		return Connection{}, refuseSize(connectionFrame, uint64(len(b)), ConnectionHeadSize)
	}
	pairs := int(b[54])
	if size := ConnectionHeadSize + pairs*ConnectionPairSize; len(b) != size {
		return Connection{}, refuseSize(connectionFrame, uint64(len(b)), uint64(size))
	}
	if b[55] != 0 || !isZero(b[95:ConnectionHeadSize]) {
		return Connection{}, refuse(connectionFrame, "reserved bytes", uint64(b[55]), "0")
	}
	c := Connection{
		Epoch: Epoch(b), Incarnation: Incarnation(b[16:]), Peer: Incarnation(b[32:]),
		NIC: b[48], PeerNIC: b[49], Port: b[50], Link: LinkLayer(b[51]), Direction: Operation(b[52]), Profile: GrantProfile(b[53]),
		Domain: order.Uint64(b[56:]), PeerDomain: order.Uint64(b[64:]), GID: [GIDSize]byte(b[72:]),
		LID: order.Uint16(b[88:]), MTU: order.Uint16(b[90:]), Depth: order.Uint16(b[92:]), ReadsOutstanding: b[94],
	}
	if pairs > PairsMax {
		return Connection{}, refuse(connectionFrame, "pairs", uint64(pairs), "1 to 32")
	}
	c.Pairs = make([]PairAddress, pairs)
	for i := range c.Pairs {
		record := b[ConnectionHeadSize+i*ConnectionPairSize:]
		c.Pairs[i] = PairAddress{order.Uint32(record), order.Uint32(record[4:])}
	}
	if err := c.Check(); err != nil {
		return Connection{}, err
	}
	return c, nil
}

// Check tells whether a peer will accept the connection's description; the error is a *FrameError.
func (c *Connection) Check() error {
	switch {
	case c.Epoch.IsZero() || c.Incarnation.IsZero():
		return refuse(connectionFrame, "life", 0, "epoch and incarnation of the end that speaks")
	case c.NIC >= PathsMax || c.PeerNIC >= PathsMax:
		return refuse(connectionFrame, "NIC", uint64(max(c.NIC, c.PeerNIC)), "below 64")
	case c.Port == 0:
		return refuse(connectionFrame, "port", 0, "1 or more")
	case c.Link != LinkInfiniBand && c.Link != LinkEthernet:
		return refuse(connectionFrame, "link layer", uint64(c.Link), "1 or 2")
	case c.Direction != OperationRDMARead && c.Direction != OperationRDMAWrite:
		return refuse(connectionFrame, "direction", uint64(c.Direction), "4 or 5")
	case c.Profile != ProfileWindow && c.Profile != ProfileRegion:
		return refuse(connectionFrame, "profile", uint64(c.Profile), "1 or 2")
	case c.Domain == 0 || c.PeerDomain == 0:
		return refuse(connectionFrame, "domain", 0, "protection domains of both ends")
	case c.MTU < 256 || c.MTU > 4096 || c.MTU&(c.MTU-1) != 0:
		return refuse(connectionFrame, "MTU", uint64(c.MTU), "256, 512, 1024, 2048 or 4096")
	case c.Depth == 0 || c.ReadsOutstanding == 0:
		return refuse(connectionFrame, "depth", 0, "1 or more sends and reads")
	case len(c.Pairs) == 0 || len(c.Pairs) > PairsMax:
		return refuse(connectionFrame, "pairs", uint64(len(c.Pairs)), "1 to 32")
	}
	for i, p := range c.Pairs {
		if p.Number >= 1<<24 || p.FirstPacket >= 1<<24 {
			return refuse(connectionFrame, "pair", uint64(max(p.Number, p.FirstPacket)), "24 bits").at(i)
		}
	}
	return nil
}

// AppendDisconnect appends the body of operation 67.
func AppendDisconnect(dst []byte, d Disconnect) []byte {
	dst = append(dst, d.Requester[:]...)
	dst = append(dst, d.End[:]...)
	return append(dst, d.SourceEnd[:]...)
}

// DecodeDisconnect reads exactly DisconnectSize bytes; the error is a *FrameError.
func DecodeDisconnect(b []byte) (Disconnect, error) {
	if len(b) != DisconnectSize {
		return Disconnect{}, refuseSize(disconnectFrame, uint64(len(b)), DisconnectSize)
	}
	d := Disconnect{Epoch(b), Incarnation(b[16:]), Incarnation(b[32:])}
	if d.Requester.IsZero() || d.End.IsZero() || d.SourceEnd.IsZero() {
		return Disconnect{}, refuse(disconnectFrame, "life", 0, "an epoch and both ends")
	}
	return d, nil
}
