package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
)

// A frame is one message of the guest to the host over the virtio port. On the wire: kind (1 byte), length of the text
// (4 bytes, big endian), text. The host answers with single bytes.
type frame struct {
	kind byte
	text []byte
}

// Kinds of frames.
const (
	frameBeat   = 'b' // the guest's user space lives; text: nothing
	frameReady  = 'r' // everything is set up; text: seconds since the guest's kernel started
	frameStdout = 'o'
	frameStderr = 'e'
	frameExit   = 'x' // the command ended and the share is written back; text: its exit status
	frameFailed = 'f' // the machine could not be set up; text: why
)

// answerGo is what the host sends once every guest is ready.
const answerGo = 'g'

// frameTextMax bounds the text of one frame, in bytes.
const frameTextMax = 1 << 20

// A sender writes frames; several goroutines may use it.
type sender struct {
	mu sync.Mutex
	to io.Writer
}

func (s *sender) send(kind byte, text []byte) error {
	buffer := make([]byte, 5, 5+len(text))
	buffer[0] = kind
	binary.BigEndian.PutUint32(buffer[1:], uint32(len(text)))
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.to.Write(append(buffer, text...))
	return err
}

// stream is a Writer that sends what it gets as frames of one kind.
type stream struct {
	sender *sender
	kind   byte
}

func (s stream) Write(text []byte) (int, error) {
	for rest := text; len(rest) > 0; {
		n := min(len(rest), frameTextMax)
		if err := s.sender.send(s.kind, rest[:n]); err != nil {
			return len(text) - len(rest), err
		}
		rest = rest[n:]
	}
	return len(text), nil
}

// receive reads one frame. io.EOF means that the other side is gone between two frames.
func receive(from io.Reader) (frame, error) {
	var head [5]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return frame{}, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size > frameTextMax {
		return frame{}, fmt.Errorf("frame %q of %d bytes, at most %d: the guest's agent is not ours", head[0], size, frameTextMax)
	}
	f := frame{head[0], make([]byte, size)}
	if _, err := io.ReadFull(from, f.text); err != nil {
		return frame{}, fmt.Errorf("frame %q cut off: %w", head[0], err)
	}
	return f, nil
}
