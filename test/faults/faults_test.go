package faults

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

const sample = `(world (seed 42) (engines 2) (delay-min 5µs) (delay-max 1ms) (poison on))
(engine (number 1) (placement direct) (handlers 2) (source-timeout 5s))
(at 0 (allocate (memory 1) (length 4096)))
(at 3 (allocate (engine 1) (memory 2) (length 64)))
(at 3 (transfer (engine 1) (deadline 20ms) (note 7) (size 3) (read (memory 2) (offset 1) (segment 1) (target 1) (at 64) (length 32)) (write (memory 2))))
(at 9 (step-wall (by -1h0m0s)))
(at 9 (fail-accepts (engine 1) (errno ECONNABORTED) (count 3)))
(at 12 (black-hole (engine 1) (state on)))
`

func TestTextThatWasPrintedIsReadAsTheSameScript(t *testing.T) {
	s, err := Parse(sample)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.String(); got != sample {
		t.Fatalf("printed:\n%s\nread:\n%s", got, sample)
	}
	if s.Turns() != 13 || len(s.Lines) != 6 || len(s.Lines[2].Action.Requests) != 2 || !s.Lines[2].Action.Requests[1].Write {
		t.Fatalf("read as %+v", s)
	}
	again, err := Parse("; a comment\n" + strings.ReplaceAll(sample, " (", "\n\t( ") + "; the end")
	if err != nil || !reflect.DeepEqual(s, again) {
		t.Fatalf("with other blanks: %v\n%+v\n%+v", err, s, again)
	}
}

func TestEveryKindAndParameterIsPrintedAndRead(t *testing.T) {
	s := Script{World: New(World).With(Engines, 1)}
	for _, k := range Kinds() {
		a := New(k)
		for _, p := range kinds[k].params {
			a = a.With(p, 1)
		}
		if kinds[k].requests {
			a.Requests = []Request{{Write: true, Memory: 1, Offset: 2, Segment: 3, Target: 4, At: 5, Length: 6, Transport: 1, Atomic: 1, Page: 7}}
		}
		s.Lines = append(s.Lines, Line{len(s.Lines), a})
	}
	back, err := Parse(s.String())
	if err != nil || !reflect.DeepEqual(back, s) {
		t.Fatalf("%v\n%s\nread as\n%s", err, s, back)
	}
}

func TestErrorsNameTheLine(t *testing.T) {
	head := "(world (engines 2))\n"
	for text, want := range map[string]string{
		"":                                  "line 1: the script has no (world …)",
		"world":                             "line 1",
		"(world (engines 2)":                "line 1: the parenthesis is never closed",
		"(world (engines 65))":              "line 1: 65 engines",
		head + head:                         "line 2: (world …) comes once",
		head + "\n(at 1 (jump))":            "line 3: there is no action \"jump\"",
		head + "(kill (engine 1))":          "line 2: kill needs a turn",
		head + "(at 1 (kill (memory 1)))":   "line 2: kill has no parameter",
		head + "(at 1 (kill (engine one)))": "line 2: engine is a number",
		head + "(at 1 (kill (engine -1)))":  "line 2: engine is a number",
		head + "(at 1 (kill (engine 1) (engine 1)))": "line 2: engine is given twice",
		head + "(at 1 (kill engine))":                "line 2: \"engine\" stands alone",
		head + "(at 1 (advance (by soon)))":          "line 2: by is a duration",
		head + "(at 1 (advance (by)))":               "line 2: by needs one value",
		head + "(at 2 (kill))\n(at 1 (kill))":        "line 3: turn 1 stands after turn 2",
		head + "(at 4194305 (kill))":                 "line 2: turn 4194305 is above",
		head + "(at 1 (black-hole (state maybe)))":   "line 2: state is one of off, on",
		head + "(at 1 (transfer (read (size 1))))":   "line 2: a request has no parameter",
		head + "(at 1 (transfer (deadline -1s)))":    "line 2: deadline is a duration",
		head + "(engine (number 2))":                 "line 2: the world has no engine 2",
		head + "(engine)(engine)":                    "line 2: engine 0 has two",
		head + "(at 1 (kill))(engine)":               "line 2: (engine …) comes before",
		head + "(at (kill) 1)":                       "line 2: the form is",
		head + "((((((((((":                          "line 2: parentheses are nested deeper",
		"(at 1 (kill))":                              "line 1: (world …) comes first",
		"(world) x":                                  "line 1: \"x\" where",
		"(world)\n()":                                "line 2: a parenthesis begins with no word",
	} {
		_, err := Parse(text)
		var own *Error
		if !errors.As(err, &own) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q gives %v, want %q", text, err, want)
		}
	}
}

func TestWithReplacesRemovesAndKeepsTheOrder(t *testing.T) {
	a := New(Fill).With(Length, 3).With(Memory, 1).With(Offset, 5).With(Length, 4)
	if got := a.String(); got != "(fill (memory 1) (offset 5) (length 4))" {
		t.Fatal(got)
	}
	b := a.With(Offset, 0)
	if got := b.String(); got != "(fill (memory 1) (length 4))" || a.Int(Offset) != 5 {
		t.Fatal(got, a)
	}
	defer func() {
		if recover() == nil {
			t.Fatal("a parameter that the action has not was taken")
		}
	}()
	a.With(Engines, 1)
}

// FuzzParse: the parser neither panics nor reads twice what it printed once in two ways.
func FuzzParse(f *testing.F) {
	f.Add(sample)
	f.Add("(world (engines 1))")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		printed := s.String()
		again, err := Parse(printed)
		if err != nil || !reflect.DeepEqual(s, again) || again.String() != printed {
			t.Fatalf("%q is printed as %q and read as %v, %v", text, printed, again, err)
		}
	})
}
