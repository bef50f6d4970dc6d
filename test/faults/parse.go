package faults

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds of what a script may ask for; they keep a damaged file from asking for the moon.
const (
	engineCountMax = 64
	numberMax      = 1 << 40
	linesMax       = 1 << 20
	turnMax        = 1 << 22 // each costs a round of the world, whether anything happens in it or not
	depthMax       = 8
)

// Error says what is wrong in which line.
type Error struct {
	Line int
	What string
}

func (e *Error) Error() string { return fmt.Sprintf("script line %d: %s", e.Line, e.What) }

// node is one parenthesis or one word.
type node struct {
	line  int
	word  string // empty for a list
	nodes []node
}

type reader struct {
	text string
	line int
}

// failure leaves the parser by panic; Parse turns it into its error.
type failure struct{ err *Error }

func fail(line int, format string, args ...any) {
	panic(failure{&Error{line, fmt.Sprintf(format, args...)}})
}

// Parse reads a script. The error is an *Error.
func Parse(text string) (s Script, err error) {
	defer func() {
		switch f := recover().(type) {
		case nil:
		case failure:
			s, err = Script{}, f.err
		default:
			panic(f)
		}
	}()
	r := reader{text: text, line: 1}
	for r.skip() {
		s.top(r.list(0))
	}
	if s.World.Kind == 0 {
		fail(r.line, "the script has no (world …)")
	}
	return s, nil
}

// skip passes over blanks and comments; false at the end.
func (r *reader) skip() bool {
	for r.text != "" {
		switch c := r.text[0]; {
		case c == '\n':
			r.line++
			r.text = r.text[1:]
		case c == ' ' || c == '\t' || c == '\r':
			r.text = r.text[1:]
		case c == ';':
			end := strings.IndexByte(r.text, '\n')
			if end < 0 {
				end = len(r.text)
			}
			r.text = r.text[end:]
		default:
			return true
		}
	}
	return false
}

func (r *reader) list(depth int) node {
	if r.text[0] != '(' {
		fail(r.line, "%q where a parenthesis should begin", clip(r.text))
	}
	if depth >= depthMax {
		fail(r.line, "parentheses are nested deeper than %d", depthMax)
	}
	n := node{line: r.line}
	r.text = r.text[1:]
	for {
		if !r.skip() {
			fail(n.line, "the parenthesis is never closed")
		}
		switch r.text[0] {
		case ')':
			r.text = r.text[1:]
			return n
		case '(':
			n.nodes = append(n.nodes, r.list(depth+1))
		default:
			end := strings.IndexAny(r.text, " \t\r\n();")
			if end < 0 {
				end = len(r.text)
			}
			n.nodes = append(n.nodes, node{line: r.line, word: r.text[:end]})
			r.text = r.text[end:]
		}
	}
}

func clip(text string) string {
	if len(text) > 20 {
		return text[:20] + "…"
	}
	return text
}

// name is the first word of a list, and the rest.
func (n node) name() (string, []node) {
	if len(n.nodes) == 0 || n.nodes[0].word == "" {
		fail(n.line, "a parenthesis begins with no word")
	}
	return n.nodes[0].word, n.nodes[1:]
}

func (s *Script) top(n node) {
	name, rest := n.name()
	if name == "at" {
		s.at(n, rest)
		return
	}
	a := action(n)
	switch a.Kind {
	case World:
		if s.World.Kind != 0 || len(s.Engines)+len(s.Lines) > 0 {
			fail(n.line, "(world …) comes once, and first")
		}
		if a.Get(Engines) > engineCountMax {
			fail(n.line, "%d engines are more than %d", a.Get(Engines), engineCountMax)
		}
		s.World = a
	case Engine:
		s.engine(n, a)
	default:
		fail(n.line, "%s needs a turn: (at TURN (%s …))", name, name)
	}
}

func (s *Script) engine(n node, a Action) {
	switch {
	case len(s.Lines) > 0:
		fail(n.line, "(engine …) comes before the first (at …)")
	case a.Get(Number) >= s.World.Get(Engines):
		fail(n.line, "the world has no engine %d", a.Get(Number))
	}
	for _, other := range s.Engines {
		if other.Get(Number) == a.Get(Number) {
			fail(n.line, "engine %d has two configurations", a.Get(Number))
		}
	}
	s.Engines = append(s.Engines, a)
}

func (s *Script) at(n node, rest []node) {
	if s.World.Kind == 0 {
		fail(n.line, "(world …) comes first")
	}
	if len(rest) != 2 || rest[0].word == "" || rest[1].word != "" {
		fail(n.line, "the form is (at TURN (action …))")
	}
	turn := value(rest[0], Number)
	a := action(rest[1])
	if a.Kind == World || a.Kind == Engine {
		fail(n.line, "%v has no turn", a.Kind)
	}
	if turn > turnMax {
		fail(n.line, "turn %d is above %d", turn, turnMax)
	}
	if k := len(s.Lines); k > 0 && int64(s.Lines[k-1].Turn) > turn {
		fail(n.line, "turn %d stands after turn %d", turn, s.Lines[k-1].Turn)
	}
	if len(s.Lines) >= linesMax {
		fail(n.line, "more than %d actions", linesMax)
	}
	s.Lines = append(s.Lines, Line{int(turn), a})
}

// action reads one form with its parameters.
func action(n node) Action {
	name, rest := n.name()
	kind, ok := kindByName[name]
	if !ok {
		fail(n.line, "there is no action %q", clip(name))
	}
	a := New(kind)
	for _, part := range rest {
		if part.word != "" {
			fail(part.line, "%q stands alone; parameters are written (name value)", clip(part.word))
		}
		word, values := part.name()
		if kinds[kind].requests && (word == "read" || word == "write") {
			a.Requests = append(a.Requests, request(word == "write", values))
			continue
		}
		p, ok := paramByName[word]
		if !ok || !slices.Contains(kinds[kind].params, p) {
			fail(part.line, "%s has no parameter %q", name, clip(word))
		}
		if slices.ContainsFunc(a.Args, func(other Arg) bool { return other.Param == p }) {
			fail(part.line, "%s is given twice", word)
		}
		a = a.With(p, single(part, values, p))
	}
	return a
}

func single(part node, values []node, p Param) int64 {
	if len(values) != 1 || values[0].word == "" {
		fail(part.line, "%s needs one value", p)
	}
	return value(values[0], p)
}

func request(write bool, parts []node) Request {
	r := Request{Write: write}
	for _, part := range parts {
		if part.word != "" {
			fail(part.line, "%q stands alone; parameters are written (name value)", clip(part.word))
		}
		word, values := part.name()
		found := false
		for _, f := range r.fields() {
			if f.param.String() == word {
				*f.value, found = int(single(part, values, f.param)), true
			}
		}
		if !found {
			fail(part.line, "a request has no parameter %q", clip(word))
		}
	}
	return r
}

// value reads one word by the form of its parameter.
func value(n node, p Param) int64 {
	switch s := params[p]; s.form {
	case word:
		i := slices.Index(s.words, n.word)
		if i < 0 {
			fail(n.line, "%s is one of %s, not %q", p, strings.Join(s.words, ", "), clip(n.word))
		}
		return int64(i)
	case duration, step:
		d, err := time.ParseDuration(n.word)
		if err != nil || d < 0 && s.form == duration || d > 1<<50 || d < -1<<50 {
			fail(n.line, "%s is a duration such as 20ms, not %q", p, clip(n.word))
		}
		return int64(d)
	}
	i, err := strconv.ParseUint(n.word, 10, 64)
	if err != nil || i > numberMax && p != Seed || i > 1<<63-1 {
		fail(n.line, "%s is a number up to %d, not %q", p, int64(numberMax), clip(n.word))
	}
	return int64(i)
}
