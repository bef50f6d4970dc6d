package netproto

import (
	"errors"
	"strings"
	"testing"
)

// proves N-4, W-13
func TestNotifyBodyRefusesPartialAndMalformedBodies(t *testing.T) {
	for name, c := range map[string]struct {
		nameLength, messageLength uint64
		body                      string
		field                     string
	}{
		"no marker":             {2, 1, "abc", "size"},
		"marker not zero":       {2, 1, "abc\x01", "commit marker"},
		"partial message":       {2, 5, "abc\x00", "size"},
		"byte behind marker":    {2, 1, "abc\x00\x00", "size"},
		"empty":                 {0, 0, "", "size"},
		"name not UTF-8":        {2, 1, "a\xffb\x00", "name byte"},
		"message not UTF-8":     {1, 2, "a\xc3\x28\x00", "message byte"},
		"rune cut by the split": {1, 1, "\xc3\xa9\x00", "name byte"},
		"surrogate":             {0, 3, "\xed\xa0\x80\x00", "message byte"},
	} {
		n, err := DecodeNotifyBody(Request{Operation: OperationNotify, Offset: c.nameLength, Length: c.messageLength}, []byte(c.body))
		var e *FrameError
		if !errors.As(err, &e) || e.Field != c.field || e.Status != StatusProtocolError || n != (Notification{}) {
			t.Errorf("%s: %q, %v, want %q refused", name, n, err, c.field)
		}
	}
}

// proves W-13
func TestNotifyRequestAnnouncesTheBody(t *testing.T) {
	for _, n := range []Notification{{}, {"a", ""}, {"", "b"}, {"größe", "\x00 zero and \uFFFD are text"}} {
		for _, op := range []Operation{OperationNotify, OperationControlNotify} {
			r := n.Request(op, goldenEpoch)
			body := AppendNotifyBody(nil, n)
			if r.Check() != nil || n.Check() != nil || r.Region != 0 || r.NotifyBodySize() != len(body) {
				t.Fatalf("%+v: %v, %v, size %d of %d", r, r.Check(), n.Check(), r.NotifyBodySize(), len(body))
			}
			got, err := DecodeNotifyBody(r, body)
			clear(body) // the texts are copies
			if err != nil || got != n {
				t.Fatalf("%q %v, want %q", got, err, n)
			}
		}
	}
}

func TestNotificationIsCheckedBeforeItIsSent(t *testing.T) {
	large := Notification{Message: strings.Repeat("x", NotificationBytesMax)}
	if err := large.Check(); err != nil {
		t.Fatal(err)
	}
	large.Name = "n"
	if s := StatusOf(large.Check()); s != StatusExhausted {
		t.Fatalf("one byte too many: %v", s)
	}
	var e *FrameError
	if err := (Notification{Name: "ok\xfe"}).Check(); !errors.As(err, &e) || e.Index != 2 || e.Value != 0xfe {
		t.Fatalf("%v", err)
	}
}
