package netproto

import "encoding/binary"

// Version is the protocol version both sides must speak (W-1).
const Version = 19

// Sizes on the wire, in bytes.
const (
	HeaderSize  = 12 // magic 8, version 2, operation or status 1, zero 1
	RequestSize = HeaderSize + EpochSize + 3*8
	ReplySize   = HeaderSize + EpochSize + 8
)

// Limits of the protocol. Engines enforce their own smaller budgets; these bound what any engine may
// ask or answer.
const (
	// PayloadBytesMax bounds the payload of one TCP READ, TCP WRITE or reply (SPEC U, "one payload").
	PayloadBytesMax = 64 << 20
	// NotificationBytesMax bounds name plus message of one notification.
	NotificationBytesMax = 16 << 20
	// RegionsMax bounds the regions of one descriptor (SPEC U, "protocol limit").
	RegionsMax = 4096
)

// magic starts both headers (W-1).
const magic = "ORBITTE\x00"

// prefix is what every header starts with, whatever follows: magic and version.
var prefix = [len(magic) + 2]byte{'O', 'R', 'B', 'I', 'T', 'T', 'E', 0, Version >> 8, Version & 0xff}

// order is the byte order of every integer on the wire.
var order = binary.BigEndian

// appendHeader appends the 12 bytes shared by requests and replies; code is the operation or status.
func appendHeader(dst []byte, code byte) []byte {
	dst = append(dst, prefix[:]...)
	return append(dst, code, 0)
}

// decodeHeader checks size, magic, version and reserved byte of a whole frame and returns the code
// byte. size is the exact size the frame must have.
func decodeHeader(frame string, b []byte, size int) (code byte, err error) {
	if len(b) != size {
		return 0, refuseSize(frame, uint64(len(b)), uint64(size))
	}
	if string(b[:len(magic)]) != magic {
		return 0, refuse(frame, "magic", order.Uint64(b), "the bytes ORBITTE and zero: the peer speaks another protocol")
	}
	if v := order.Uint16(b[8:]); v != Version {
		return 0, refuse(frame, "version", uint64(v), "19: run the same protocol version on both sides")
	}
	if b[11] != 0 {
		return 0, refuse(frame, "reserved byte", uint64(b[11]), "0")
	}
	return b[10], nil
}

// fits reports whether offset and length name bytes inside an object of the given size. It cannot
// overflow.
func fits(offset, length, size uint64) bool {
	return length <= size && offset <= size-length
}

// isZero reports whether every byte of b is zero.
func isZero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}

// boolByte is the wire form of a flag that has a byte of its own.
func boolByte(v bool) byte {
	if v {
		return 1
	}
	return 0
}
