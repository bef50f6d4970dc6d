package netproto

import (
	"math"
	"unicode/utf8"
)

// Notification is a name and a message, both UTF-8; empty ones are fine (N-1).
type Notification struct {
	Name    string
	Message string
}

// NotifyMarkerSize is the size of the zero commit marker behind name and message: one byte (W-13). A
// body without it is partial and must not be delivered.
const NotifyMarkerSize = 1

const notifyFrame = "notify body"

// Check tells whether a peer may accept the notification: valid UTF-8 and at most
// NotificationBytesMax. The error is a *FrameError.
func (n Notification) Check() error {
	if size := uint64(len(n.Name)) + uint64(len(n.Message)); size > NotificationBytesMax {
		return refuse(notifyFrame, "name and message length", size, "at most 16777216 bytes").with(StatusExhausted)
	}
	if i := invalidUTF8(n.Name); i >= 0 {
		return refuse(notifyFrame, "name byte", uint64(n.Name[i]), "UTF-8").at(i)
	}
	if i := invalidUTF8(n.Message); i >= 0 {
		return refuse(notifyFrame, "message byte", uint64(n.Message[i]), "UTF-8").at(i)
	}
	return nil
}

// invalidUTF8 returns the index of the first byte that is not UTF-8, or -1.
func invalidUTF8(s string) int {
	if utf8.ValidString(s) {
		return -1
	}
	i := 0
	for {
		r, width := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && width <= 1 {
			return i
		}
		i += width
	}
}

// Request returns the frame that announces the notification: op is OperationNotify or
// OperationControlNotify, offset the name length, length the message length (W-13).
func (n Notification) Request(op Operation, epoch Epoch) Request {
	return Request{Operation: op, Epoch: epoch, Offset: uint64(len(n.Name)), Length: uint64(len(n.Message))}
}

// NotifyBodySize returns the bytes that follow a notification's request: name, message and marker. The
// request must have passed Check, so that the sum is small.
func (r Request) NotifyBodySize() int { return int(r.Offset + r.Length + NotifyMarkerSize) }

// AppendNotifyBody appends name, message and commit marker.
func AppendNotifyBody(dst []byte, n Notification) []byte {
	dst = append(dst, n.Name...)
	dst = append(dst, n.Message...)
	return append(dst, 0)
}

// DecodeNotifyBody reads a complete body whose lengths were announced by request r. It copies the
// texts out of body. A *FrameError refuses a body of another size, a marker that is not zero and text
// that is not UTF-8 (N-4: malformed or partial bodies never enter an inbox).
func DecodeNotifyBody(r Request, body []byte) (Notification, error) {
	size := uint64(len(body))
	// Compared without adding to the announced lengths, which may be anything.
	if size < NotifyMarkerSize || r.Offset > size-NotifyMarkerSize || r.Length != size-NotifyMarkerSize-r.Offset {
		return Notification{}, refuseSize(notifyFrame, size, saturatingSum(r.Offset, r.Length, NotifyMarkerSize))
	}
	if marker := body[size-1]; marker != 0 {
		return Notification{}, refuse(notifyFrame, "commit marker", uint64(marker), "0")
	}
	n := Notification{Name: string(body[:r.Offset]), Message: string(body[r.Offset : size-NotifyMarkerSize])}
	if err := n.Check(); err != nil {
		return Notification{}, err
	}
	return n, nil
}

// saturatingSum adds without wrapping.
func saturatingSum(values ...uint64) uint64 {
	var sum uint64
	for _, v := range values {
		if v > math.MaxUint64-sum {
			return math.MaxUint64
		}
		sum += v
	}
	return sum
}
