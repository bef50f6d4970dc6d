package faults

import (
	"slices"
	"time"
)

// Arg is one value of a form: a number, nanoseconds, or the place of a word in Param.Words.
type Arg struct {
	Param Param
	Value int64
}

// Request is one transfer of a Transfer or Submit action; memory, segment and target are names.
type Request struct {
	Write          bool
	Memory, Offset int // local
	Segment        int
	Target, At     int // memory object of the peer, and the offset in it
	Length         int
	Transport      int // the place of a word in Transport.Words
	Atomic, Page   int // of HP-TCP
	Slots          int // of the peer's remote staging
}

// Action is one form. Args holds only values that are not zero, in the order of the kind's parameters; New and
// With keep it so.
type Action struct {
	Kind     Kind
	Args     []Arg
	Requests []Request
}

// New makes an action without parameters.
func New(k Kind) Action { return Action{Kind: k} }

// With returns the action with one more value. A parameter that the kind has not is a mistake of ours.
func (a Action) With(p Param, value int64) Action {
	order := kinds[a.Kind].params
	place := slices.Index(order, p)
	if place < 0 {
		panic("faults: " + a.Kind.String() + " has no parameter " + p.String())
	}
	args := make([]Arg, 0, len(a.Args)+1)
	for _, other := range a.Args {
		if other.Param != p {
			args = append(args, other)
		}
	}
	if value != 0 {
		i := 0
		for i < len(args) && slices.Index(order, args[i].Param) < place {
			i++
		}
		args = slices.Insert(args, i, Arg{p, value})
	}
	if len(args) == 0 {
		args = nil // so that equal actions are equal to reflect.DeepEqual
	}
	a.Args = args
	return a
}

// Get is the value of a parameter, zero when it was left out.
func (a Action) Get(p Param) int64 {
	for _, arg := range a.Args {
		if arg.Param == p {
			return arg.Value
		}
	}
	return 0
}

// Int is Get as an int.
func (a Action) Int(p Param) int { return int(a.Get(p)) }

// Duration is Get as a duration.
func (a Action) Duration(p Param) time.Duration { return time.Duration(a.Get(p)) }

// Bool is true exactly when the parameter is not zero.
func (a Action) Bool(p Param) bool { return a.Get(p) != 0 }

// Word is the word of a parameter that is written as one.
func (a Action) Word(p Param) string { return string(appendValue(nil, p, a.Get(p))) }

// Line is one action and the turn of the world before which it is carried out.
type Line struct {
	Turn   int
	Action Action
}

// Script is a whole run. Turns of its lines do not fall.
type Script struct {
	World   Action
	Engines []Action
	Lines   []Line
}

// Clone is a script that shares no slice of lines with s.
func (s Script) Clone() Script {
	s.Engines, s.Lines = slices.Clone(s.Engines), slices.Clone(s.Lines)
	return s
}

// Turns is one more than the last line's turn.
func (s Script) Turns() int {
	if len(s.Lines) == 0 {
		return 0
	}
	return s.Lines[len(s.Lines)-1].Turn + 1
}

// String prints the script, one form in a line.
func (s Script) String() string {
	text := append(s.World.append(nil), '\n')
	for _, e := range s.Engines {
		text = append(e.append(text), '\n')
	}
	for _, l := range s.Lines {
		text = append(l.append(text), '\n')
	}
	return string(text)
}

// String prints the line without its end.
func (l Line) String() string { return string(l.append(nil)) }

func (l Line) append(text []byte) []byte {
	text = append(text, "(at "...)
	text = appendValue(text, Number, int64(l.Turn))
	text = append(text, ' ')
	return append(l.Action.append(text), ')')
}

// String prints the action.
func (a Action) String() string { return string(a.append(nil)) }

func (a Action) append(text []byte) []byte {
	text = append(append(text, '('), a.Kind.String()...)
	for _, arg := range a.Args {
		text = appendArg(text, arg.Param, arg.Value)
	}
	for _, r := range a.Requests {
		text = append(text, ' ')
		text = r.append(text)
	}
	return append(text, ')')
}

func appendArg(text []byte, p Param, value int64) []byte {
	text = append(append(text, " ("...), p.String()...)
	text = append(text, ' ')
	return append(appendValue(text, p, value), ')')
}

// fields lists what a request is made of, in the order of the text.
func (r *Request) fields() []field {
	return []field{{Memory, &r.Memory}, {Offset, &r.Offset}, {Segment, &r.Segment}, {Target, &r.Target}, {At, &r.At}, {Length, &r.Length}, {Transport, &r.Transport}, {Atomic, &r.Atomic}, {Page, &r.Page}, {Slots, &r.Slots}}
}

type field struct {
	param Param
	value *int
}

func (r Request) append(text []byte) []byte {
	name := "(read"
	if r.Write {
		name = "(write"
	}
	text = append(text, name...)
	for _, f := range r.fields() {
		if *f.value != 0 {
			text = appendArg(text, f.param, int64(*f.value))
		}
	}
	return append(text, ')')
}
