package netproto

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// The golden vectors live in testdata/golden, two files for each frame:
//
//	NAME.fields  written from SPEC.md without the codec: offset, width, name and value of every field
//	NAME.hex     written by the encoder (go test -run Golden -update), one field per line
//
// TestGoldenVectors* compare the encoder and the decoder with NAME.hex; TestGoldenIndependentCheck
// walks NAME.hex by NAME.fields alone and shares no code with the codec.
var update = flag.Bool("update", false, "write testdata/golden/*.hex with the encoder")

const goldenFolder = "testdata/golden"

var goldenEpoch = Epoch{0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf}

const (
	goldenBase   = 0x7f0011223000
	goldenGPU    = 0x7fff00000000
	goldenID     = 0x0102030405060708
	goldenOffset = 1<<32 | 0x02030405
)

var goldenRequests = map[string]Request{
	"request-describe-unknown":  {},
	"request-describe":          {Epoch: goldenEpoch},
	"request-tcp-read":          {OperationTCPRead, goldenEpoch, 7, goldenOffset, 1<<16 + 1},
	"request-tcp-write":         {OperationTCPWrite, goldenEpoch, goldenID, goldenOffset, 64 << 20},
	"request-notify":            goldenNotification.Request(OperationNotify, goldenEpoch),
	"request-rdma-read":         {OperationRDMARead, goldenEpoch, 7, goldenOffset, 1<<31 + 1},
	"request-rdma-write":        {OperationRDMAWrite, goldenEpoch, 7, goldenOffset, 1<<32 + 1},
	"request-rdma-read-sliced":  {OperationRDMAReadSliced, goldenEpoch, 7, goldenOffset, 5 << 20},
	"request-rdma-write-sliced": {OperationRDMAWriteSliced, goldenEpoch, 7, goldenOffset, 5 << 20},
	"request-rdma-connect":      {OperationRDMAConnect, goldenEpoch, 0, 0, ConnectionHeadSize + 2*ConnectionPairSize},
	"request-rdma-done":         {OperationRDMADone, goldenEpoch, 0, 0, ParentSize},
	"request-rdma-abandon":      {OperationRDMAAbandon, goldenEpoch, 0, 0, ParentSize},
	"request-rdma-disconnect":   {OperationRDMADisconnect, goldenEpoch, 0, 0, DisconnectSize},
	"request-pin":               {OperationPin, goldenEpoch, 7, goldenOffset, 5 << 20},
	"request-delegate":          {OperationDelegate, goldenEpoch, 0, 0, DelegateHeadSize + 2*DelegateCopySize},
	"request-unpin":             {OperationUnpin, goldenEpoch, 0, 0, PinNameSize},
	"request-control-notify":    Notification{}.Request(OperationControlNotify, goldenEpoch),
}

var goldenReplies = map[string]Reply{
	"reply-success":             {StatusSuccess, goldenEpoch, 1<<16 + 1},
	"reply-epoch-mismatch":      {StatusEpochMismatch, goldenEpoch, 0},
	"reply-unknown-region":      {StatusUnknownRegion, goldenEpoch, 0},
	"reply-permission-denied":   {StatusPermissionDenied, goldenEpoch, 0},
	"reply-invalid-range":       {StatusInvalidRange, goldenEpoch, 0},
	"reply-source-closed":       {StatusSourceClosed, goldenEpoch, 0},
	"reply-exhausted":           {StatusExhausted, goldenEpoch, 0},
	"reply-protocol-error":      {StatusProtocolError, goldenEpoch, 0},
	"reply-internal-error":      {StatusInternalError, goldenEpoch, 0},
	"reply-ready":               {StatusReady, goldenEpoch, 0},
	"reply-backend-unavailable": {StatusBackendUnavailable, goldenEpoch, 0},
	"reply-native-error":        {StatusNativeError, goldenEpoch, 0},
	"reply-cache-miss":          {StatusCacheMiss, goldenEpoch, 0},
}

var goldenNotification = Notification{Name: "prefill-done", Message: "layer 7: größe ✓"}

var goldenBodies = map[string]Notification{
	"notify-body":       goldenNotification,
	"notify-body-empty": {},
}

// rising returns 16 bytes that count up from first.
func rising(first byte) (b [16]byte) {
	for i := range b {
		b[i] = first + byte(i)
	}
	return b
}

const goldenServes = CapabilityTCP | CapabilityNotify | CapabilityControlNotify

func goldenCapabilities(extra Capability) Capabilities {
	return Capabilities{Bits: goldenServes | extra, TransferBytesMax: 8 << 20}
}

var goldenDescriptors = map[string]*Descriptor{
	"descriptor-empty": {Capabilities: goldenCapabilities(0), Regions: []Region{}},
	"descriptor-regions": {
		Capabilities: goldenCapabilities(CapabilityRDMA | CapabilityGPUDirect),
		Regions: []Region{
			{ID: 1, Base: goldenBase, Length: 4096, Permission: RemoteRead},
			{ID: 5, Base: goldenBase, Length: 1<<16 + 1, Permission: RemoteWrite, IPCExport: true, Flags: RegionScoped,
				Scope: Scope{Ordinal: 3}},
			{ID: goldenID, Base: goldenGPU, Length: 1<<32 + 1, Permission: ReadWrite, Memory: MemoryCUDA, IPCExport: true,
				Flags: RegionScoped | RegionDMABuf | RegionPeerMemory, Scope: Scope{TransportRDMA, OrdinalUnknown}},
		},
		RDMA: goldenPaths,
	},
	"descriptor-shm": {
		Capabilities: goldenCapabilities(CapabilitySHM),
		Regions: []Region{
			{ID: 2, Base: goldenBase, Length: 4096, Permission: RemoteRead, IPCExport: true, Flags: RegionScoped, Scope: Scope{Transport: TransportSHM}},
			{ID: 9, Base: goldenBase + 8192, Length: 8192, Permission: ReadWrite, IPCExport: true},
		},
		SHM: &SHM{Backend: SHMDirectory, Records: []SHMRecord{
			{2, 4096, 8192, 11, 64769, 131073, 4026531836, 70000, rising(0x10)},
			{9, 0, 8192, 12, 64770, 131074, 4026531837, 70001, rising(0xf0)},
		}},
	},
	"descriptor-mnnvl": {
		Capabilities: goldenCapabilities(CapabilityMNNVL),
		Regions: []Region{
			{ID: 3, Base: goldenBase, Length: 4096, Permission: RemoteRead, Memory: MemoryCUDA, Location: MNNVLExportGPU},
			{ID: 4, Base: goldenBase, Length: 8192, Permission: ReadWrite, Location: MNNVLExportEGM | 2},
		},
		MNNVL: &MNNVL{Domain: rising(0xd0), Handle: MNNVLPosix, EGM: true},
	},
	"descriptor-hptcp": {
		Capabilities: goldenCapabilities(CapabilityHPTCP),
		Regions:      []Region{{ID: 3, Base: goldenBase, Length: 4096, Permission: ReadWrite, Flags: RegionHPTCP}},
		HPTCP:        &HPTCPEndpoint{FamilyIPv6, 40001, 16, 256 << 10, 16 << 20},
	},
	"descriptor-pins": {
		Capabilities: goldenCapabilities(CapabilityPins),
		Regions:      []Region{{ID: 3, Base: goldenGPU, Length: 4096, Permission: ReadWrite, Memory: MemoryCUDA}},
	},
	"descriptor-all": {
		Capabilities: Capabilities{Bits: 0xff, TransferBytesMax: 64 << 20},
		Regions: []Region{
			{ID: 3, Base: goldenBase, Length: 4096, Permission: RemoteRead, IPCExport: true, Flags: RegionScoped | RegionHPTCP,
				Location: MNNVLExportEGM | 1, Scope: Scope{TransportTCP, 1}},
			{ID: 4, Base: goldenGPU, Length: 8192, Permission: ReadWrite, Memory: MemoryCUDA,
				Flags: RegionScoped | RegionHPTCP | RegionDMABuf | RegionPeerMemory, Location: MNNVLExportGPU, Scope: Scope{TransportNVLink, 0}},
		},
		SHM:   &SHM{Records: []SHMRecord{{3, 0, 4096, 1, 64769, 131073, 4026531836, 1 << 22, rising(0x10)}}},
		MNNVL: &MNNVL{Domain: rising(0xd0), EGM: true},
		RDMA: &RDMAPaths{HostStaged, 1, 1, 0, []Path{
			{5, 1, PathActive, LinkEthernet, 1, 0x0011223344556677, 9, [16]byte{0: 0xfd, 1: 0x77, 15: 1}, "rxe0"},
		}},
		HPTCP: &HPTCPEndpoint{FamilyIPv4, 40002, 4, 1 << 20, 1 << 20},
	},
}

// fieldRow is one line of a .fields file.
type fieldRow struct {
	offset, width int
	name          string
	value         []byte // as it stands on the wire
}

// readFields parses a table.
func readFields(t testing.TB, name string) (rows []fieldRow) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(goldenFolder, name+".fields"))
	if err != nil {
		t.Fatal(err)
	}
	for number, line := range strings.Split(string(text), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		left, value, ok := strings.Cut(line, " = ")
		parts := strings.SplitN(left, " ", 3)
		if !ok || len(parts) != 3 {
			t.Fatalf("%s.fields:%d: %q", name, number+1, line)
		}
		offset, err1 := strconv.Atoi(parts[0])
		width, err2 := strconv.Atoi(parts[1])
		if err1 != nil || err2 != nil {
			t.Fatalf("%s.fields:%d: %q", name, number+1, line)
		}
		rows = append(rows, fieldRow{offset, width, parts[2], fieldBytes(t, value, width)})
	}
	return rows
}

// fieldBytes turns a table value into wire bytes: "text", 0x followed by every digit, or a decimal.
func fieldBytes(t testing.TB, value string, width int) []byte {
	t.Helper()
	var b []byte
	switch {
	case strings.HasPrefix(value, `"`):
		b = []byte(strings.Trim(value, `"`))
	case strings.HasPrefix(value, "0x"):
		b, _ = hex.DecodeString(value[2:])
	default:
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			t.Fatalf("value %q: %v", value, err)
		}
		b = make([]byte, width)
		for i := width - 1; i >= 0; i-- {
			b[i] = byte(n)
			n >>= 8
		}
	}
	if len(b) != width {
		t.Fatalf("value %q has %d bytes, its field %d", value, len(b), width)
	}
	return b
}

// readHex parses a .hex file: hexadecimal digits, blanks, and comments from # to the end of the line.
func readHex(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(goldenFolder, name+".hex"))
	if err != nil {
		t.Fatal(err)
	}
	var digits strings.Builder
	for line := range strings.Lines(string(text)) {
		before, _, _ := strings.Cut(line, "#")
		digits.WriteString(strings.Join(strings.Fields(before), ""))
	}
	b, err := hex.DecodeString(digits.String())
	if err != nil {
		t.Fatalf("%s.hex: %v", name, err)
	}
	return b
}

// writeHex writes encoded bytes one field per line; the table only says where the lines break.
func writeHex(t *testing.T, name string, encoded []byte) {
	t.Helper()
	var out strings.Builder
	fmt.Fprintf(&out, "# %s: %d bytes, protocol version %d\n", name, len(encoded), Version)
	rest := encoded
	for _, row := range readFields(t, name) {
		n := min(row.width, len(rest))
		fmt.Fprintf(&out, "%x # %d %s\n", rest[:n], row.offset, row.name)
		rest = rest[n:]
	}
	if len(rest) > 0 {
		fmt.Fprintf(&out, "%x # beyond the table\n", rest)
	}
	if err := os.WriteFile(filepath.Join(goldenFolder, name+".hex"), []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// checkGolden compares one encoded value with its file and hands the file's bytes to decode.
func checkGolden(t *testing.T, name string, encoded []byte, value any, decode func([]byte) (any, error)) {
	t.Run(name, func(t *testing.T) {
		if *update {
			writeHex(t, name, encoded)
		}
		golden := readHex(t, name)
		if !bytes.Equal(encoded, golden) {
			t.Fatalf("encoder wrote\n%x\ngolden\n%x", encoded, golden)
		}
		got, err := decode(golden)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, value) {
			t.Fatalf("decoded\n%+v\nwant\n%+v", got, value)
		}
	})
}

// proves W-1, W-2, W-4, W-13, W-16
func TestGoldenVectorsOfRequests(t *testing.T) {
	for name, r := range goldenRequests {
		checkGolden(t, name, AppendRequest(nil, r), r, func(b []byte) (any, error) {
			got, err := DecodeRequest(b)
			if err == nil {
				err = got.Check()
			}
			return got, err
		})
	}
}

// proves W-1, W-3, W-5, W-16
func TestGoldenVectorsOfReplies(t *testing.T) {
	for name, r := range goldenReplies {
		checkGolden(t, name, AppendReply(nil, r), r, func(b []byte) (any, error) { return DecodeReply(b) })
	}
}

// proves W-13, W-16
func TestGoldenVectorsOfNotifyBodies(t *testing.T) {
	for name, n := range goldenBodies {
		checkGolden(t, name, AppendNotifyBody(nil, n), n, func(b []byte) (any, error) {
			return DecodeNotifyBody(n.Request(OperationNotify, goldenEpoch), b)
		})
	}
}

// proves W-6, W-7, W-8, W-9, W-10, W-11, W-16
func TestGoldenVectorsOfDescriptors(t *testing.T) {
	for name, d := range goldenDescriptors {
		encoded := AppendDescriptor(nil, d)
		if len(encoded) != DescriptorSize(d) {
			t.Errorf("%s: %d bytes, DescriptorSize says %d", name, len(encoded), DescriptorSize(d))
		}
		checkGolden(t, name, encoded, d, func(b []byte) (any, error) {
			got, err := DecodeDescriptor(b)
			return &got, err
		})
	}
}

// Every .hex file is walked by its table. Nothing of the codec is used here.
//
// proves W-16
func TestGoldenIndependentCheck(t *testing.T) {
	tables, err := filepath.Glob(filepath.Join(goldenFolder, "*.fields"))
	if err != nil || len(tables) < 61 {
		t.Fatalf("%d tables, %v; want one for every frame", len(tables), err)
	}
	vectors, _ := filepath.Glob(filepath.Join(goldenFolder, "*.hex"))
	if len(vectors) != len(tables) {
		t.Errorf("%d vectors for %d tables", len(vectors), len(tables))
	}
	for _, path := range tables {
		name := strings.TrimSuffix(filepath.Base(path), ".fields")
		b := readHex(t, name)
		at := 0
		for _, row := range readFields(t, name) {
			if row.offset != at || at+row.width > len(b) {
				t.Fatalf("%s: %s is said to stand at %d, bytes so far %d of %d", name, row.name, row.offset, at, len(b))
			}
			if got := b[at : at+row.width]; !bytes.Equal(got, row.value) {
				t.Errorf("%s: %s at %d is %x, want %x", name, row.name, row.offset, got, row.value)
			}
			at += row.width
		}
		if at != len(b) {
			t.Errorf("%s: %d bytes, its table ends at %d", name, len(b), at)
		}
	}
}
