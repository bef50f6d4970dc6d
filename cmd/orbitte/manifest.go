package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The manifest is a published region of its own: a header (big-endian), then JSON.
//
//	magic 8 · version 4 · zero 4 · length of the JSON 8 · SHA-256 of the JSON 32
//
// A manifest is never changed in place: a new one is registered, then the old one is unregistered, so that
// a reader gets one or the other, whole. Region IDs rise, so that the last readable region is the newest.
const (
	manifestMagic       = "ORBFILES"
	manifestVersion     = 1
	manifestHeaderBytes = 8 + 4 + 4 + 8 + sha256.Size
	manifestBytesMax    = 16 << 20
	// servedFilesMax leaves two of the protocol's 4,096 regions to the manifest and its successor.
	servedFilesMax = 4094
	nameBytesMax   = 255
	checksKept     = 64
)

// digest is a SHA-256, in JSON and in print 64 hexadecimal digits.
type digest [sha256.Size]byte

func (d digest) String() string { return hex.EncodeToString(d[:]) }

// MarshalText (encoding.TextMarshaler).
func (d digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText (encoding.TextUnmarshaler).
func (d *digest) UnmarshalText(text []byte) error {
	if len(text) != 2*len(d) {
		return fmt.Errorf("a SHA-256 has %d digits, not %d", 2*len(d), len(text))
	}
	_, err := hex.Decode(d[:], text)
	return err
}

// manifest says which files the published regions are.
type manifest struct {
	Files []entry `json:"files"`
	// Checks are the last answers to put: what the source's own SHA-256 of a file is.
	Checks []check `json:"checks,omitempty"`
}

// entry is one file. An empty one has no region and the address 0.
type entry struct {
	Name     string `json:"name"`
	Size     uint64 `json:"size"`
	SHA256   digest `json:"sha256"`
	Address  uint64 `json:"address"`
	Writable bool   `json:"writable"`
}

// check answers one request to hash a file again; ID is the requester's.
type check struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	SHA256 digest `json:"sha256"`
	Error  string `json:"error,omitempty"`
}

func (m *manifest) find(name string) (*entry, bool) {
	for i := range m.Files {
		if m.Files[i].Name == name {
			return &m.Files[i], true
		}
	}
	return nil, false
}

func (m *manifest) names() []string {
	names := make([]string, len(m.Files))
	for i := range m.Files {
		names[i] = m.Files[i].Name
	}
	return names
}

// encode gives the region's bytes.
func (m *manifest) encode() ([]byte, error) {
	body, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	b := append(make([]byte, 0, manifestHeaderBytes+len(body)), manifestMagic...)
	b = binary.BigEndian.AppendUint32(b, manifestVersion)
	b = binary.BigEndian.AppendUint32(b, 0)
	b = binary.BigEndian.AppendUint64(b, uint64(len(body)))
	return append(append(b, sum[:]...), body...), nil
}

var errForeign = errors.New("the region is no manifest")

// manifestLength reads a header and says how long the whole is; available is the region's length.
// errForeign when the region is something else.
func manifestLength(header []byte, available uint64) (uint64, error) {
	if len(header) < manifestHeaderBytes || string(header[:8]) != manifestMagic {
		return 0, errForeign
	}
	if v := binary.BigEndian.Uint32(header[8:]); v != manifestVersion || binary.BigEndian.Uint32(header[12:]) != 0 {
		return 0, fmt.Errorf("the manifest has version %d, this tool reads %d", v, manifestVersion)
	}
	n := binary.BigEndian.Uint64(header[16:])
	if n > manifestBytesMax || manifestHeaderBytes+n > available {
		return 0, fmt.Errorf("the manifest claims %d bytes in a region of %d", n, available)
	}
	return manifestHeaderBytes + n, nil
}

// decodeManifest reads what encode wrote. Nothing of it is trusted before it is checked: names become file
// names.
func decodeManifest(b []byte) (*manifest, error) {
	n, err := manifestLength(b, uint64(len(b)))
	if err != nil {
		return nil, err
	}
	body := b[manifestHeaderBytes:n]
	if sum := sha256.Sum256(body); !bytes.Equal(sum[:], b[24:manifestHeaderBytes]) {
		return nil, fmt.Errorf("the manifest was damaged on the way: %w", errDiffers)
	}
	m := new(manifest)
	if err := json.Unmarshal(body, m); err != nil {
		return nil, fmt.Errorf("the manifest cannot be read: %w", err)
	}
	seen := map[string]bool{}
	for _, f := range m.Files {
		if err := checkName(f.Name); err != nil {
			return nil, err
		}
		if seen[f.Name] {
			return nil, fmt.Errorf("the manifest names %q twice", f.Name)
		}
		seen[f.Name] = true
	}
	return m, nil
}

// checkName admits what is one file name on every side: no path, nothing that a terminal obeys, and nothing
// that get would take for a temporary file and remove.
func checkName(name string) error {
	if _, _, temporary := cutTemporary(name); temporary {
		return fmt.Errorf("%q cannot be published: get's temporary files have such names", name)
	}
	switch {
	case name == "" || name == "." || name == ".." || len(name) > nameBytesMax || strings.ContainsRune(name, '/'):
	case !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }):
	default:
		return nil
	}
	return fmt.Errorf("%q cannot be published: a name is 1 to %d bytes of printable UTF-8 without a slash", name, nameBytesMax)
}

// recheck is the message that asks a source to hash a file again, in a notification of that name.
type recheck struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

const recheckName = "orbitte.recheck"
