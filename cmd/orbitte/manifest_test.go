package main

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

func example() *manifest {
	return &manifest{
		Files: []entry{
			{Name: "weights.bin", Size: 1 << 30, SHA256: sha256.Sum256([]byte("w")), Address: 0x7f0000000000, Writable: true},
			{Name: "größe ☃", SHA256: sha256.Sum256(nil)},
		},
		Checks: []check{{ID: "00ff", Name: "weights.bin", SHA256: sha256.Sum256([]byte("v"))}, {ID: "01", Name: "x", Error: "no such file"}},
	}
}

func encoded(t *testing.T, m *manifest) []byte {
	t.Helper()
	b, err := m.encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestAManifestIsReadAsItWasWritten(t *testing.T) {
	b := encoded(t, example())
	if n, err := manifestLength(b[:manifestHeaderBytes], uint64(len(b))+100); err != nil || n != uint64(len(b)) {
		t.Errorf("length %d, %v; want %d", n, err, len(b))
	}
	m, err := decodeManifest(append(b, "and what else the region holds"...))
	if err != nil || !reflect.DeepEqual(m, example()) {
		t.Errorf("got %+v, %v", m, err)
	}
}

func TestADamagedOrCutManifestIsRefused(t *testing.T) {
	whole := encoded(t, example())
	for i := range whole {
		b := append([]byte(nil), whole...)
		b[i] ^= 0x20
		if _, err := decodeManifest(b); err == nil {
			t.Errorf("accepted with byte %d damaged", i)
		}
		if _, err := decodeManifest(whole[:i]); err == nil {
			t.Errorf("accepted when cut to %d bytes", i)
		}
	}
	if _, err := manifestLength(make([]byte, manifestHeaderBytes), 1<<20); !errors.Is(err, errForeign) {
		t.Errorf("zeros: %v", err)
	}
}

func TestAManifestThatClaimsTooMuchIsRefusedBeforeItIsRead(t *testing.T) {
	b := encoded(t, example())
	if _, err := manifestLength(b, uint64(len(b))-1); err == nil {
		t.Error("accepted beyond its region")
	}
	copy(b[16:24], "\x00\x00\x00\x00\x01\x00\x00\x01") // one more than 16 MiB
	if _, err := manifestLength(b, 1<<40); err == nil {
		t.Error("accepted above the limit")
	}
	copy(b[16:24], "\xff\xff\xff\xff\xff\xff\xff\xff")
	if _, err := manifestLength(b, 1<<40); err == nil {
		t.Error("accepted a length that wraps")
	}
}

// Names become file names and are printed: none may leave its folder or command a terminal.
func TestNamesThatAreNoFileNamesAreRefused(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "/etc/passwd", "../x", "a\x00b", "a\nb", "\x1b[2J", "\xff", ".data.orbitte-12-0123456789ab", ".a.orbitte-1-2.orbitte-12-0123456789ab", strings.Repeat("x", 256)} {
		if checkName(name) == nil {
			t.Errorf("%q is admitted", name)
		}
		if !utf8.ValidString(name) {
			continue // JSON cannot carry it
		}
		if _, err := decodeManifest(encoded(t, &manifest{Files: []entry{{Name: name}}})); err == nil {
			t.Errorf("a manifest with %q is accepted", name)
		}
	}
	if _, err := decodeManifest(encoded(t, &manifest{Files: []entry{{Name: "a"}, {Name: "a"}}})); err == nil {
		t.Error("one name twice is accepted")
	}
	for _, name := range []string{"a", "..a", "größe", "two words", "data.orbitte-12-0123456789ab", ".data.orbitte-12-short", ".orbitte-12-0123456789ab", strings.Repeat("x", 255)} {
		if err := checkName(name); err != nil {
			t.Error(err)
		}
	}
}

func TestADigestHas64Digits(t *testing.T) {
	for _, text := range []string{`"00"`, `"` + strings.Repeat("g", 64) + `"`, `"` + strings.Repeat("0", 66) + `"`} {
		var d digest
		if json.Unmarshal([]byte(text), &d) == nil {
			t.Errorf("%s is accepted", text)
		}
	}
}
