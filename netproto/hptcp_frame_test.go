package netproto

import (
	"bytes"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

var goldenRequester = Epoch(rising(0xb0))

var goldenHello = HPTCPHello{Expected: goldenEpoch, Requester: goldenRequester, Stream: 3, Flags: HPTCPChecksums, Chunk: 256 << 10, InFlight: 16 << 20}

var goldenWelcomes = map[string]HPTCPWelcome{
	"hptcp-welcome":         {StatusSuccess, goldenEpoch, goldenRequester, 256, HPTCPChecksums, 256 << 10, 8 << 20},
	"hptcp-welcome-refused": {Status: StatusEpochMismatch, Source: goldenEpoch, Requester: goldenRequester},
}

// asked is a request with its runs.
type asked struct {
	HPTCPRequest
	Runs []HPTCPRun
}

var goldenAsked = map[string]asked{
	"hptcp-read": {HPTCPRequest{HPTCPFrame{Kind: HPTCPRead, Tag: HPTCPTag{7, 0x01020304}, Offset: 1<<32 + 5, Length: 1<<16 + 1}, 7, 0, 0}, nil},
	"hptcp-read-list": {HPTCPRequest{HPTCPFrame{Kind: HPTCPRead, Tag: HPTCPTag{8, 1}, Offset: 1000, Length: 306}, 9, 1, 9},
		[]HPTCPRun{{1000, 5, 1, 0}, {2000, 300, 1, 0}, {10, 1, 1, 0}}},
	"hptcp-write-pages": {HPTCPRequest{HPTCPFrame{Kind: HPTCPWrite, Flags: HPTCPAtomic, Tag: HPTCPTag{255, math.MaxUint32}, Offset: 8192, Length: 5 * 4096}, 9, 4096, 7},
		[]HPTCPRun{{8192, 3 * 4096, 1, 0}, {8192 + 100*4096, 4096, 1, 0}, {8192 + 50*4096, 4096, 1, 0}}},
	"hptcp-read-stride": {HPTCPRequest{HPTCPFrame{Kind: HPTCPRead, Tag: HPTCPTag{0, 2}, Offset: 64, Length: 128000}, goldenID, 64, 5},
		[]HPTCPRun{{64, 128, 1000, 4096}}},
}

var goldenFrames = map[string]HPTCPFrame{
	"hptcp-chunk":        {Kind: HPTCPChunk, Check: 0xe3069283, Tag: HPTCPTag{7, 0x01020304}, Offset: 65536, Length: 1},
	"hptcp-end":          {Kind: HPTCPEnd, Status: StatusPermissionDenied, Tag: HPTCPTag{7, 0x01020304}},
	"hptcp-end-mismatch": {Kind: HPTCPEnd, Flags: HPTCPMismatch, Status: StatusProtocolError, Tag: HPTCPTag{7, 0x01020304}, Offset: 65536},
}

// appendAsked encodes a request as a requester does.
func appendAsked(dst []byte, a asked) []byte {
	dst = AppendHPTCPRequest(dst, a.HPTCPRequest)
	end := a.Offset
	for _, r := range a.Runs {
		dst, end = AppendHPTCPRun(dst, r, a.Unit, end)
	}
	return dst
}

func decodeAsked(b []byte) (a asked, err error) {
	a.HPTCPRequest, err = DecodeHPTCPRequest(b)
	if err == nil && a.Unit > 0 {
		a.Runs, err = DecodeHPTCPRuns(nil, a.HPTCPRequest, b[HPTCPRequestSize:])
	} else if err == nil && len(b) > HPTCPRequestSize {
		err = refuseSize(hptcpRequest, uint64(len(b)), HPTCPRequestSize)
	}
	return a, err
}

// proves H-2, W-16
func TestGoldenVectorsOfHPTCPHellos(t *testing.T) {
	checkGolden(t, "hptcp-hello", AppendHPTCPHello(nil, goldenHello), goldenHello, func(b []byte) (any, error) { return DecodeHPTCPHello(b) })
	for name, w := range goldenWelcomes {
		checkGolden(t, name, AppendHPTCPWelcome(nil, w), w, func(b []byte) (any, error) { return DecodeHPTCPWelcome(goldenHello, b) })
	}
}

// proves H-3, H-8, H-9, W-16
func TestGoldenVectorsOfHPTCPFrames(t *testing.T) {
	for name, a := range goldenAsked {
		checkGolden(t, name, appendAsked(nil, a), a, func(b []byte) (any, error) { return decodeAsked(b) })
	}
	for name, f := range goldenFrames {
		checkGolden(t, name, AppendHPTCPFrame(nil, f), f, func(b []byte) (any, error) { return DecodeHPTCPFrame(b) })
	}
	if c := crc32.Checksum([]byte("123456789"), crc32.MakeTable(crc32.Castagnoli)); c != goldenFrames["hptcp-chunk"].Check {
		t.Errorf("CRC32C of the catalogue's text is %#x", c) // the check value of CRC-32/ISCSI
	}
}

// refusedWith decodes and wants a refusal with this status.
func refusedWith(t *testing.T, what string, err error, want Status) {
	t.Helper()
	if err == nil || StatusOf(err) != want {
		t.Errorf("%s: %v, want a refusal with %v", what, err, want)
	}
}

// Each field of each frame is refused when it says what no peer may send.
//
// proves W-15, H-2, H-3
func TestHPTCPFramesAreRefusedFieldByField(t *testing.T) {
	hello := AppendHPTCPHello(nil, goldenHello)
	for _, c := range []struct {
		what  string
		at    int
		value []byte
	}{
		{"magic", 0, []byte{0}}, {"version", 9, []byte{18}}, {"code", 10, []byte{1}}, {"reserved", 11, []byte{1}},
		{"expected epoch", 12, make([]byte, 16)}, {"requester epoch", 28, make([]byte, 16)}, {"flags", 47, []byte{2}},
		{"no chunk", 48, make([]byte, 8)}, {"chunk", 48, []byte{1}}, {"in flight", 56, make([]byte, 8)},
	} {
		b := bytes.Clone(hello)
		copy(b[c.at:], c.value)
		_, err := DecodeHPTCPHello(b)
		refusedWith(t, "hello "+c.what, err, StatusProtocolError)
	}
	good := goldenWelcomes["hptcp-welcome"]
	for what, change := range map[string]func(*HPTCPWelcome){
		"status": func(w *HPTCPWelcome) { w.Status = 13 }, "ready": func(w *HPTCPWelcome) { w.Status = StatusReady },
		"source": func(w *HPTCPWelcome) { w.Source[3]++ }, "requester": func(w *HPTCPWelcome) { w.Requester[3]++ },
		"slots": func(w *HPTCPWelcome) { w.Slots = 0 }, "flags": func(w *HPTCPWelcome) { w.Flags = 0 },
		"chunk": func(w *HPTCPWelcome) { w.Chunk = 257 << 10 }, "in flight": func(w *HPTCPWelcome) { w.InFlight = 17 << 20 },
		"terms of a refusal": func(w *HPTCPWelcome) { w.Status = StatusExhausted },
	} {
		w := good
		change(&w)
		_, err := DecodeHPTCPWelcome(goldenHello, AppendHPTCPWelcome(nil, w))
		refusedWith(t, "welcome "+what, err, StatusProtocolError)
	}
	for what, c := range map[string]struct {
		f    HPTCPFrame
		want Status
	}{
		"kind":           {HPTCPFrame{Kind: 5, Tag: HPTCPTag{0, 1}}, StatusProtocolError},
		"flags":          {HPTCPFrame{Kind: HPTCPRead, Flags: HPTCPAtomic, Tag: HPTCPTag{0, 1}}, StatusProtocolError},
		"status":         {HPTCPFrame{Kind: HPTCPChunk, Status: 1, Length: 1, Tag: HPTCPTag{0, 1}}, StatusProtocolError},
		"check":          {HPTCPFrame{Kind: HPTCPEnd, Check: 1, Tag: HPTCPTag{0, 1}}, StatusProtocolError},
		"generation":     {HPTCPFrame{Kind: HPTCPEnd}, StatusProtocolError},
		"overflow":       {HPTCPFrame{Kind: HPTCPRead, Offset: math.MaxUint64, Length: 1, Tag: HPTCPTag{0, 1}}, StatusInvalidRange},
		"too long":       {HPTCPFrame{Kind: HPTCPRead, Length: PayloadBytesMax + 1, Tag: HPTCPTag{0, 1}}, StatusExhausted},
		"empty chunk":    {HPTCPFrame{Kind: HPTCPChunk, Tag: HPTCPTag{0, 1}}, StatusProtocolError},
		"ready":          {HPTCPFrame{Kind: HPTCPEnd, Status: StatusReady, Tag: HPTCPTag{0, 1}}, StatusProtocolError},
		"end with range": {HPTCPFrame{Kind: HPTCPEnd, Length: 1, Tag: HPTCPTag{0, 1}}, StatusProtocolError},
		"end's offset":   {HPTCPFrame{Kind: HPTCPEnd, Offset: 1, Tag: HPTCPTag{0, 1}}, StatusProtocolError},
		"good mismatch":  {HPTCPFrame{Kind: HPTCPEnd, Flags: HPTCPMismatch, Tag: HPTCPTag{0, 1}}, StatusProtocolError},
	} {
		_, err := DecodeHPTCPFrame(AppendHPTCPFrame(nil, c.f))
		refusedWith(t, what, err, c.want)
	}
}

// proves W-15, H-8
func TestHPTCPRequestsAndRunsAreRefused(t *testing.T) {
	pages := goldenAsked["hptcp-write-pages"]
	for what, c := range map[string]struct {
		change func(*asked)
		want   Status
	}{
		"region":           {func(a *asked) { a.Region = 0 }, StatusUnknownRegion},
		"unit alone":       {func(a *asked) { a.RunsSize, a.Runs = 0, nil }, StatusProtocolError},
		"too many runs":    {func(a *asked) { a.RunsSize = HPTCPRunsSizeMax + 1 }, StatusExhausted},
		"kind":             {func(a *asked) { a.Kind, a.Flags = HPTCPEnd, 0; a.Offset, a.Length = 0, 0 }, StatusProtocolError},
		"more than length": {func(a *asked) { a.Length-- }, StatusInvalidRange},
		"less than length": {func(a *asked) { a.Length++ }, StatusInvalidRange},
		"size":             {func(a *asked) { a.RunsSize-- }, StatusProtocolError},
	} {
		a := pages
		c.change(&a)
		_, err := decodeAsked(appendAsked(nil, a))
		refusedWith(t, what, err, c.want)
	}
	r := HPTCPRequest{HPTCPFrame: HPTCPFrame{Offset: 100, Length: 10}, Unit: 1 << 31}
	for what, b := range map[string][]byte{
		"empty range": {0, 0}, "before zero": {1, 2}, "cut": {0}, "cut number": {0x80}, "not minimal": {0x80, 0, 2},
		"too large": {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2}, "eleven bytes": bytes.Repeat([]byte{0xff}, 12),
		"count": {0, 3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 1}, "stride": {0, 3, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1},
	} {
		r.RunsSize = uint32(len(b))
		_, err := DecodeHPTCPRuns(nil, r, b)
		refusedWith(t, what, err, StatusInvalidRange)
	}
}

// Runs that were drawn at random come back as they were.
//
// proves H-8
func TestRunsComeBackAsTheyWere(t *testing.T) {
	const seed = 11
	t.Logf("SEED=%d; replay: go test -run TestRunsComeBackAsTheyWere ./netproto", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		unit := uint32(1) << random.IntN(20)
		r := HPTCPRequest{HPTCPFrame: HPTCPFrame{Offset: random.Uint64() >> (1 + random.IntN(40))}, Unit: unit}
		var runs []HPTCPRun
		for range 1 + random.IntN(20) {
			distance := random.Uint64N(1<<20) * uint64(unit)
			run := HPTCPRun{Start: r.Offset%uint64(unit) + distance, Length: (1 + random.Uint64N(1<<12)) * uint64(unit), Count: 1}
			if random.IntN(3) == 0 {
				run.Count, run.Stride = 2+random.Uint64N(1000), random.Uint64N(1<<12)*uint64(unit)
			}
			runs = append(runs, run)
			r.Length += run.Bytes()
		}
		var b []byte
		end := r.Offset
		for _, run := range runs {
			size := len(b)
			b, end = AppendHPTCPRun(b, run, unit, end)
			if len(b)-size > HPTCPRunSizeMax {
				t.Fatalf("%+v takes %d bytes", run, len(b)-size)
			}
		}
		r.RunsSize = uint32(len(b))
		got, err := DecodeHPTCPRuns(nil, r, b)
		if err != nil || !slices.Equal(got, runs) {
			t.Fatalf("%v: %+v, want %+v", err, got, runs)
		}
	}
}

// proves W-16, H-2
func FuzzHPTCPHello(f *testing.F) {
	f.Add(readHex(f, "hptcp-hello"))
	for _, name := range sortedNames(goldenWelcomes) {
		f.Add(readHex(f, name))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := DecodeHPTCPHello(b)
		checkOutcome(t, b, AppendHPTCPHello(nil, h), err)
		w, err := DecodeHPTCPWelcome(goldenHello, b)
		checkOutcome(t, b, AppendHPTCPWelcome(nil, w), err)
	})
}

// proves W-16, H-3, H-8
func FuzzHPTCPRequest(f *testing.F) {
	for _, name := range sortedNames(goldenAsked) {
		f.Add(readHex(f, name))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := decodeAsked(b)
		if err != nil {
			checkOutcome(t, b, nil, err)
			return
		}
		checkOutcome(t, b, appendAsked(nil, a), nil)
		total := uint64(0)
		for _, r := range a.Runs {
			if r.Length == 0 || r.Count == 0 || r.Start+r.Length-1 < r.Start || r.End()-1 < r.Start {
				t.Fatalf("%+v accepted", r)
			}
			total += r.Bytes()
		}
		if a.Unit > 0 && total != a.Length || len(a.Runs) > len(b)/2 {
			t.Fatalf("%d bytes in %d runs for %+v", total, len(a.Runs), a.HPTCPRequest)
		}
	})
}

// proves W-16, H-3
func FuzzHPTCPFrame(f *testing.F) {
	for _, name := range sortedNames(goldenFrames) {
		f.Add(readHex(f, name))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > HPTCPFrameSize {
			b = b[:HPTCPFrameSize]
		}
		frame, err := DecodeHPTCPFrame(b)
		checkOutcome(t, b, AppendHPTCPFrame(nil, frame), err)
	})
}
