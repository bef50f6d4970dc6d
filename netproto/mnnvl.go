package netproto

// MNNVLSize is the size of the MNNVL trailer (W-11).
const MNNVLSize = 16 + 1 + 1 + 6

// MNNVLHandle says which kind of handle exports memory.
type MNNVLHandle uint8

// The handle kinds.
const (
	MNNVLFabric MNNVLHandle = 0
	MNNVLPosix  MNNVLHandle = 1 // POSIX file descriptor
)

// MNNVL is the trailer of a source in a multi-node NVLink domain (W-11).
type MNNVL struct {
	Domain [16]byte
	Handle MNNVLHandle
	EGM    bool // host memory is exported as extended GPU memory
}

func (m *MNNVL) append(dst []byte) []byte {
	dst = append(dst, m.Domain[:]...)
	return append(dst, byte(m.Handle), boolByte(m.EGM), 0, 0, 0, 0, 0, 0)
}

// decodeMNNVL reads MNNVLSize bytes.
func decodeMNNVL(b []byte) (*MNNVL, error) {
	if b[17] > 1 {
		return nil, refuse(descriptorFrame, "MNNVL EGM enable", uint64(b[17]), "0 or 1")
	}
	for i, x := range b[18:MNNVLSize] {
		if x != 0 {
			return nil, refuse(descriptorFrame, "MNNVL reserved byte", uint64(x), "0").at(i)
		}
	}
	return &MNNVL{Domain: [16]byte(b), Handle: MNNVLHandle(b[16]), EGM: b[17] == 1}, nil
}

func (m *MNNVL) check() error {
	if m.Handle > MNNVLPosix {
		return refuse(descriptorFrame, "MNNVL handle kind", uint64(m.Handle), "0 or 1")
	}
	return nil
}
