package netproto

import (
	"bytes"
	"errors"
	"maps"
	"math"
	"slices"
	"testing"
)

// Every fuzz target starts from the golden vectors and the committed corpus in testdata/fuzz, and
// demands of any input (W-15): no panic; a refusal is a *FrameError with a known status that refuses;
// what is accepted gives the same bytes when it is encoded again.

// sortedNames keeps the numbers of the seeds stable.
func sortedNames[V any](vectors map[string]V) []string { return slices.Sorted(maps.Keys(vectors)) }

// checkOutcome compares one decoding with the rules above.
func checkOutcome(t *testing.T, in, again []byte, err error) {
	t.Helper()
	if err == nil {
		if !bytes.Equal(in, again) {
			t.Fatalf("accepted %x, encoded again %x", in, again)
		}
		return
	}
	var e *FrameError
	if !errors.As(err, &e) || !e.Status.Known() || e.Status.mayCarryPayload() || e.Frame == "" || e.Field == "" || e.Want == "" {
		t.Fatalf("refused with %#v", err)
	}
}

// proves W-16
func FuzzRequest(f *testing.F) {
	for _, name := range sortedNames(goldenRequests) {
		f.Add(readHex(f, name))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		again, err := recodeRequest(b)
		checkOutcome(t, b, again, err)
		if err != nil {
			return
		}
		r, _ := DecodeRequest(b)
		err = r.Check()
		checkOutcome(t, b, b, err)
		if err == nil && r.Length > math.MaxUint64-r.Offset {
			t.Fatalf("%+v overflows", r)
		}
		if size := r.NotifyBodySize(); err == nil && r.Operation.Notifies() && (size < NotifyMarkerSize || size > NotificationBytesMax+NotifyMarkerSize) {
			t.Fatalf("%+v has a body of %d", r, size)
		}
	})
}

// proves W-16
func FuzzReply(f *testing.F) {
	for _, name := range sortedNames(goldenReplies) {
		f.Add(readHex(f, name))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		again, err := recodeReply(b)
		checkOutcome(t, b, again, err)
	})
}

// proves W-16
func FuzzDescriptor(f *testing.F) {
	for _, name := range sortedNames(goldenDescriptors) {
		f.Add(readHex(f, name))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		again, err := recodeDescriptor(b)
		checkOutcome(t, b, again, err)
		if err != nil {
			return
		}
		d, _ := DecodeDescriptor(b)
		if err := d.Check(); err != nil || DescriptorSize(&d) != len(b) || len(b) > DescriptorSizeMax {
			t.Fatalf("accepted %x: Check %v, size %d of %d", b, err, DescriptorSize(&d), len(b))
		}
	})
}

// proves W-16
func FuzzNotifyBody(f *testing.F) {
	for _, name := range sortedNames(goldenBodies) {
		n := goldenBodies[name]
		f.Add(uint64(len(n.Name)), uint64(len(n.Message)), readHex(f, name))
	}
	f.Fuzz(func(t *testing.T, nameLength, messageLength uint64, b []byte) {
		r := Request{Operation: OperationNotify, Offset: nameLength, Length: messageLength}
		again, err := recodeNotifyBody(r, b)
		checkOutcome(t, b, again, err)
		if err == nil && (r.Check() != nil || r.NotifyBodySize() != len(b)) {
			t.Fatalf("body of %d accepted for %+v: %v", len(b), r, r.Check())
		}
	})
}

// A Reader that is fed in any pieces finds what DecodeRequest finds in the whole. Each byte of cuts is
// the size of one piece.
//
// proves W-16
// field case F-31
func FuzzReader(f *testing.F) {
	for _, name := range sortedNames(goldenRequests) {
		f.Add(readHex(f, name), []byte{1, 11, 17, 23})
	}
	f.Fuzz(func(t *testing.T, b, cuts []byte) {
		var r Reader
		r.Begin(RequestSize)
		rest := b
		for _, cut := range cuts {
			piece := min(int(cut), len(rest))
			rest = rest[r.Feed(rest[:piece]):]
		}
		rest = rest[r.Feed(rest):]
		if taken := len(b) - len(rest); taken != min(len(b), RequestSize) || r.Complete() != (taken == RequestSize) {
			t.Fatalf("took %d of %d bytes, complete %v", taken, len(b), r.Complete())
		}
		got, err := r.Request()
		want, wantErr := DecodeRequest(b[:len(b)-len(rest)])
		if got != want || (err == nil) != (wantErr == nil) {
			t.Fatalf("reader %+v %v, whole %+v %v", got, err, want, wantErr)
		}
		if r.Check() != nil && err == nil {
			t.Fatalf("Check %v of an accepted frame", r.Check())
		}
	})
}
