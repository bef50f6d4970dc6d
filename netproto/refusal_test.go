package netproto

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
)

// patch is one wrong field: bytes written over a golden vector.
type patch struct {
	vector string
	at     int
	bytes  string
	field  string // of the refusal
	index  int
	status Status
}

// checkPatches expects every patched vector to be refused as its row says.
func checkPatches(t *testing.T, patches []patch, decode func([]byte) error) {
	t.Helper()
	for _, p := range patches {
		b := readHex(t, p.vector)
		if bytes.Equal(b[p.at:p.at+len(p.bytes)], []byte(p.bytes)) {
			t.Errorf("%s at %d: the patch changes nothing", p.vector, p.at)
		}
		copy(b[p.at:], p.bytes)
		err := decode(b)
		var e *FrameError
		if !errors.As(err, &e) {
			t.Errorf("%s at %d: %v, want %q refused", p.vector, p.at, err, p.field)
			continue
		}
		if e.Field != p.field || e.Index != p.index || e.Status != p.status || StatusOf(err) != p.status {
			t.Errorf("%s at %d: field %q index %d status %v, want %q %d %v", p.vector, p.at, e.Field, e.Index, e.Status, p.field, p.index, p.status)
		}
	}
}

func decodeAndCheckRequest(b []byte) error {
	r, err := DecodeRequest(b)
	if err != nil {
		if r != (Request{}) {
			return errors.New("a refused request returned a value")
		}
		return err
	}
	return r.Check()
}

// proves W-1, W-12, W-13, W-15
func TestRequestRefusesWrongFields(t *testing.T) {
	const ff8 = "\xff\xff\xff\xff\xff\xff\xff\xff"
	checkPatches(t, []patch{
		{"request-tcp-read", 0, "o", "magic", -1, StatusProtocolError},
		{"request-tcp-read", 7, "\x01", "magic", -1, StatusProtocolError},
		{"request-tcp-read", 8, "\x01", "version", -1, StatusProtocolError},
		{"request-tcp-read", 9, "\x12", "version", -1, StatusProtocolError},
		{"request-tcp-read", 11, "\x01", "reserved byte", -1, StatusProtocolError},
		{"request-tcp-read", 10, "\x08", "operation", -1, StatusProtocolError},
		{"request-tcp-read", 10, "\x15", "operation", -1, StatusProtocolError},
		{"request-tcp-read", 10, "\x17", "operation", -1, StatusProtocolError},
		{"request-tcp-read", 10, "\x3f", "operation", -1, StatusProtocolError},
		{"request-tcp-read", 10, "\x47", "operation", -1, StatusProtocolError},
		{"request-tcp-read", 10, "\xff", "operation", -1, StatusProtocolError},
		{"request-describe", 35, "\x01", "region", -1, StatusProtocolError},
		{"request-describe", 36, "\x80", "offset", -1, StatusProtocolError},
		{"request-describe", 51, "\x01", "length", -1, StatusProtocolError},
		{"request-notify", 28, "\x01", "region", -1, StatusProtocolError},
		{"request-control-notify", 35, "\x01", "region", -1, StatusProtocolError},
		{"request-notify", 36, ff8, "message length", -1, StatusInvalidRange},
		{"request-notify", 36, "\x00\x00\x00\x00\x00\xff\xff\xed", "name and message length", -1, StatusExhausted},
		{"request-tcp-read", 35, "\x00", "region", -1, StatusUnknownRegion},
		{"request-tcp-read", 36, ff8, "length", -1, StatusInvalidRange},
		{"request-rdma-write", 44, ff8, "length", -1, StatusInvalidRange},
		{"request-tcp-write", 51, "\x01", "length", -1, StatusExhausted},
	}, decodeAndCheckRequest)
}

// proves W-1, W-15
func TestReplyRefusesWrongFields(t *testing.T) {
	checkPatches(t, []patch{
		{"reply-success", 3, "\x00", "magic", -1, StatusProtocolError},
		{"reply-success", 9, "\x14", "version", -1, StatusProtocolError},
		{"reply-success", 11, "\x80", "reserved byte", -1, StatusProtocolError},
		{"reply-ready", 10, "\x0d", "status", -1, StatusProtocolError},
		{"reply-ready", 10, "\xff", "status", -1, StatusProtocolError},
		{"reply-success", 10, "\x01", "payload length", -1, StatusProtocolError},
		{"reply-cache-miss", 35, "\x01", "payload length", -1, StatusProtocolError},
		{"reply-success", 28, "\x00\x00\x00\x00\x04\x00\x00\x01", "payload length", -1, StatusExhausted},
		{"reply-ready", 28, "\x80", "payload length", -1, StatusExhausted},
	}, func(b []byte) error { _, err := DecodeReply(b); return err })
}

func decodeDescriptorError(b []byte) error { _, err := DecodeDescriptor(b); return err }

// proves W-6, W-7, W-8, W-9, W-15
func TestDescriptorRefusesWrongFields(t *testing.T) {
	checkPatches(t, []patch{
		{"descriptor-all", 0, "\x00\x00\x10\x01", "region count", -1, StatusExhausted},
		{"descriptor-all", 0, "\xff\xff\xff\xff", "region count", -1, StatusExhausted},
		{"descriptor-all", 0, "\x00\x00\x10\x00", "size", -1, StatusProtocolError},
		{"descriptor-empty", 3, "\x01", "size", -1, StatusProtocolError},
		{"descriptor-all", 4, "\x80", "capability bits", -1, StatusProtocolError},
		{"descriptor-all", 10, "\x02", "capability bits", -1, StatusProtocolError},
		{"descriptor-regions", 11, "\x99", "capability bits", -1, StatusProtocolError},
		{"descriptor-all", 12, "\x01", "retired provider byte", -1, StatusProtocolError},
		{"descriptor-all", 13, "\x01", "reserved capability byte", 0, StatusProtocolError},
		{"descriptor-all", 39, "\x01", "reserved capability byte", 26, StatusProtocolError},
		{"descriptor-all", 11, "\xdf", "size", -1, StatusProtocolError}, // SHM bit off: bytes left over
		{"descriptor-empty", 11, "\x39", "size", -1, StatusProtocolError},
		{"descriptor-empty", 11, "\x59", "size", -1, StatusProtocolError},
		{"descriptor-empty", 11, "\x1d", "size", -1, StatusProtocolError},
		{"descriptor-all", 55, "\x00", "region ID", 0, StatusProtocolError},
		{"descriptor-all", 87, "\x03", "region ID", 1, StatusProtocolError},
		{"descriptor-all", 87, "\x02", "region ID", 1, StatusProtocolError},
		{"descriptor-all", 102, "\x00", "region length", 1, StatusInvalidRange},
		{"descriptor-all", 96, "\xff\xff\xff\xff", "region length", 1, StatusInvalidRange},
		{"descriptor-all", 72, "\x00", "region permission", 0, StatusProtocolError},
		{"descriptor-all", 72, "\x04", "region permission", 0, StatusProtocolError},
		{"descriptor-mnnvl", 105, "\x02", "region memory type", 1, StatusProtocolError},
		{"descriptor-all", 106, "\x02", "IPC export consent", 1, StatusProtocolError},
		{"descriptor-all", 75, "\x89", "region flags", 0, StatusProtocolError},
		{"descriptor-all", 75, "\xc1", "region flags", 0, StatusProtocolError},
		{"descriptor-all", 75, "\x83", "region flags", 0, StatusProtocolError},      // dma-buf of host memory
		{"descriptor-mnnvl", 75, "\x04", "region flags", 0, StatusProtocolError},    // peermem without RDMA
		{"descriptor-mnnvl", 75, "\x01", "region flags", 0, StatusProtocolError},    // HP-TCP without an endpoint
		{"descriptor-regions", 107, "\x00", "RDMA path count", -1, StatusExhausted}, // a scope entry left over
		{"descriptor-all", 112, "\x0d", "scope transport", 0, StatusProtocolError},
		{"descriptor-all", 112, "\x00\xff\xff\xff\xff", "scope ordinal", 0, StatusProtocolError},
		{"descriptor-hptcp", 79, "\x01", "MNNVL export location", 0, StatusProtocolError},
		{"descriptor-all", 76, "\x00", "MNNVL export location", 0, StatusProtocolError},    // 1 for host memory
		{"descriptor-mnnvl", 79, "\x02", "MNNVL export location", 0, StatusProtocolError},  // neither 1 nor EGM
		{"descriptor-mnnvl", 129, "\x00", "MNNVL export location", 1, StatusProtocolError}, // EGM off
	}, decodeDescriptorError)
}

// proves W-10, W-11, W-15
func TestTrailersRefuseWrongFields(t *testing.T) {
	checkPatches(t, []patch{
		{"descriptor-shm", 117, "\x00\x00\x00\x03", "SHM count", -1, StatusProtocolError},
		{"descriptor-shm", 117, "\xff\xff\xff\xff", "SHM count", -1, StatusProtocolError},
		{"descriptor-shm", 120, "\x01", "size", -1, StatusProtocolError},
		{"descriptor-shm", 121, "\x02", "SHM backend", -1, StatusProtocolError},
		{"descriptor-shm", 122, "\x01", "SHM reserved bytes", -1, StatusProtocolError},
		{"descriptor-shm", 124, "\x01", "SHM reserved bytes", -1, StatusProtocolError},
		{"descriptor-shm", 132, "\x03", "SHM region ID", 0, StatusProtocolError},
		{"descriptor-shm", 212, "\x02", "SHM region ID", 1, StatusProtocolError},
		{"descriptor-shm", 212, "\x0a", "SHM region ID", 1, StatusProtocolError},
		{"descriptor-shm", 140, "\x01", "SHM allocation offset", 0, StatusInvalidRange},
		{"descriptor-shm", 133, "\xff", "SHM allocation offset", 0, StatusInvalidRange},
		{"descriptor-shm", 227, "\x1f", "SHM allocation offset", 1, StatusInvalidRange},
		{"descriptor-shm", 181, "\x00\x00\x00\x00", "SHM creator PID", 0, StatusProtocolError},
		{"descriptor-shm", 185, "\x01", "SHM record reserved bytes", 0, StatusProtocolError},
		{"descriptor-shm", 268, "\x01", "SHM record reserved bytes", 1, StatusProtocolError},
		{"descriptor-mnnvl", 128, "\x02", "MNNVL handle kind", -1, StatusProtocolError},
		{"descriptor-mnnvl", 129, "\x02", "MNNVL EGM enable", -1, StatusProtocolError},
		{"descriptor-mnnvl", 130, "\x01", "MNNVL reserved byte", 0, StatusProtocolError},
		{"descriptor-mnnvl", 135, "\x01", "MNNVL reserved byte", 5, StatusProtocolError},
		{"descriptor-hptcp", 80, "\x02", "HP-TCP address family", -1, StatusProtocolError},
		{"descriptor-hptcp", 81, "\x01", "HP-TCP reserved bytes", -1, StatusProtocolError},
		{"descriptor-hptcp", 86, "\x01", "HP-TCP reserved bytes", -1, StatusProtocolError},
		{"descriptor-hptcp", 87, "\x01", "HP-TCP reserved bytes", -1, StatusProtocolError},
		{"descriptor-hptcp", 82, "\x00\x00", "HP-TCP port", -1, StatusProtocolError},
		{"descriptor-hptcp", 84, "\x00\x00", "HP-TCP stream limit", -1, StatusProtocolError},
		{"descriptor-hptcp", 88, "\x00\x00\x00\x00\x00\x00\x00\x00", "HP-TCP largest chunk", -1, StatusProtocolError},
		{"descriptor-hptcp", 96, "\x00\x00\x00\x00\x00\x03\xff\xff", "HP-TCP largest in-flight bytes", -1, StatusProtocolError},
	}, decodeDescriptorError)
}

// Every frame is refused at every shorter length, and with one byte more.
//
// proves W-15
func TestEveryTruncationIsRefused(t *testing.T) {
	check := func(name string, decode func([]byte) error) {
		whole := readHex(t, name)
		if err := decode(whole); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for n := range whole {
			if err := decode(whole[:n:n]); err == nil {
				t.Errorf("%s: accepted with %d of %d bytes", name, n, len(whole))
			}
		}
		if err := decode(append(whole, 0)); err == nil {
			t.Errorf("%s: accepted with a byte too many", name)
		}
	}
	for name := range goldenRequests {
		check(name, decodeAndCheckRequest)
	}
	for name := range goldenReplies {
		check(name, func(b []byte) error { _, err := DecodeReply(b); return err })
	}
	for name := range goldenDescriptors {
		check(name, decodeDescriptorError)
	}
	for name, n := range goldenBodies {
		check(name, func(b []byte) error {
			_, err := DecodeNotifyBody(n.Request(OperationNotify, goldenEpoch), b)
			return err
		})
	}
}

// Lengths near the widths of machine integers must not wrap, whichever field they stand in.
//
// proves W-15
// field case F-32
func TestLengthsNearIntegerWidthsDoNotWrap(t *testing.T) {
	sizes := []uint64{1<<16 - 1, 1 << 16, 1<<16 + 1, 1<<31 - 1, 1 << 31, 1<<31 + 1, 1<<32 - 1, 1 << 32, 1<<32 + 1,
		1<<63 - 1, 1 << 63, math.MaxUint64 - 1, math.MaxUint64}
	for _, offset := range append(sizes, 0, 1) {
		for _, length := range append(sizes, 0, 1) {
			overflows := offset+length < offset
			checkWidth(t, Request{OperationRDMARead, goldenEpoch, 1, offset, length}, overflows, math.MaxUint64, length)
			checkWidth(t, Request{OperationTCPRead, goldenEpoch, 1, offset, length}, overflows, PayloadBytesMax, length)
			checkWidth(t, Request{OperationTCPWrite, goldenEpoch, 1, offset, length}, overflows, PayloadBytesMax, length)
			notify := Request{OperationNotify, goldenEpoch, 0, offset, length}
			checkWidth(t, notify, overflows, NotificationBytesMax, offset+length)
			for _, size := range []int{0, 1, 2} {
				_, err := DecodeNotifyBody(notify, make([]byte, size))
				fits := !overflows && offset+length < 2 && int(offset+length)+1 == size
				if (err == nil) != fits {
					t.Errorf("notify %d+%d with a body of %d: %v", offset, length, size, err)
				}
			}
			d := Descriptor{Regions: []Region{{ID: 1, Base: offset, Length: length, Permission: RemoteRead}}}
			if err := decodeDescriptorError(AppendDescriptor(nil, &d)); (err == nil) != (!overflows && length > 0) {
				t.Errorf("region %d+%d: %v", offset, length, err)
			}
		}
	}
}

// checkWidth expects invalid range for an overflow, exhausted above the limit and nil otherwise, also
// after a round trip over the wire.
func checkWidth(t *testing.T, r Request, overflows bool, limit, amount uint64) {
	t.Helper()
	want := StatusSuccess
	switch {
	case overflows:
		want = StatusInvalidRange
	case amount > limit:
		want = StatusExhausted
	}
	got, err := DecodeRequest(AppendRequest(nil, r))
	if err != nil || got != r || StatusOf(got.Check()) != want {
		t.Errorf("%v %d+%d: %v, %v, want %v", r.Operation, r.Offset, r.Length, err, got.Check(), want)
	}
}

// field case F-32
func TestSHMRangesNearIntegerWidthsDoNotWrap(t *testing.T) {
	for _, c := range []struct {
		offset, length, mapped uint64
		fits                   bool
	}{
		{0, 1 << 32, 1 << 32, true},
		{1, 1 << 32, 1 << 32, false},
		{1 << 31, 1 << 31, 1 << 32, true},
		{math.MaxUint64 - 1, 1, math.MaxUint64, true},
		{math.MaxUint64, 1, math.MaxUint64, false},
		{math.MaxUint64, 2, 1, false},
		{1 << 63, 1 << 63, 0, false},
	} {
		d := Descriptor{
			Regions: []Region{{ID: 1, Length: c.length, Permission: RemoteRead}},
			SHM:     &SHM{Records: []SHMRecord{{Region: 1, Offset: c.offset, MappedSize: c.mapped, CreatorPID: 1}}},
		}
		if err := decodeDescriptorError(AppendDescriptor(nil, &d)); (err == nil) != c.fits {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// allocated returns how many bytes f allocates: the least of several tries, because the counter is
// the whole process's.
func allocated(f func()) uint64 {
	least := uint64(math.MaxUint64)
	for range 5 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		least = min(least, after.TotalAlloc-before.TotalAlloc)
	}
	return least
}

// proves W-9, W-15
func TestHostileCountsAllocateNothingButTheError(t *testing.T) {
	for _, p := range []struct {
		vector string
		at     int
		bytes  string
	}{
		{"descriptor-empty", 0, "\x00\x00\x10\x00"},
		{"descriptor-empty", 0, "\xff\xff\xff\xff"},
		{"descriptor-shm", 117, "\xff\xff\xff\xff"},
		{"descriptor-all", 39, "\x01"}, // reserved byte in front of a good rest
		{"descriptor-all", 75, "\x89"}, // unknown flag in front of a good rest
	} {
		b := readHex(t, p.vector)
		copy(b[p.at:], p.bytes)
		var err error
		n := allocated(func() { err = decodeDescriptorError(b) })
		times := testing.AllocsPerRun(100, func() { _ = decodeDescriptorError(b) })
		if err == nil || n > 1024 || times > 2 { // the error and its text
			t.Errorf("%s at %d: %d bytes in %v allocations, %v", p.vector, p.at, n, times, err)
		}
	}
	hostile := Request{OperationNotify, goldenEpoch, 0, 1 << 40, 1 << 40}
	if n := allocated(func() { _, _ = DecodeNotifyBody(hostile, []byte{0}) }); n > 1024 {
		t.Errorf("notify body: %d bytes allocated", n)
	}
}

// proves W-15
func TestTheLimitsThemselvesAreAccepted(t *testing.T) {
	if _, err := DecodeReply(AppendReply(nil, Reply{StatusSuccess, goldenEpoch, PayloadBytesMax})); err != nil {
		t.Error(err)
	}
	d := Descriptor{Regions: []Region{{
		ID: math.MaxUint64, Base: math.MaxUint64 - 1, Length: 1, Permission: ReadWrite, Flags: RegionScoped,
		Scope: Scope{TransportIDLast, OrdinalUnknown - 1},
	}}}
	if err := decodeDescriptorError(AppendDescriptor(nil, &d)); err != nil {
		t.Error(err)
	}
}

// A refusal reports the value that stood in the frame.
func TestFrameErrorCarriesTheValue(t *testing.T) {
	for _, c := range []struct {
		vector string
		at     int
		bytes  string
		value  uint64
	}{
		{"descriptor-all", 72, "\x09", 9},
		{"descriptor-shm", 122, "\x01\x02\x03", 0x010203},
		{"descriptor-shm", 185, "\x01\x02\x03\x04", 0x01020304},
		{"descriptor-mnnvl", 129, "\x07", 7},
		{"descriptor-mnnvl", 133, "\x08", 8},
		{"descriptor-hptcp", 81, "\x05", 0x050000},
		{"descriptor-hptcp", 86, "\x06\x07", 0x000607},
	} {
		b := readHex(t, c.vector)
		copy(b[c.at:], c.bytes)
		var e *FrameError
		if err := decodeDescriptorError(b); !errors.As(err, &e) || e.Value != c.value {
			t.Errorf("%s at %d: %v, want the value %d", c.vector, c.at, err, c.value)
		}
	}
	b := readHex(t, "reply-ready")
	b[11] = 0x81
	var e *FrameError
	if _, err := DecodeReply(b); !errors.As(err, &e) || e.Value != 0x81 {
		t.Errorf("%v", err)
	}
	if err := (Notification{Message: "ok\xfe"}).Check(); !errors.As(err, &e) || e.Index != 2 || e.Value != 0xfe {
		t.Errorf("%v", err)
	}
}

// proves W-15
func TestFrameErrorNamesFrameFieldValueRuleAndAnswer(t *testing.T) {
	b := readHex(t, "request-tcp-read")
	b[9] = 18
	text := decodeAndCheckRequest(b).Error()
	for _, want := range []string{"request", "version is 18", "want 19", "protocol error", "nothing of it was used", "both sides"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q lacks %q", text, want)
		}
	}
	b = readHex(t, "descriptor-all")
	b[72] = 9
	if text := decodeDescriptorError(b).Error(); !strings.Contains(text, "region permission [0] is 9") {
		t.Errorf("%q names no record", text)
	}
	if s := StatusOf(fmt.Errorf("wrapped: %w", saysStatus{})); s != StatusPermissionDenied {
		t.Errorf("StatusOf an error that says its own: %v", s)
	}
	if s := StatusOf(errors.New("other")); s != StatusInternalError {
		t.Errorf("StatusOf an unknown error: %v", s)
	}
}

// saysStatus is an error of another room that knows its answer.
type saysStatus struct{}

func (saysStatus) Error() string  { return "says its status" }
func (saysStatus) Status() Status { return StatusPermissionDenied }
