package netproto

// The first frames of an HP-TCP data stream (H-2). Both start like every header: magic and version. The
// layouts are the project's:
//
//	hello, 64:   header 12 (code 68), expected epoch of the source 16, requester's epoch 16, stream 2, flags 2,
//	             chunk 8, in flight 8
//	welcome, 64: header 12 (status), the source's epoch 16, requester's epoch 16, slots 2, flags 2, chunk 8,
//	             in flight 8; the last four are zero in a refusal
const (
	HPTCPHelloSize = HeaderSize + 2*EpochSize + 2 + 2 + 8 + 8

	// hptcpHelloCode stands where a request has its operation. It is no operation of the control protocol: a
	// hello on a control stream, like a request on a data stream, is refused.
	hptcpHelloCode = 68

	helloFrame   = "HP-TCP hello"
	welcomeFrame = "HP-TCP welcome"
)

// HPTCPFlags are what both ends of a stream agree on.
type HPTCPFlags uint16

// HPTCPChecksums: every chunk carries the CRC32C of its bytes (H-9).
const HPTCPChecksums HPTCPFlags = 1

// HPTCPHello opens a stream: it names both lives and what the requester wants.
type HPTCPHello struct {
	Expected  Epoch  // the source's life that the requester knows
	Requester Epoch  // the requester's own life
	Stream    uint16 // which of the requester's streams to this source: the lowest six bits from 0, the others for each way to it
	Flags     HPTCPFlags
	Chunk     uint64 // bytes of one chunk at most
	InFlight  uint64 // payload bytes of unanswered requests at most
}

// HPTCPWelcome answers a hello. With StatusSuccess it says what holds on the stream, never more than was asked
// for; otherwise the stream ends.
type HPTCPWelcome struct {
	Status    Status
	Source    Epoch
	Requester Epoch // as in the hello
	Slots     uint16
	Flags     HPTCPFlags
	Chunk     uint64
	InFlight  uint64
}

// AppendHPTCPHello appends the 64 bytes of h. It encodes any value and allocates only when dst is too short.
func AppendHPTCPHello(dst []byte, h HPTCPHello) []byte {
	dst = appendHeader(dst, hptcpHelloCode)
	return appendHPTCPTerms(dst, h.Expected, h.Requester, h.Stream, h.Flags, h.Chunk, h.InFlight)
}

// AppendHPTCPWelcome appends the 64 bytes of w. It encodes any value and allocates only when dst is too short.
func AppendHPTCPWelcome(dst []byte, w HPTCPWelcome) []byte {
	dst = appendHeader(dst, byte(w.Status))
	return appendHPTCPTerms(dst, w.Source, w.Requester, w.Slots, w.Flags, w.Chunk, w.InFlight)
}

func appendHPTCPTerms(dst []byte, a, b Epoch, n uint16, flags HPTCPFlags, chunk, inFlight uint64) []byte {
	dst = append(append(dst, a[:]...), b[:]...)
	dst = order.AppendUint16(order.AppendUint16(dst, n), uint16(flags))
	return order.AppendUint64(order.AppendUint64(dst, chunk), inFlight)
}

// DecodeHPTCPHello reads exactly HPTCPHelloSize bytes. The error is a *FrameError; the stream cannot go on.
func DecodeHPTCPHello(b []byte) (HPTCPHello, error) {
	code, err := decodeHeader(helloFrame, b, HPTCPHelloSize)
	if err != nil {
		return HPTCPHello{}, err
	}
	h := HPTCPHello{Expected: Epoch(b[12:]), Requester: Epoch(b[28:]), Stream: order.Uint16(b[44:]),
		Flags: HPTCPFlags(order.Uint16(b[46:])), Chunk: order.Uint64(b[48:]), InFlight: order.Uint64(b[56:])}
	switch {
	case code != hptcpHelloCode:
		return HPTCPHello{}, refuse(helloFrame, "code", uint64(code), "68: this is a data stream, control has its own port")
	case h.Expected.IsZero():
		return HPTCPHello{}, refuse(helloFrame, "expected epoch", 0, "a life of the source")
	case h.Requester.IsZero():
		return HPTCPHello{}, refuse(helloFrame, "requester epoch", 0, "a life of the requester")
	}
	return h, checkHPTCPTerms(helloFrame, h.Flags, h.Chunk, h.InFlight)
}

func checkHPTCPTerms(frame string, flags HPTCPFlags, chunk, inFlight uint64) error {
	switch {
	case flags&^HPTCPChecksums != 0:
		return refuse(frame, "flags", uint64(flags), "0 or 1")
	case chunk == 0 || chunk > PayloadBytesMax:
		return refuse(frame, "chunk", chunk, "1 to 67108864 bytes")
	case inFlight < chunk:
		return refuse(frame, "in flight", inFlight, "at least one chunk")
	}
	return nil
}

// DecodeHPTCPWelcome reads exactly HPTCPHelloSize bytes, the answer to h, and refuses with a *FrameError what does not
// answer it.
func DecodeHPTCPWelcome(h HPTCPHello, b []byte) (HPTCPWelcome, error) {
	code, err := decodeHeader(welcomeFrame, b, HPTCPHelloSize)
	if err != nil {
		return HPTCPWelcome{}, err
	}
	w := HPTCPWelcome{Status: Status(code), Source: Epoch(b[12:]), Requester: Epoch(b[28:]), Slots: order.Uint16(b[44:]),
		Flags: HPTCPFlags(order.Uint16(b[46:])), Chunk: order.Uint64(b[48:]), InFlight: order.Uint64(b[56:])}
	switch {
	case !w.Status.Known() || w.Status == StatusReady:
		return w, refuse(welcomeFrame, "status", uint64(code), "0 to 12, and not ready")
	case w.Requester != h.Requester:
		return w, refuse(welcomeFrame, "requester epoch", uint64(w.Requester[0]), "that of the hello")
	case w.Status != StatusSuccess:
		if !isZero(b[44:]) {
			return w, refuse(welcomeFrame, "terms of a refusal", uint64(w.Slots), "0")
		}
		return w, nil
	case w.Source != h.Expected:
		return w, refuse(welcomeFrame, "source epoch", uint64(w.Source[0]), "that of the hello, in a success")
	case w.Slots == 0:
		return w, refuse(welcomeFrame, "slots", 0, "1 or more")
	case w.Chunk > h.Chunk || w.InFlight > h.InFlight || w.Flags != h.Flags:
		return w, refuse(welcomeFrame, "terms", w.Chunk, "no more than the hello asked for, and its flags")
	}
	return w, checkHPTCPTerms(welcomeFrame, w.Flags, w.Chunk, w.InFlight)
}
