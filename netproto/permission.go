package netproto

import "fmt"

// Permission says what peers may do with a region; the bits are those of the wire (W-6).
type Permission uint8

// The permissions. ReadWrite is both bits.
const (
	LocalOnly   Permission = 0 // never exported
	RemoteRead  Permission = 1 << 0
	RemoteWrite Permission = 1 << 1
	ReadWrite              = RemoteRead | RemoteWrite
)

// Known reports whether no undefined bit is set.
func (p Permission) Known() bool { return p <= ReadWrite }

// Allows reports whether p has every bit of need.
func (p Permission) Allows(need Permission) bool { return p&need == need }

// String names the permission.
func (p Permission) String() string {
	switch p {
	case LocalOnly:
		return "local-only"
	case RemoteRead:
		return "remote-read"
	case RemoteWrite:
		return "remote-write"
	case ReadWrite:
		return "read-write"
	}
	return fmt.Sprintf("unknown permission %d", uint8(p))
}
