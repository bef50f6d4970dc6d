package netproto

// BindingSize is the size of the message that ends a grant. The layout is the project's:
//
//	offset  bytes
//	     0      4  "OTEB"
//	     4      2  version, 19
//	     6      1  profile
//	     7      1  direction: operation 4 (READ) or 5 (WRITE)
//	     8     16  requester's epoch
//	    24     16  source's epoch
//	    40     16  requester's end of the connection
//	    56     16  source's end of the connection
//	    72      8  parent generation
//	    80      8  grant generation
//	    88      8  region ID
//	    96      8  first byte of the slice inside the region
//	   104      8  length of the slice
//	   112      8  address of the grant
//	   120      4  key of the grant
//	   124      2  index of the slice
//	   126      2  slices of the parent
//	   128      1  requester's NIC
//	   129      1  source's NIC
//	   130      1  pair of the connection
//	   131      4  source's queue pair number
//	   135      4  requester's queue pair number
//	   139      2  zero
const BindingSize = 141

const (
	bindingMagic = "OTEB"
	bindingFrame = "binding"
)

// Binding names one grant and everything it was given for, so that the source can compare each part with
// its own record. It is a plain value, comparable with ==.
type Binding struct {
	Profile                       GrantProfile
	Direction                     Operation // OperationRDMARead or OperationRDMAWrite
	Requester, Source             Epoch
	RequesterEnd, SourceEnd       Incarnation
	Parent, Grant                 uint64 // generations
	Region, Offset, Length        uint64
	Address                       uint64
	Key                           uint32
	Slice, Slices                 uint16
	RequesterNIC, SourceNIC, Pair uint8
	SourcePair, RequesterPair     uint32 // queue pair numbers, 24 bits
}

// PutBinding writes b into the first BindingSize bytes of dst, which may be memory that a NIC reads.
func PutBinding(dst []byte, b *Binding) {
	_ = dst[BindingSize-1]
	copy(dst, bindingMagic)
	order.PutUint16(dst[4:], Version)
	dst[6], dst[7] = byte(b.Profile), byte(b.Direction)
	copy(dst[8:], b.Requester[:])
	copy(dst[24:], b.Source[:])
	copy(dst[40:], b.RequesterEnd[:])
	copy(dst[56:], b.SourceEnd[:])
	for i, v := range [...]uint64{b.Parent, b.Grant, b.Region, b.Offset, b.Length, b.Address} {
		order.PutUint64(dst[72+8*i:], v)
	}
	order.PutUint32(dst[120:], b.Key)
	order.PutUint16(dst[124:], b.Slice)
	order.PutUint16(dst[126:], b.Slices)
	dst[128], dst[129], dst[130] = b.RequesterNIC, b.SourceNIC, b.Pair
	order.PutUint32(dst[131:], b.SourcePair)
	order.PutUint32(dst[135:], b.RequesterPair)
	dst[139], dst[140] = 0, 0
}

// DecodeBinding reads exactly BindingSize bytes and refuses, with a *FrameError, what no peer of this
// version sends. That it names a live grant is the source's to check.
func DecodeBinding(b []byte) (Binding, error) {
	switch {
	case len(b) != BindingSize:
		return Binding{}, refuseSize(bindingFrame, uint64(len(b)), BindingSize)
	case string(b[:4]) != bindingMagic:
		return Binding{}, refuse(bindingFrame, "magic", uint64(order.Uint32(b)), "the letters OTEB")
	case order.Uint16(b[4:]) != Version:
		return Binding{}, refuse(bindingFrame, "version", uint64(order.Uint16(b[4:])), "19: run the same protocol version on both sides")
	case b[139]|b[140] != 0:
		return Binding{}, refuse(bindingFrame, "reserved bytes", uint64(order.Uint16(b[139:])), "0")
	}
	x := Binding{
		Profile: GrantProfile(b[6]), Direction: Operation(b[7]),
		Requester: Epoch(b[8:24]), Source: Epoch(b[24:40]),
		RequesterEnd: Incarnation(b[40:56]), SourceEnd: Incarnation(b[56:72]),
		Parent: order.Uint64(b[72:]), Grant: order.Uint64(b[80:]), Region: order.Uint64(b[88:]),
		Offset: order.Uint64(b[96:]), Length: order.Uint64(b[104:]), Address: order.Uint64(b[112:]),
		Key: order.Uint32(b[120:]), Slice: order.Uint16(b[124:]), Slices: order.Uint16(b[126:]),
		RequesterNIC: b[128], SourceNIC: b[129], Pair: b[130],
		SourcePair: order.Uint32(b[131:]), RequesterPair: order.Uint32(b[135:]),
	}
	if err := x.Check(); err != nil {
		return Binding{}, err
	}
	return x, nil
}

// Check refuses values that no binding has; the error is a *FrameError.
func (b *Binding) Check() error {
	const numbers = 1 << 24
	switch {
	case b.Profile != ProfileWindow && b.Profile != ProfileRegion:
		return refuse(bindingFrame, "profile", uint64(b.Profile), "1 or 2")
	case b.Direction != OperationRDMARead && b.Direction != OperationRDMAWrite:
		return refuse(bindingFrame, "direction", uint64(b.Direction), "4 or 5")
	case b.Requester.IsZero() || b.Source.IsZero() || b.RequesterEnd.IsZero() || b.SourceEnd.IsZero():
		return refuse(bindingFrame, "life", 0, "epochs and ends of both sides")
	case b.Parent == 0 || b.Grant == 0 || b.Region == 0:
		return refuse(bindingFrame, "generation or region", 0, "1 or more")
	case b.Length == 0 || !fits(b.Offset, b.Length, ^uint64(0)) || b.Length-1 > ^uint64(0)-b.Address:
		return refuse(bindingFrame, "length", b.Length, "a range that ends below 2^64").with(StatusInvalidRange)
	case b.Slices == 0 || b.Slices > SlicesMax || b.Slice >= b.Slices:
		return refuse(bindingFrame, "slice", uint64(b.Slice), "one of 1 to 64 slices")
	case b.RequesterNIC >= PathsMax || b.SourceNIC >= PathsMax || b.Pair >= PairsMax:
		return refuse(bindingFrame, "NIC or pair", uint64(b.RequesterNIC)<<16|uint64(b.SourceNIC)<<8|uint64(b.Pair), "NICs below 64, a pair below 32")
	case b.SourcePair >= numbers || b.RequesterPair >= numbers:
		return refuse(bindingFrame, "queue pair number", uint64(max(b.SourcePair, b.RequesterPair)), "24 bits")
	}
	return nil
}
