package netproto

import (
	"errors"
	"flag"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// seeded chooses a seed for rapid unless -rapid.seed gave one, and says how to replay.
func seeded(t *testing.T) {
	t.Helper()
	if flag.Lookup("rapid.seed").Value.String() == "0" {
		if err := flag.Set("rapid.seed", strconv.FormatInt(time.Now().UnixNano(), 10)); err != nil {
			t.Fatal(err)
		}
	}
	seed := flag.Lookup("rapid.seed").Value.String()
	t.Logf("SEED=%s replay: go test -run '^%s$' -rapid.seed=%s", seed, t.Name(), seed)
}

// proves W-4, W-5, W-6
func TestNumbersAndNamesAreThoseOfTheContract(t *testing.T) {
	for code := range 256 {
		op, s, p := Operation(code), Status(code), Permission(code)
		if known := code <= 7 || code == 22 || code >= 64 && code <= 70; op.Known() != known || strings.Contains(op.String(), "unknown") == known {
			t.Errorf("operation %d: known %v, %q", code, op.Known(), op)
		}
		if op.RDMA() != (code >= 4 && code <= 7 || code >= 64 && code <= 67) || op.Notifies() != (code == 3 || code == 22) {
			t.Errorf("operation %d: RDMA %v, notifies %v", code, op.RDMA(), op.Notifies())
		}
		if known := code <= 12; s.Known() != known || strings.HasPrefix(s.String(), "unknown status") == known {
			t.Errorf("status %d: known %v, %q", code, s.Known(), s)
		}
		if known := code <= 3; p.Known() != known || strings.Contains(p.String(), "unknown") == known {
			t.Errorf("permission %d: known %v, %q", code, p.Known(), p)
		}
	}
	for text, value := range map[string]fmt.Stringer{
		"describe": OperationDescribe, "TCP READ": OperationTCPRead, "sliced RDMA WRITE": OperationRDMAWriteSliced,
		"control-RPC notify": OperationControlNotify, "epoch mismatch": StatusEpochMismatch, "ready": StatusReady,
		"RDMA cache miss": StatusCacheMiss, "local-only": LocalOnly, "read-write": ReadWrite, "host": MemoryHost,
		"cuda": MemoryCUDA, "unknown memory type 2": MemoryType(2), "IPv6": FamilyIPv6, "unknown address family 0": AddressFamily(0),
	} {
		if value.String() != text {
			t.Errorf("%q, want %q", value, text)
		}
	}
}

// proves W-2, W-3, W-7, W-8, W-10, W-11
func TestSizesAndLimitsAreThoseOfTheContract(t *testing.T) {
	for name, c := range map[string][2]int{
		"request": {RequestSize, 52}, "reply": {ReplySize, 36}, "capabilities": {CapabilitiesSize, 44},
		"region": {RegionSize, 32}, "scope": {ScopeSize, 5}, "SHM head": {SHMHeadSize, 8}, "SHM record": {SHMRecordSize, 80},
		"MNNVL": {MNNVLSize, 24}, "HP-TCP": {HPTCPSize, 24}, "regions": {RegionsMax, 4096}, "payload": {PayloadBytesMax, 64 << 20},
		"notification": {NotificationBytesMax, 16 << 20}, "version": {Version, 19},
	} {
		if c[0] != c[1] {
			t.Errorf("%s: %d, want %d", name, c[0], c[1])
		}
	}
}

// proves W-6
func TestPermissionAllowsOnlyItsBits(t *testing.T) {
	for have := LocalOnly; have <= ReadWrite; have++ {
		if have.Allows(RemoteRead) != (have == RemoteRead || have == ReadWrite) ||
			have.Allows(RemoteWrite) != (have == RemoteWrite || have == ReadWrite) ||
			have.Allows(ReadWrite) != (have == ReadWrite) {
			t.Errorf("%v", have)
		}
	}
}

func TestEpochTextRoundTrip(t *testing.T) {
	text := "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf"
	for _, given := range []string{text, strings.ToUpper(text)} {
		if e, err := ParseEpoch(given); err != nil || e != goldenEpoch || e.String() != text {
			t.Errorf("%s: %v %v", given, e, err)
		}
	}
	for _, bad := range []string{"", text[1:], text + "0", text[:31] + "g", "0x" + text[2:]} {
		e, err := ParseEpoch(bad)
		var f *FrameError
		if !errors.As(err, &f) || !e.IsZero() {
			t.Errorf("%q: %v %v", bad, e, err)
		}
	}
	if goldenEpoch.IsZero() || !(Epoch{}).IsZero() {
		t.Error("IsZero")
	}
}

// proves W-12
func TestDescribeMayCarryAZeroEpoch(t *testing.T) {
	r, err := DecodeRequest(AppendRequest(nil, Request{}))
	if err != nil || !r.Epoch.IsZero() || r.Check() != nil {
		t.Fatalf("%+v %v %v", r, err, r.Check())
	}
}

// proves W-10
func TestSHMLeafNameHasFixedWidths(t *testing.T) {
	r := SHMRecord{PIDNamespace: 4026531836, CreatorPID: 70000, Nonce: rising(0x10)}
	if got, want := r.LeafName(), "orbite-shm-00000000effffffc-00011170-101112131415161718191a1b1c1d1e1f"; got != want {
		t.Fatalf("%s, want %s", got, want)
	}
}

// proves W-9
func TestTrailerBitsFollowTheTrailers(t *testing.T) {
	d := Descriptor{Capabilities: Capabilities{Bits: CapabilityTCP | CapabilitySHM}, MNNVL: &MNNVL{}}
	got, err := DecodeDescriptor(AppendDescriptor(nil, &d))
	if err != nil || got.Capabilities.Bits != CapabilityTCP|CapabilityMNNVL || got.SHM != nil || got.MNNVL == nil {
		t.Fatalf("%+v %v", got, err)
	}
	if d.Capabilities.Bits != CapabilityTCP|CapabilitySHM {
		t.Fatal("encoding changed the value")
	}
}

// proves W-7
func TestLargestDescriptorRoundTrips(t *testing.T) {
	d := Descriptor{SHM: &SHM{}, MNNVL: &MNNVL{}, HPTCP: &HPTCPEndpoint{FamilyIPv4, 1, 1, 1, 1},
		RDMA: &RDMAPaths{PairsMax: 1, SlicesMax: 1}}
	for nic := range uint8(PathsMax) {
		d.RDMA.Paths = append(d.RDMA.Paths, Path{NIC: nic, Port: 1, Link: LinkEthernet, PD: 1, Name: "rxe0"})
	}
	for id := uint64(1); id <= RegionsMax; id++ {
		d.Regions = append(d.Regions, Region{ID: id, Length: 1, Permission: ReadWrite, Flags: RegionScoped})
		d.SHM.Records = append(d.SHM.Records, SHMRecord{Region: id, MappedSize: 1, CreatorPID: 1})
	}
	b := AppendDescriptor(nil, &d)
	if len(b) != DescriptorSizeMax || DescriptorSize(&d) != DescriptorSizeMax {
		t.Fatalf("%d bytes, DescriptorSizeMax %d", len(b), DescriptorSizeMax)
	}
	if got, err := DecodeDescriptor(b); err != nil || !reflect.DeepEqual(got.Regions, d.Regions) {
		t.Fatal(err)
	}
	d.Regions = append(d.Regions, Region{ID: RegionsMax + 1, Length: 1, Permission: ReadWrite})
	if s := StatusOf(d.Check()); s != StatusExhausted {
		t.Fatalf("one region too many: %v", s)
	}
}

// Descriptors made of values near the border of what is allowed: Check and DecodeDescriptor agree about
// each, and what is accepted comes back as it was.
//
// proves W-15
func TestCheckAndDecodeAgreeAboutEveryDescriptor(t *testing.T) {
	seeded(t)
	accepted := 0
	rapid.Check(t, func(t *rapid.T) {
		d := drawDescriptor(t)
		b := AppendDescriptor(nil, &d)
		if len(b) != DescriptorSize(&d) {
			t.Fatalf("%d bytes, DescriptorSize %d", len(b), DescriptorSize(&d))
		}
		got, err := DecodeDescriptor(b)
		if check := d.Check(); (check == nil) != (err == nil) {
			t.Fatalf("Check %v, DecodeDescriptor %v", check, err)
		}
		if err != nil {
			return
		}
		accepted++
		d.Capabilities.Bits = got.Capabilities.Bits // the trailer bits follow the trailers
		if !reflect.DeepEqual(got, d) {
			t.Fatalf("decoded %+v\nwant %+v", got, d)
		}
	})
	if accepted == 0 {
		t.Error("no descriptor was accepted: the generator is too wild")
	}
}

func drawDescriptor(t *rapid.T) Descriptor {
	d := Descriptor{
		Capabilities: Capabilities{
			Bits:             Capability(rapid.SampledFrom([]uint64{0x19, 0x1b, 0x9b, 0x99, 0x100}).Draw(t, "bits")),
			TransferBytesMax: rapid.Uint64().Draw(t, "transfer"),
		},
		Regions: []Region{},
	}
	if rapid.Bool().Draw(t, "mnnvl?") {
		d.MNNVL = &MNNVL{Handle: MNNVLHandle(rapid.IntRange(0, 2).Draw(t, "kind")), EGM: rapid.Bool().Draw(t, "egm")}
	}
	if rapid.Bool().Draw(t, "hptcp?") {
		small := rapid.Uint64Range(0, 2)
		d.HPTCP = &HPTCPEndpoint{FamilyIPv4, uint16(small.Draw(t, "port")), 1, small.Draw(t, "chunk"), 2}
	}
	if rapid.Bool().Draw(t, "rdma?") {
		d.RDMA = &RDMAPaths{PairsMax: uint8(rapid.IntRange(0, 2).Draw(t, "pairs")), SlicesMax: 64, Paths: []Path{}}
		for range rapid.IntRange(0, 2).Draw(t, "paths") {
			nic := uint8(rapid.IntRange(0, 64).Draw(t, "nic"))
			d.RDMA.Paths = append(d.RDMA.Paths, Path{NIC: nic, Port: 1, Link: LinkEthernet, PD: 1, Name: "rxe0"})
		}
	}
	id := uint64(0)
	for range rapid.IntRange(0, 4).Draw(t, "regions") {
		id += rapid.SampledFrom([]uint64{1, 1, 1, 1, 7, 0}).Draw(t, "step")
		d.Regions = append(d.Regions, drawRegion(t, id))
	}
	if rapid.Bool().Draw(t, "shm?") {
		d.SHM = drawSHM(t, d.Regions)
	}
	return d
}

func drawRegion(t *rapid.T, id uint64) Region {
	r := Region{
		ID:         id,
		Base:       rapid.SampledFrom([]uint64{0, 4096, 1 << 63, 1<<64 - 2}).Draw(t, "base"),
		Length:     rapid.SampledFrom([]uint64{1, 1, 4096, 0}).Draw(t, "length"),
		Permission: Permission(rapid.SampledFrom([]uint8{1, 2, 3, 3, 0, 4}).Draw(t, "permission")),
		Memory:     MemoryType(rapid.SampledFrom([]uint8{0, 1, 1, 2}).Draw(t, "memory")),
		IPCExport:  rapid.Bool().Draw(t, "consent"),
		Flags:      RegionFlags(rapid.SampledFrom([]uint8{0, 0, 0x80, 0x80, 1, 6, 0x86, 8}).Draw(t, "flags")),
		Location:   MNNVLLocation(rapid.SampledFrom([]uint32{0, 0, 0, 1, 2, 1 << 31, 1<<31 | 3}).Draw(t, "location")),
	}
	if r.Flags&RegionScoped != 0 {
		r.Scope.Transport = TransportID(rapid.SampledFrom([]uint8{0, 1, 12, 13}).Draw(t, "transport"))
		r.Scope.Ordinal = rapid.SampledFrom([]uint32{0, 5, OrdinalUnknown}).Draw(t, "ordinal")
	}
	return r
}

func drawSHM(t *rapid.T, regions []Region) *SHM {
	s := &SHM{Backend: SHMBackend(rapid.SampledFrom([]uint8{0, 1, 1, 2}).Draw(t, "backend")), Records: []SHMRecord{}}
	for _, r := range regions {
		if rapid.Bool().Draw(t, "record?") {
			s.Records = append(s.Records, SHMRecord{
				Region:     r.ID + rapid.SampledFrom([]uint64{0, 0, 0, 0, 1}).Draw(t, "shift"),
				Offset:     rapid.SampledFrom([]uint64{0, 0, 1, 1<<64 - 1}).Draw(t, "offset"),
				MappedSize: rapid.SampledFrom([]uint64{8192, 8192, 1}).Draw(t, "mapped"),
				CreatorPID: rapid.SampledFrom([]uint32{1, 1, 0}).Draw(t, "pid"),
			})
		}
	}
	return s
}

// One flipped byte in any frame is refused or means another value; nothing is ignored.
//
// proves W-15
func TestNoByteOfAFrameIsIgnored(t *testing.T) {
	check := func(name string, recode func([]byte) ([]byte, error)) {
		whole := readHex(t, name)
		for at := range whole {
			for _, flip := range []byte{0x01, 0x80, 0xff} {
				b := append([]byte(nil), whole...)
				b[at] ^= flip
				if again, err := recode(b); err == nil && string(again) != string(b) {
					t.Errorf("%s: byte %d ^ %#x is lost", name, at, flip)
				}
			}
		}
	}
	for name := range goldenRequests {
		check(name, recodeRequest)
	}
	for name := range goldenReplies {
		check(name, recodeReply)
	}
	for name := range goldenDescriptors {
		check(name, recodeDescriptor)
	}
	for name, n := range goldenBodies {
		r := n.Request(OperationNotify, goldenEpoch)
		check(name, func(b []byte) ([]byte, error) { return recodeNotifyBody(r, b) })
	}
}

func recodeRequest(b []byte) ([]byte, error) {
	r, err := DecodeRequest(b)
	return AppendRequest(nil, r), err
}

func recodeReply(b []byte) ([]byte, error) {
	r, err := DecodeReply(b)
	return AppendReply(nil, r), err
}

func recodeDescriptor(b []byte) ([]byte, error) {
	d, err := DecodeDescriptor(b)
	return AppendDescriptor(nil, &d), err
}

func recodeNotifyBody(r Request, b []byte) ([]byte, error) {
	n, err := DecodeNotifyBody(r, b)
	return AppendNotifyBody(nil, n), err
}

func TestFixedFramesDoNotAllocate(t *testing.T) {
	buffer := make([]byte, 0, RequestSize)
	request := Request{OperationTCPRead, goldenEpoch, 1, 2, 3}
	reply := Reply{StatusSuccess, goldenEpoch, 3}
	var reader Reader
	if n := testing.AllocsPerRun(100, func() {
		b := AppendRequest(buffer, request)
		reader.Begin(RequestSize)
		reader.Feed(b)
		got, err := reader.Request()
		if err != nil || got != request || got.Check() != nil || reader.Check() != nil {
			t.Fatal(got, err)
		}
		b = AppendReply(buffer, reply)
		if got, err := DecodeReply(b); err != nil || got != reply {
			t.Fatal(got, err)
		}
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
	d := goldenDescriptors["descriptor-all"]
	large := make([]byte, 0, DescriptorSize(d))
	if n := testing.AllocsPerRun(100, func() { AppendDescriptor(large, d) }); n != 0 {
		t.Fatalf("AppendDescriptor into room: %v allocations", n)
	}
}

func BenchmarkRequestRoundTrip(b *testing.B) {
	buffer := make([]byte, 0, RequestSize)
	request := Request{OperationTCPRead, goldenEpoch, 1, 2, 3}
	for b.Loop() {
		got, _ := DecodeRequest(AppendRequest(buffer, request))
		if got.Check() != nil {
			b.Fatal(got)
		}
	}
}
