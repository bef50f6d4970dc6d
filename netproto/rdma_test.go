package netproto

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var (
	goldenGrantRequests = map[string]*GrantRequest{
		"grant-request": {ProfileWindow, rising(0xb0), 1,
			[]GrantConnection{{rising(0xc0), rising(0xd0)}}, []GrantSlice{{goldenOffset, 1<<16 + 1, 0, 3}}},
		"grant-request-sliced": {ProfileWindow, rising(0xb0), goldenID,
			[]GrantConnection{{rising(0xc0), rising(0xd0)}, {rising(0x20), rising(0x30)}},
			[]GrantSlice{{4096, 64 << 10, 0, 0}, {4096 + 64<<10, 65 << 10, 1, 31}}},
	}
	goldenGranted = map[string]Request{
		"grant-request":        {OperationRDMARead, goldenEpoch, 7, goldenOffset, 1<<16 + 1},
		"grant-request-sliced": {OperationRDMAWriteSliced, goldenEpoch, 7, 4096, 129 << 10},
	}
	goldenGrants = []Grant{
		{9, 0x7f0011223000, 64 << 10, 0x01020304, 5, 0, 0},
		{10, 0x7f0011233000, 65 << 10, 0xfffefdfc, 6, 1, 31},
	}
	goldenParent      = Parent{rising(0xb0), goldenID, 2}
	goldenDisconnect  = Disconnect{rising(0xb0), rising(0xc0), rising(0xd0)}
	goldenConnections = map[string]Connection{
		"connection-question": {Epoch: rising(0xb0), Incarnation: rising(0xc0), NIC: 1, PeerNIC: 2, Port: 1, Link: LinkEthernet,
			Direction: OperationRDMARead, Profile: ProfileWindow, Domain: 0x1122334455667788, PeerDomain: 0x99aabbccddeeff00,
			GID: [16]byte{0: 0xfd, 1: 0x77, 15: 1}, MTU: 1024, Depth: 16, ReadsOutstanding: 16,
			Pairs: []PairAddress{{17, 0xffffff}, {0xabcdef, 0}}},
		"connection-answer": {Epoch: rising(0xb0), Incarnation: rising(0xd0), Peer: rising(0xc0), NIC: 2, PeerNIC: 1, Port: 1,
			Link: LinkInfiniBand, Direction: OperationRDMAWrite, Profile: ProfileRegion, Domain: 7, PeerDomain: 8,
			GID: [16]byte{10: 0xff, 11: 0xff, 12: 10, 13: 77, 15: 2}, LID: 65534, MTU: 4096, Depth: 65535, ReadsOutstanding: 1,
			Pairs: []PairAddress{{1, 2}}},
	}
	goldenBinding = Binding{ProfileWindow, OperationRDMAWrite, rising(0xb0), goldenEpoch, rising(0xc0), rising(0xd0), goldenID, 10,
		7, 4096 + 64<<10, 65 << 10, 0x7f0011233000, 0xfffefdfc, 1, 2, 1, 63, 31, 0xabcdef, 17}
	goldenPaths = &RDMAPaths{HostDirect, 6, 64, 0, []Path{
		{0, 1, PathActive, LinkEthernet, 0, 0x0011223344556677, 0x1122334455667788, [16]byte{0: 0xfd, 1: 0x77, 15: 1}, "mlx5_0"},
		{63, 2, PathPaused, LinkInfiniBand, NUMAUnknown, 0, 1, [16]byte{10: 0xff, 11: 0xff, 12: 10, 13: 77, 15: 2}, "mlx5_bond_0123456789abcd"},
	}}
)

// recodeRDMA decodes a frame of this file by the name of its golden vector and encodes it again.
func recodeRDMA(name string, b []byte) (again []byte, value any, err error) {
	switch name {
	case "grants":
		var grants []Grant
		grants, err = DecodeGrants(nil, goldenGrantRequests["grant-request-sliced"], b)
		return AppendGrants(nil, grants), grants, err
	case "parent":
		p, err := DecodeParent(b)
		return AppendParent(nil, p), p, err
	case "disconnect":
		d, err := DecodeDisconnect(b)
		return AppendDisconnect(nil, d), d, err
	case "binding":
		x, err := DecodeBinding(b)
		out := make([]byte, BindingSize)
		PutBinding(out, &x)
		return out, x, err
	}
	if _, ok := goldenConnections[name]; ok {
		c, err := DecodeConnection(b)
		return AppendConnection(nil, &c), c, err
	}
	g := new(GrantRequest)
	err = DecodeGrantRequest(g, goldenGranted[name], b)
	return AppendGrantRequest(nil, g), g, err
}

// goldenRDMA is every value of this file that has a vector of its own.
func goldenRDMA() map[string]any {
	all := map[string]any{"grants": goldenGrants, "parent": goldenParent, "disconnect": goldenDisconnect, "binding": goldenBinding}
	for name, c := range goldenConnections {
		all[name] = c
	}
	for name, g := range goldenGrantRequests {
		all[name] = g
	}
	return all
}

func encodeRDMA(value any) []byte {
	switch v := value.(type) {
	case []Grant:
		return AppendGrants(nil, v)
	case Parent:
		return AppendParent(nil, v)
	case Disconnect:
		return AppendDisconnect(nil, v)
	case Binding:
		b := bytes.Repeat([]byte{0xff}, BindingSize)
		PutBinding(b, &v)
		return b
	case Connection:
		return AppendConnection(nil, &v)
	}
	return AppendGrantRequest(nil, value.(*GrantRequest))
}

// proves, W-16
func TestGoldenVectorsOfRDMAFrames(t *testing.T) {
	for name, value := range goldenRDMA() {
		checkGolden(t, name, encodeRDMA(value), value, func(b []byte) (any, error) {
			_, got, err := recodeRDMA(name, b)
			return got, err
		})
	}
	if n := len(encodeRDMA(goldenBinding)); n != 141 {
		t.Errorf("a binding has %d bytes, want 141", n)
	}
}

// proves, W-15
func TestRDMAFramesRefuseWrongFields(t *testing.T) {
	const zero16 = "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	const ff8 = "\xff\xff\xff\xff\xff\xff\xff\xff"
	byName := map[string][]patch{
		"grant-request": {
			{"", 0, "\x00\x00", "slices", -1, StatusProtocolError},
			{"", 0, "\x00\x41", "slices", -1, StatusProtocolError},
			{"", 0, "\x00\x02", "size", -1, StatusProtocolError},
			{"", 2, "\x00", "connections", -1, StatusProtocolError},
			{"", 2, "\x02", "connections", -1, StatusProtocolError},
			{"", 3, "\x03", "profile", -1, StatusProtocolError},
			{"", 7, "\x01", "reserved bytes", -1, StatusProtocolError},
			{"", 8, zero16, "requester epoch", -1, StatusProtocolError},
			{"", 24, "\x00\x00\x00\x00\x00\x00\x00\x00", "parent generation", -1, StatusProtocolError},
			{"", 32, zero16, "incarnation", 0, StatusProtocolError},
			{"", 48, zero16, "incarnation", 0, StatusProtocolError},
			{"", 64, ff8, "slice offset", 0, StatusInvalidRange},
			{"", 72, ff8, "slice length", 0, StatusInvalidRange},
			{"", 72, "\x00\x00\x00\x00\x00\x00\x00\x00", "slice length", 0, StatusInvalidRange},
			{"", 79, "\x00", "slices", -1, StatusInvalidRange}, // one byte short of the whole
			{"", 80, "\x01", "slice connection", 0, StatusProtocolError},
			{"", 81, "\x20", "slice pair", 0, StatusProtocolError},
			{"", 87, "\x01", "reserved slice bytes", 0, StatusProtocolError},
		},
		"grant-request-sliced": {
			{"", 126, "\x01", "slice offset", 1, StatusInvalidRange}, // a gap
			{"", 127, "\xff", "slice offset", 1, StatusInvalidRange},
			{"", 136, "\x02", "slice connection", 1, StatusProtocolError},
		},
		"grants": {
			{"", 0, "\x00\x00\x00\x00\x00\x00\x00\x00", "grant generation", 0, StatusProtocolError},
			{"", 8, ff8, "length", 0, StatusInvalidRange},
			{"", 23, "\x01", "length", 0, StatusInvalidRange},
			{"", 32, "\x01", "connection and pair", 0, StatusProtocolError},
			{"", 73, "\x1e", "connection and pair", 1, StatusProtocolError},
			{"", 79, "\x01", "reserved bytes", 1, StatusProtocolError},
		},
		"parent": {
			{"", 0, zero16, "requester epoch", -1, StatusProtocolError},
			{"", 16, "\x00\x00\x00\x00\x00\x00\x00\x00", "parent generation", -1, StatusProtocolError},
			{"", 24, "\x00\x00", "slices", -1, StatusProtocolError},
			{"", 24, "\x00\x41", "slices", -1, StatusProtocolError},
			{"", 31, "\x01", "reserved bytes", -1, StatusProtocolError},
		},
		"disconnect": {
			{"", 0, zero16, "life", -1, StatusProtocolError},
			{"", 16, zero16, "life", -1, StatusProtocolError},
			{"", 32, zero16, "life", -1, StatusProtocolError},
		},
		"connection-question": {
			{"", 0, zero16, "life", -1, StatusProtocolError},
			{"", 16, zero16, "life", -1, StatusProtocolError},
			{"", 48, "\x40", "NIC", -1, StatusProtocolError},
			{"", 49, "\xff", "NIC", -1, StatusProtocolError},
			{"", 50, "\x00", "port", -1, StatusProtocolError},
			{"", 51, "\x03", "link layer", -1, StatusProtocolError},
			{"", 52, "\x06", "direction", -1, StatusProtocolError},
			{"", 53, "\x00", "profile", -1, StatusProtocolError},
			{"", 54, "\x01", "size", -1, StatusProtocolError},
			{"", 55, "\x01", "reserved bytes", -1, StatusProtocolError},
			{"", 56, "\x00\x00\x00\x00\x00\x00\x00\x00", "domain", -1, StatusProtocolError},
			{"", 64, "\x00\x00\x00\x00\x00\x00\x00\x00", "domain", -1, StatusProtocolError},
			{"", 90, "\x05\xdc", "MTU", -1, StatusProtocolError},
			{"", 90, "\x20\x00", "MTU", -1, StatusProtocolError},
			{"", 92, "\x00\x00", "depth", -1, StatusProtocolError},
			{"", 94, "\x00", "depth", -1, StatusProtocolError},
			{"", 95, "\x01", "reserved bytes", -1, StatusProtocolError},
			{"", 111, "\x01", "reserved bytes", -1, StatusProtocolError},
			{"", 112, "\x01", "pair", 0, StatusProtocolError},
			{"", 124, "\x01", "pair", 1, StatusProtocolError},
		},
		"binding": {
			{"", 0, "o", "magic", -1, StatusProtocolError},
			{"", 5, "\x14", "version", -1, StatusProtocolError},
			{"", 6, "\x03", "profile", -1, StatusProtocolError},
			{"", 7, "\x07", "direction", -1, StatusProtocolError},
			{"", 8, zero16, "life", -1, StatusProtocolError},
			{"", 24, zero16, "life", -1, StatusProtocolError},
			{"", 40, zero16, "life", -1, StatusProtocolError},
			{"", 56, zero16, "life", -1, StatusProtocolError},
			{"", 72, "\x00\x00\x00\x00\x00\x00\x00\x00", "generation or region", -1, StatusProtocolError},
			{"", 80, "\x00\x00\x00\x00\x00\x00\x00\x00", "generation or region", -1, StatusProtocolError},
			{"", 88, "\x00\x00\x00\x00\x00\x00\x00\x00", "generation or region", -1, StatusProtocolError},
			{"", 96, ff8, "length", -1, StatusInvalidRange},
			{"", 104, ff8, "length", -1, StatusInvalidRange},
			{"", 104, "\x00\x00\x00\x00\x00\x00\x00\x00", "length", -1, StatusInvalidRange},
			{"", 112, ff8, "length", -1, StatusInvalidRange},
			{"", 125, "\x02", "slice", -1, StatusProtocolError},
			{"", 127, "\x41", "slice", -1, StatusProtocolError},
			{"", 128, "\x40", "NIC or pair", -1, StatusProtocolError},
			{"", 129, "\x40", "NIC or pair", -1, StatusProtocolError},
			{"", 130, "\x20", "NIC or pair", -1, StatusProtocolError},
			{"", 131, "\x01", "queue pair number", -1, StatusProtocolError},
			{"", 135, "\x01", "queue pair number", -1, StatusProtocolError},
			{"", 139, "\x01", "reserved bytes", -1, StatusProtocolError},
			{"", 140, "\x01", "reserved bytes", -1, StatusProtocolError},
		},
	}
	for name, patches := range byName {
		for i := range patches {
			patches[i].vector = name
		}
		checkPatches(t, patches, func(b []byte) error { _, _, err := recodeRDMA(name, b); return err })
	}
}

// proves R-4, W-9, W-15
func TestRDMATrailerRefusesWrongFields(t *testing.T) {

	start := len(readHex(t, "descriptor-regions")) - RDMAHeadSize - 2*RDMAPathSize
	second := start + RDMAHeadSize + RDMAPathSize
	checkPatches(t, []patch{
		{"descriptor-regions", start, "\x00\x41", "RDMA path count", -1, StatusExhausted},
		{"descriptor-regions", start, "\x00\x03", "size", -1, StatusProtocolError},
		{"descriptor-regions", start, "\x00\x01", "size", -1, StatusProtocolError},
		{"descriptor-regions", start + 2, "\x02", "RDMA host policy", -1, StatusProtocolError},
		{"descriptor-regions", start + 3, "\x00", "RDMA pairs", -1, StatusProtocolError},
		{"descriptor-regions", start + 3, "\x21", "RDMA pairs", -1, StatusProtocolError},
		{"descriptor-regions", start + 4, "\x00\x00", "RDMA slices", -1, StatusProtocolError},
		{"descriptor-regions", start + 4, "\x00\x41", "RDMA slices", -1, StatusProtocolError},
		{"descriptor-regions", start + 6, "\x08\x01", "RDMA staged part", -1, StatusProtocolError},
		{"descriptor-regions", start + 6, "\xfc\x00", "RDMA staged part", -1, StatusProtocolError},
		{"descriptor-regions", second, "\x00", "RDMA NIC", 1, StatusProtocolError},
		{"descriptor-regions", second, "\x40", "RDMA NIC", 1, StatusProtocolError},
		{"descriptor-regions", second + 1, "\x00", "RDMA port", 1, StatusProtocolError},
		{"descriptor-regions", second + 2, "\x02", "RDMA path state", 1, StatusProtocolError},
		{"descriptor-regions", second + 3, "\x00", "RDMA link layer", 1, StatusProtocolError},
		{"descriptor-regions", second + 16, "\x00\x00\x00\x00\x00\x00\x00\x00", "RDMA domain", 1, StatusProtocolError},
		{"descriptor-regions", second + 40, "\xff", "RDMA path name", 1, StatusProtocolError},
		{"descriptor-regions", second + 41, "\x00", "RDMA path name", 1, StatusProtocolError},
	}, decodeDescriptorError)
	for _, name := range []string{"", strings.Repeat("x", PathNameSize+1), "a\x00b", "\xff"} {
		d := *goldenDescriptors["descriptor-regions"]
		paths := *goldenPaths
		paths.Paths = []Path{goldenPaths.Paths[0]}
		paths.Paths[0].Name = name
		d.RDMA = &paths
		if d.Check() == nil {
			t.Errorf("a path named %q passed", name)
		}
	}
}

// proves, W-15
func TestEveryTruncationOfAnRDMAFrameIsRefused(t *testing.T) {
	for name := range goldenRDMA() {
		whole := readHex(t, name)
		for n := range whole {
			if _, _, err := recodeRDMA(name, whole[:n:n]); err == nil {
				t.Errorf("%s: accepted with %d of %d bytes", name, n, len(whole))
			}
		}
		if _, _, err := recodeRDMA(name, append(whole, 0)); err == nil {
			t.Errorf("%s: accepted with a byte too many", name)
		}
	}
}

// A grant request is accepted exactly when its slices cover the request in order, without gap, overlap or
// empty slice.
//
// proves R-9
func TestSlicesCoverTheRequestExactlyAndInOrder(t *testing.T) {
	seeded(t)
	rapid.Check(t, func(t *rapid.T) {
		lengths := rapid.SliceOfN(rapid.Uint64Range(1, 1<<20), 1, SlicesMax).Draw(t, "lengths")
		offset := rapid.Uint64Range(0, 1<<40).Draw(t, "offset")
		g := GrantRequest{ProfileWindow, rising(1), 1, []GrantConnection{{rising(2), rising(3)}}, nil}
		r := Request{OperationRDMAReadSliced, goldenEpoch, 1, offset, 0}
		for _, n := range lengths {
			g.Slices = append(g.Slices, GrantSlice{Offset: offset + r.Length, Length: n})
			r.Length += n
		}
		if err := g.Check(r); err != nil {
			t.Fatal(err)
		}
		i := rapid.IntRange(0, len(lengths)-1).Draw(t, "slice")
		damage := rapid.SampledFrom([]func(*GrantSlice){
			func(s *GrantSlice) { s.Offset++ }, func(s *GrantSlice) { s.Offset-- }, func(s *GrantSlice) { s.Length++ },
			func(s *GrantSlice) { s.Length-- }, func(s *GrantSlice) { s.Length = 0 }, func(s *GrantSlice) { s.Length = 1<<64 - 1 },
		}).Draw(t, "damage")
		damage(&g.Slices[i])
		if g.Check(r) == nil {
			t.Fatalf("slice %d damaged to %+v passed", i, g.Slices[i])
		}
	})
}

// proves W-4, W-15, R-14
func TestWhatStandsBehindARequestIsKnownBeforeItIsRead(t *testing.T) {
	for _, c := range []struct {
		op         Operation
		length     uint64
		head, body int
	}{
		{OperationTCPRead, 100, 0, 0}, {OperationDescribe, 0, 0, 0}, {OperationNotify, 0, 0, 0},
		{OperationRDMADone, ParentSize, ParentSize, ParentSize}, {OperationRDMAAbandon, ParentSize, ParentSize, ParentSize},
		{OperationRDMADisconnect, DisconnectSize, DisconnectSize, DisconnectSize},
		{OperationRDMAConnect, ConnectionHeadSize + 16, ConnectionHeadSize + 16, ConnectionHeadSize + 16},
	} {
		r := Request{Operation: c.op, Length: c.length}
		if n, err := r.BodySize(nil); r.BodyHeadSize() != c.head || n != c.body || err != nil {
			t.Errorf("%v: head %d, body %d, %v", c.op, r.BodyHeadSize(), n, err)
		}
	}
	for name, r := range goldenGranted {
		b := readHex(t, name)
		if n, err := r.BodySize(b[:r.BodyHeadSize()]); n != len(b) || err != nil {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
	if GrantRequestSizeMax < GrantHeadSize+SlicesMax*(GrantConnectionSize+GrantSliceSize) {
		t.Error("a largest body does not fit its bound")
	}
	for _, c := range []struct {
		op     Operation
		region uint64
		length uint64
	}{
		{OperationRDMADone, 1, ParentSize}, {OperationRDMADone, 0, ParentSize + 1}, {OperationRDMAAbandon, 0, 0},
		{OperationRDMADisconnect, 0, DisconnectSize - 1}, {OperationRDMAConnect, 0, ConnectionHeadSize},
		{OperationRDMAConnect, 0, ConnectionSizeMax + 1}, {OperationRDMAConnect, 0, 1 << 63},
	} {
		if err := (Request{Operation: c.op, Region: c.region, Length: c.length}).Check(); StatusOf(err) != StatusProtocolError {
			t.Errorf("%v of region %d with %d: %v", c.op, c.region, c.length, err)
		}
	}
}

// proves W-16, R-13
func FuzzBinding(f *testing.F) { fuzzRDMA(f, "binding") }

// proves W-16
func FuzzConnection(f *testing.F) { fuzzRDMA(f, "connection-question") }

// proves W-16
func FuzzGrantRequest(f *testing.F) { fuzzRDMA(f, "grant-request-sliced") }

// proves W-16
func FuzzGrants(f *testing.F) { fuzzRDMA(f, "grants") }

func fuzzRDMA(f *testing.F, name string) {
	f.Add(readHex(f, name))
	if name == "connection-question" {
		f.Add(readHex(f, "connection-answer"))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		again, _, err := recodeRDMA(name, b)
		checkOutcome(t, b, again, err)
	})
}

// A hot exchange allocates nothing: the requester and the source reuse what they decode into.
//
// proves L-6, R-14
func TestGrantsAndBindingsAreCodedWithoutAllocation(t *testing.T) {
	ask, granted := readHex(t, "grant-request-sliced"), readHex(t, "grants")
	r := goldenGranted["grant-request-sliced"]
	var g GrantRequest
	var grants []Grant
	out, message := make([]byte, 0, GrantRequestSizeMax), make([]byte, BindingSize)
	n := testing.AllocsPerRun(100, func() {
		err := DecodeGrantRequest(&g, r, ask)
		var err2, err3 error
		grants, err2 = DecodeGrants(grants[:0], &g, granted)
		out = AppendGrantRequest(out[:0], &g)
		PutBinding(message, &goldenBinding)
		_, err3 = DecodeBinding(message)
		if err := errors.Join(err, err2, err3); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 || !reflect.DeepEqual(grants, goldenGrants) || !bytes.Equal(out, ask) {
		t.Errorf("%v allocations", n)
	}
}

// A staged part is carried with its 11 leading digits; what is carried comes back, and nothing stands for it twice.
//
// proves W-15, C-4
func TestAStagedPartIsCarriedExactlyOrRoundedDown(t *testing.T) {
	for _, c := range []struct{ n, want uint64 }{
		{0, 0}, {1, 1}, {2047, 2047}, {2048, 2048}, {2049, 2048}, {4097, 4096}, {3<<20 + 1, 3 << 20}, {1 << 20, 1 << 20}, {StagedPartMax, StagedPartMax}, {1 << 62, StagedPartMax},
	} {
		if got := PartFloor(c.n); got != c.want || partOf(partCode(got)) != got {
			t.Errorf("%d: %d, carried as %d, want %d", c.n, got, partOf(partCode(got)), c.want)
		}
	}
	seen := map[uint64]uint16{}
	for code := range 1 << 16 {
		if n := partOf(uint16(code)); partCode(n) == uint16(code) {
			if other, twice := seen[n]; twice {
				t.Fatalf("%d has the codes %#x and %#x", n, other, code)
			}
			seen[n] = uint16(code)
		}
	}
}
