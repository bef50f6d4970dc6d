package netproto

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// FrameError says why bytes, or a value to be sent, were refused (W-15). Nothing of a refused frame
// was used. It is a fact about the frame, not about the engine.
type FrameError struct {
	Frame  string // "request", "reply", "descriptor", "notify body", "epoch"
	Field  string // the field that is wrong
	Index  int    // which record or byte of a list; -1 when the field stands alone
	Value  uint64 // what the field said
	Want   string // what the protocol allows, and where it helps, what to do
	Status Status // the status that answers such a frame
}

// Error states frame, field, value, rule and certainty.
func (e *FrameError) Error() string {
	where := e.Field
	if e.Index >= 0 {
		where = fmt.Sprintf("%s [%d]", e.Field, e.Index)
	}
	value := strconv.FormatUint(e.Value, 10)
	if strings.HasPrefix(e.Field, "magic") { // letters, if anything
		value = fmt.Sprintf("%#x", e.Value)
	}
	return fmt.Sprintf("%s refused (%v): %s is %s, want %s; nothing of it was used",
		e.Frame, e.Status, where, value, e.Want)
}

// StatusOf returns the status with which a refusal is answered: the one of the *FrameError in err's
// chain, or of an error that says its own by a method Status, StatusSuccess for nil and
// StatusInternalError for any other error.
func StatusOf(err error) Status {
	var f *FrameError
	var own interface{ Status() Status }
	switch {
	case err == nil:
		return StatusSuccess
	case errors.As(err, &f):
		return f.Status
	case errors.As(err, &own):
		return own.Status()
	}
	return StatusInternalError
}

// refuse describes a field that stands alone and breaks the protocol.
func refuse(frame, field string, value uint64, want string) *FrameError {
	return &FrameError{Frame: frame, Field: field, Index: -1, Value: value, Want: want, Status: StatusProtocolError}
}

// refuseSize describes a frame of the wrong total size.
func refuseSize(frame string, have, want uint64) *FrameError {
	return refuse(frame, "size", have, fmt.Sprintf("%d bytes", want))
}

// at places the error at one record or byte of a list.
func (e *FrameError) at(index int) *FrameError {
	e.Index = index
	return e
}

// with replaces the status.
func (e *FrameError) with(s Status) *FrameError {
	e.Status = s
	return e
}
