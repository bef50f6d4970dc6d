package netproto

// Reply is the fixed frame with which a source answers (W-3).
type Reply struct {
	Status Status
	Epoch  Epoch  // the source's actual epoch
	Length uint64 // payload bytes that follow this frame
}

const replyFrame = "reply"

// AppendReply appends the 36 bytes of r. It encodes any value. It allocates only when dst is too
// short.
func AppendReply(dst []byte, r Reply) []byte {
	dst = appendHeader(dst, byte(r.Status))
	dst = append(dst, r.Epoch[:]...)
	return order.AppendUint64(dst, r.Length)
}

// DecodeReply reads exactly ReplySize bytes and refuses with a *FrameError: a wrong size, magic,
// version, reserved byte, an unknown status, a payload behind a refusal, and a payload above
// PayloadBytesMax (W-1, W-3, W-15). Whether the length is the one that was asked for is for the caller
// to compare.
func DecodeReply(b []byte) (Reply, error) {
	code, err := decodeHeader(replyFrame, b, ReplySize)
	if err != nil {
		return Reply{}, err
	}
	r := Reply{Status: Status(code), Epoch: Epoch(b[12:28]), Length: order.Uint64(b[28:])}
	switch {
	case !r.Status.Known():
		return Reply{}, refuse(replyFrame, "status", uint64(code), "0 to 12")
	case r.Length != 0 && !r.Status.mayCarryPayload():
		return Reply{}, refuse(replyFrame, "payload length", r.Length, "0 behind a refusal")
	case r.Length > PayloadBytesMax:
		return Reply{}, refuse(replyFrame, "payload length", r.Length, "at most 67108864 bytes").with(StatusExhausted)
	}
	return r, nil
}
