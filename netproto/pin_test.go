package netproto

import (
	"reflect"
	"testing"
)

var (
	goldenPin    = Pin{rising(0xb0), goldenID, PinSlotsMax, PinWrite}
	goldenPinned = Pinned{0x0001020304050607, 1 << 20, 7}
	goldenName   = PinName{rising(0xb0), goldenID, 0x0001020304050607}
	goldenOrder  = &Delegate{goldenName, []DelegateCopy{{15, 1 << 20, 1 << 20}, {0, 2 << 20, 1<<16 + 1}}}
	goldenPins   = map[string]any{"pin": goldenPin, "pinned": goldenPinned, "delegate": goldenOrder, "unpin": goldenName}
)

// recodePin decodes a body of remote staging by the name of its golden vector and encodes it again.
func recodePin(name string, b []byte) (again []byte, value any, err error) {
	switch name {
	case "pin":
		p, err := DecodePin(b)
		return AppendPin(nil, p), p, err
	case "pinned":
		p, err := DecodePinned(goldenPin, b)
		return AppendPinned(nil, p), p, err
	case "unpin":
		p, err := DecodeUnpin(b)
		return AppendUnpin(nil, p), p, err
	}
	d := new(Delegate)
	err = DecodeDelegate(d, b)
	return AppendDelegate(nil, d), d, err
}

func encodePin(value any) []byte {
	switch v := value.(type) {
	case Pin:
		return AppendPin(nil, v)
	case Pinned:
		return AppendPinned(nil, v)
	case PinName:
		return AppendUnpin(nil, v)
	}
	return AppendDelegate(nil, value.(*Delegate))
}

// proves C-8, W-16
func TestGoldenVectorsOfPins(t *testing.T) {
	for name, value := range goldenPins {
		checkGolden(t, name, encodePin(value), value, func(b []byte) (any, error) {
			_, got, err := recodePin(name, b)
			return got, err
		})
	}
}

// proves C-8, W-15
func TestPinsRefuseWrongFields(t *testing.T) {
	const zero8, ff8 = "\x00\x00\x00\x00\x00\x00\x00\x00", "\xff\xff\xff\xff\xff\xff\xff\xff"
	byName := map[string][]patch{
		"pin": {
			{"", 0, zero8 + zero8, "requester epoch", -1, StatusProtocolError}, {"", 16, zero8, "pin generation", -1, StatusProtocolError},
			{"", 24, "\x00", "slots", -1, StatusProtocolError}, {"", 24, "\x11", "slots", -1, StatusProtocolError},
			{"", 25, "\x00", "direction", -1, StatusProtocolError}, {"", 25, "\x03", "direction", -1, StatusProtocolError},
			{"", 26, "\x01", "reserved bytes", -1, StatusProtocolError}, {"", 31, "\x01", "reserved bytes", -1, StatusProtocolError},
		},
		"pinned": {
			{"", 0, zero8, "pin number", -1, StatusProtocolError}, {"", 0, "\x08", "pin number", -1, StatusProtocolError},
			{"", 8, zero8, "bytes of a slot", -1, StatusProtocolError}, {"", 8, ff8, "bytes of a slot", -1, StatusProtocolError},
			{"", 16, "\x00", "slots", -1, StatusProtocolError}, {"", 16, "\x11", "slots", -1, StatusProtocolError},
			{"", 17, "\x01", "reserved bytes", -1, StatusProtocolError}, {"", 23, "\x01", "reserved bytes", -1, StatusProtocolError},
		},
		"unpin": {
			{"", 0, zero8 + zero8, "requester epoch", -1, StatusProtocolError}, {"", 16, zero8, "pin generation", -1, StatusProtocolError},
			{"", 24, zero8, "pin number", -1, StatusProtocolError}, {"", 24, ff8, "pin number", -1, StatusProtocolError},
		},
		"delegate": {
			{"", 0, zero8 + zero8, "requester epoch", -1, StatusProtocolError}, {"", 16, zero8, "pin generation", -1, StatusProtocolError},
			{"", 24, zero8, "pin number", -1, StatusProtocolError},
			{"", 32, "\x00", "copies", -1, StatusProtocolError}, {"", 32, "\x11", "copies", -1, StatusProtocolError},
			{"", 32, "\x01", "size", -1, StatusProtocolError}, {"", 32, "\x03", "size", -1, StatusProtocolError},
			{"", 33, "\x01", "reserved bytes", -1, StatusProtocolError}, {"", 39, "\x01", "reserved bytes", -1, StatusProtocolError},
			{"", 40, "\x10", "slot", 0, StatusProtocolError}, {"", 40, "\x00", "slot", 1, StatusProtocolError},
			{"", 41, "\x01", "reserved bytes of a copy", 0, StatusProtocolError}, {"", 71, "\x01", "reserved bytes of a copy", 1, StatusProtocolError},
			{"", 48, ff8, "offset", 0, StatusInvalidRange}, {"", 56, zero8, "length", 0, StatusInvalidRange}, {"", 80, ff8, "length", 1, StatusInvalidRange},
		},
	}
	for name, patches := range byName {
		for i := range patches {
			patches[i].vector = name
		}
		checkPatches(t, patches, func(b []byte) error { _, _, err := recodePin(name, b); return err })
		whole := readHex(t, name)
		for n := range whole {
			if _, _, err := recodePin(name, whole[:n:n]); err == nil {
				t.Errorf("%s: accepted with %d of %d bytes", name, n, len(whole))
			}
		}
		if _, _, err := recodePin(name, append(whole, 0)); err == nil {
			t.Errorf("%s: accepted with a byte too many", name)
		}
	}
	if _, err := DecodePinned(Pin{Slots: 6}, readHex(t, "pinned")); err == nil {
		t.Error("more slots than were asked for are accepted")
	}
}

// A pin stands behind a request that names the range, delegate and unpin behind one that says how long they are.
//
// proves C-8, W-15
func TestRequestsOfPinsSayWhatFollows(t *testing.T) {
	for _, c := range []struct {
		r      Request
		body   int
		status Status
	}{
		{Request{Operation: OperationPin, Region: 1, Length: 1}, PinSize, StatusSuccess},
		{Request{Operation: OperationPin, Region: 1}, 0, StatusInvalidRange},
		{Request{Operation: OperationPin, Length: 1}, 0, StatusUnknownRegion},
		{Request{Operation: OperationPin, Region: 1, Length: PayloadBytesMax + 1}, 0, StatusExhausted},
		{Request{Operation: OperationPin, Region: 1, Offset: 1<<64 - 1, Length: 2}, 0, StatusInvalidRange},
		{Request{Operation: OperationDelegate, Length: DelegateHeadSize + DelegateCopySize}, DelegateHeadSize + DelegateCopySize, StatusSuccess},
		{Request{Operation: OperationDelegate, Length: DelegateHeadSize}, 0, StatusProtocolError},
		{Request{Operation: OperationDelegate, Length: DelegateSizeMax + 1}, 0, StatusProtocolError},
		{Request{Operation: OperationDelegate, Region: 1, Length: DelegateSizeMax}, 0, StatusProtocolError},
		{Request{Operation: OperationUnpin, Length: PinNameSize}, PinNameSize, StatusSuccess},
		{Request{Operation: OperationUnpin, Length: PinNameSize + 1}, 0, StatusProtocolError},
	} {
		if status := StatusOf(c.r.Check()); status != c.status {
			t.Errorf("%+v: %v, want %v", c.r, status, c.status)
			continue
		}
		if n, err := c.r.BodySize(nil); c.status == StatusSuccess && (n != c.body || c.r.BodyHeadSize() != c.body || err != nil) {
			t.Errorf("%+v: body %d, %v", c.r, n, err)
		}
	}
	if !OperationUnpin.Ends() || OperationPin.Ends() || OperationDelegate.Ends() || OperationPin.RDMA() || OperationUnpin.RDMA() {
		t.Error("what ends, or needs RDMA, is wrong")
	}
	if DelegateSizeMax > GrantRequestSizeMax {
		t.Error("a body does not fit where a source gathers it")
	}
}

// Slots have region IDs that no registration can have, one each.
//
// proves C-8
func TestSlotRegionsAreApartFromRegistrations(t *testing.T) {
	seen := map[uint64]bool{}
	for _, pin := range []uint64{1, 2, 1 << 40, pinNumberMax} {
		for slot := range uint8(PinSlotsMax) {
			id := SlotRegion(pin, slot)
			p, s, ok := SlotOf(id)
			if seen[id] || p != pin || s != slot || !ok {
				t.Errorf("%#x is pin %d slot %d %v", id, p, s, ok)
			}
			seen[id] = true
		}
	}
	for _, id := range []uint64{0, 1, slotRegionBit - 1} {
		if _, _, ok := SlotOf(id); ok {
			t.Errorf("%#x is a slot", id)
		}
	}
}

// proves C-8, W-16
func FuzzPin(f *testing.F) { fuzzPin(f, "pin") }

// proves C-8, W-16
func FuzzPinned(f *testing.F) { fuzzPin(f, "pinned") }

// proves C-8, W-16
func FuzzDelegate(f *testing.F) { fuzzPin(f, "delegate") }

// proves C-8, W-16
func FuzzUnpin(f *testing.F) { fuzzPin(f, "unpin") }

func fuzzPin(f *testing.F, name string) {
	f.Add(readHex(f, name))
	f.Fuzz(func(t *testing.T, b []byte) {
		again, _, err := recodePin(name, b)
		checkOutcome(t, b, again, err)
	})
}

// proves C-8, L-6
func TestDelegatesAreCodedWithoutAllocation(t *testing.T) {
	b := readHex(t, "delegate")
	var d Delegate
	out := make([]byte, 0, DelegateSizeMax)
	if n := testing.AllocsPerRun(100, func() {
		if err := DecodeDelegate(&d, b); err != nil {
			t.Fatal(err)
		}
		out = AppendDelegate(out[:0], &d)
	}); n != 0 || !reflect.DeepEqual(&d, goldenOrder) {
		t.Errorf("%v allocations", n)
	}
}
