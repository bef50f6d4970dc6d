package netproto

import "math"

// Request is the fixed frame with which every exchange starts (W-2). Addresses and IDs in it carry no
// authority; the source checks all of it.
type Request struct {
	Operation Operation
	Epoch     Epoch  // expected epoch of the source
	Region    uint64 // region ID; zero for describe and notifications
	Offset    uint64 // first byte inside the region; notifications: bytes of the name
	Length    uint64 // bytes; notifications: bytes of the message
}

const requestFrame = "request"

// AppendRequest appends the 52 bytes of r. It encodes any value; call Check first to know that a peer
// will accept it. It allocates only when dst is too short.
func AppendRequest(dst []byte, r Request) []byte {
	dst = appendHeader(dst, byte(r.Operation))
	dst = append(dst, r.Epoch[:]...)
	dst = order.AppendUint64(dst, r.Region)
	dst = order.AppendUint64(dst, r.Offset)
	return order.AppendUint64(dst, r.Length)
}

// DecodeRequest reads exactly RequestSize bytes and refuses a wrong size, magic, version, reserved
// byte or an unknown operation with a *FrameError (W-1, W-2, W-15). The fields of the operation are
// checked by Check.
func DecodeRequest(b []byte) (Request, error) {
	code, err := decodeHeader(requestFrame, b, RequestSize)
	if err != nil {
		return Request{}, err
	}
	op := Operation(code)
	if !op.Known() {
		return Request{}, refuseOperation(op)
	}
	return Request{
		Operation: op,
		Epoch:     Epoch(b[12:28]),
		Region:    order.Uint64(b[28:]),
		Offset:    order.Uint64(b[36:]),
		Length:    order.Uint64(b[44:]),
	}, nil
}

func refuseOperation(op Operation) *FrameError {
	return refuse(requestFrame, "operation", uint64(op), "0 to 7, 22 or 64 to 70")
}

// Check tells whether the fields fit the operation, as far as that can be known without the source's
// state; the error is a *FrameError with the status to answer:
//
//   - unknown operation: protocol error
//   - describe with a non-zero region, offset or length (W-12): protocol error
//   - notification with a non-zero region (W-13): protocol error; lengths whose sum overflows: invalid
//     range; a sum above NotificationBytesMax: exhausted
//   - pin of nothing: invalid range
//   - connect, done, abandon, disconnect, delegate and unpin with a region, an offset or a length that is no body's: protocol error
//   - transfer with region zero: unknown region, as IDs start at one; a range that overflows: invalid
//     range; a TCP payload above PayloadBytesMax: exhausted
func (r Request) Check() error {
	switch {
	case !r.Operation.Known():
		return refuseOperation(r.Operation)
	case r.Operation == OperationDescribe:
		return r.checkDescribe()
	case r.Operation.Notifies():
		return r.checkNotify()
	case r.Operation == OperationPin && r.Length == 0:
		return refuse(requestFrame, "length", 0, "1 or more bytes to be staged").with(StatusInvalidRange)
	case r.Operation.connects(), r.Operation.pins() && r.Operation != OperationPin:
		return r.checkBody()
	}
	return r.checkTransfer()
}

// checkBody checks a request whose length is that of a body of a known size.
func (r Request) checkBody() error {
	low, high := bodySizes(r.Operation)
	switch {
	case r.Region != 0 || r.Offset != 0:
		return refuse(requestFrame, "region and offset", max(r.Region, r.Offset), "0 for this operation")
	case r.Length < low || r.Length > high:
		return refuse(requestFrame, "body length", r.Length, "the size of the operation's body")
	}
	return nil
}

// bodySizes are the smallest and the largest body of an operation whose request says how long it is.
func bodySizes(o Operation) (low, high uint64) {
	switch o {
	case OperationRDMAConnect:
		return ConnectionHeadSize + ConnectionPairSize, ConnectionSizeMax
	case OperationRDMADisconnect:
		return DisconnectSize, DisconnectSize
	case OperationDelegate:
		return DelegateHeadSize + DelegateCopySize, DelegateSizeMax
	case OperationUnpin:
		return PinNameSize, PinNameSize
	}
	return ParentSize, ParentSize
}

// BodyHeadSize is how many bytes stand directly behind the request at least: from them BodySize finds the
// size of the whole. Zero: nothing does. The request must have passed Check.
func (r Request) BodyHeadSize() int {
	switch {
	case r.Operation.Grants():
		return GrantHeadSize
	case r.Operation == OperationPin:
		return PinSize
	case r.Operation.connects(), r.Operation.pins():
		return int(r.Length)
	}
	return 0
}

// BodySize returns the size of the body whose first BodyHeadSize bytes are head. The error is a
// *FrameError, and the stream cannot go on.
func (r Request) BodySize(head []byte) (int, error) {
	if r.Operation.Grants() {
		return GrantRequestSize(head)
	}
	return r.BodyHeadSize(), nil
}

func (r Request) checkDescribe() error {
	for _, f := range [...]struct {
		name  string
		value uint64
	}{{"region", r.Region}, {"offset", r.Offset}, {"length", r.Length}} {
		if f.value != 0 {
			return refuse(requestFrame, f.name, f.value, "0 for describe")
		}
	}
	return nil
}

func (r Request) checkNotify() error {
	switch {
	case r.Region != 0:
		return refuse(requestFrame, "region", r.Region, "0 for a notification")
	case r.Length > math.MaxUint64-r.Offset:
		return refuse(requestFrame, "message length", r.Length, "name and message lengths with a sum below 2^64").
			with(StatusInvalidRange)
	case r.Offset+r.Length > NotificationBytesMax:
		return refuse(requestFrame, "name and message length", r.Offset+r.Length, "at most 16777216 bytes").
			with(StatusExhausted)
	}
	return nil
}

func (r Request) checkTransfer() error {
	switch {
	case r.Region == 0:
		return refuse(requestFrame, "region", r.Region, "1 or more").with(StatusUnknownRegion)
	case r.Length > math.MaxUint64-r.Offset:
		return refuse(requestFrame, "length", r.Length, "a range that ends below 2^64").with(StatusInvalidRange)
	case !r.Operation.RDMA() && r.Length > PayloadBytesMax:
		return refuse(requestFrame, "length", r.Length, "at most 67108864 bytes: split the transfer").with(StatusExhausted)
	}
	return nil
}
