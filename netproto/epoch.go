package netproto

import "encoding/hex"

// EpochSize is the size of an epoch in bytes.
const EpochSize = 16

// Epoch names one life of one source: 128 bits chosen at random when an engine opens. The zero epoch
// names nobody; only a describe may carry it, to learn the real one (W-12).
type Epoch [EpochSize]byte

// IsZero reports whether the epoch names nobody.
func (e Epoch) IsZero() bool { return e == Epoch{} }

// String returns 32 lower-case hexadecimal digits.
func (e Epoch) String() string { return hex.EncodeToString(e[:]) }

// ParseEpoch reads the form that String writes; upper-case digits are taken as well. The error is a
// *FrameError.
func ParseEpoch(text string) (Epoch, error) {
	var e Epoch
	if len(text) != 2*EpochSize {
		return Epoch{}, refuse("epoch", "length", uint64(len(text)), "32 hexadecimal digits")
	}
	if _, err := hex.Decode(e[:], []byte(text)); err != nil {
		return Epoch{}, refuse("epoch", "first digits", uint64(text[0]), "32 hexadecimal digits")
	}
	return e, nil
}
