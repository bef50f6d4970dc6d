package netproto

import (
	"errors"
	"testing"
)

// script is a stream of two requests with a payload between them.
var (
	scriptFirst   = Request{OperationTCPWrite, goldenEpoch, 7, goldenOffset, 5}
	scriptSecond  = Request{OperationTCPRead, goldenEpoch, 9, 1, 2}
	scriptPayload = "bytes"
	scriptBytes   = AppendRequest(append(AppendRequest(nil, scriptFirst), scriptPayload...), scriptSecond)
)

// readScript takes the script out of chunks and fails unless every frame and payload byte arrives
// once. It uses Feed, as a lane does that reads into a staging buffer.
func readScript(t *testing.T, chunks [][]byte) {
	t.Helper()
	var r Reader
	r.Begin(RequestSize)
	var requests []Request
	var payload []byte
	for _, chunk := range chunks {
		for len(chunk) > 0 {
			if len(requests) == 1 && len(payload) < len(scriptPayload) {
				n := min(len(chunk), len(scriptPayload)-len(payload))
				payload, chunk = append(payload, chunk[:n]...), chunk[n:]
				continue
			}
			chunk = chunk[r.Feed(chunk):]
			if err := r.Check(); err != nil {
				t.Fatal(err)
			}
			if r.Complete() {
				request, err := r.Request()
				if err != nil {
					t.Fatal(err)
				}
				requests = append(requests, request)
				r.Begin(RequestSize)
			}
		}
	}
	if len(requests) != 2 || requests[0] != scriptFirst || requests[1] != scriptSecond || string(payload) != scriptPayload || !r.Empty() {
		t.Fatalf("%d chunks gave %+v and %q", len(chunks), requests, payload)
	}
}

// field case F-31
func TestReaderFindsFramesWhereverTheStreamIsCut(t *testing.T) {
	for i := range scriptBytes {
		for j := i; j <= len(scriptBytes); j++ {
			readScript(t, [][]byte{scriptBytes[:i], scriptBytes[i:j], scriptBytes[j:]})
		}
	}
	var single [][]byte
	for i := range scriptBytes {
		single = append(single, scriptBytes[i:i+1])
	}
	readScript(t, single)
}

// A receive fills Room first and the payload buffer behind it.
//
// field case F-31
func TestReaderSharesAReceiveWithThePayload(t *testing.T) {
	want := Reply{StatusSuccess, goldenEpoch, 5}
	stream := append(AppendReply(nil, want), scriptPayload...)
	for first := 0; first <= len(stream); first++ {
		var r Reader
		r.Begin(ReplySize)
		payload := make([]byte, len(scriptPayload))
		got := 0
		for rest := stream; len(rest) > 0; {
			n := len(rest)
			if len(rest) == len(stream) && first > 0 {
				n = first
			}
			room := copy(r.Room(), rest[:n])
			copy(payload[got:], rest[room:n])
			got += r.Filled(n)
			rest = rest[n:]
		}
		reply, err := r.Reply()
		if err != nil || reply != want || got != len(payload) || string(payload) != scriptPayload || len(r.Room()) != 0 {
			t.Fatalf("cut at %d: %+v %v %q", first, reply, err, payload)
		}
	}
}

// proves W-15
func TestReaderRefusesAnotherProtocolAtItsFirstWrongByte(t *testing.T) {
	for at := range len(magic) + 2 {
		for size, frame := range map[int]string{RequestSize: "request", ReplySize: "reply"} {
			b := append([]byte(nil), prefix[:]...)
			b[at] ^= 0x20
			var r Reader
			r.Begin(size)
			for i := range b {
				r.Feed(b[i : i+1])
				err := r.Check()
				var e *FrameError
				if (err != nil) != (i >= at) || err != nil && (!errors.As(err, &e) || e.Index != at || e.Frame != frame) {
					t.Fatalf("wrong byte %d, after %d bytes: %v", at, i+1, err)
				}
			}
		}
	}
}

func TestReaderKnowsEmptyPartialAndComplete(t *testing.T) {
	var r Reader
	if r.Complete() || !r.Empty() || len(r.Room()) != 0 {
		t.Fatal("the zero value must wait for Begin")
	}
	r.Begin(ReplySize)
	if r.Complete() || !r.Empty() || len(r.Room()) != ReplySize {
		t.Fatal("begun")
	}
	if r.Filled(0) != 0 || !r.Empty() {
		t.Fatal("an end of stream is not a byte")
	}
	if r.Filled(ReplySize-1) != 0 || r.Complete() || r.Empty() {
		t.Fatal("partial")
	}
	if _, err := r.Reply(); err == nil {
		t.Fatal("a partial header was decoded")
	}
	if r.Filled(1) != 0 || !r.Complete() {
		t.Fatal("complete")
	}
	r.Begin(RequestSize)
	if !r.Empty() {
		t.Fatal("Begin keeps old bytes")
	}
}

func TestReaderMistakesPanic(t *testing.T) {
	for name, f := range map[string]func(r *Reader){
		"size":     func(r *Reader) { r.Begin(HeaderSize) },
		"negative": func(r *Reader) { r.Filled(-1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f(new(Reader))
		}()
	}
}
