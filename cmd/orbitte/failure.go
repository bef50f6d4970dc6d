package main

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/orbitte/orbitte"
)

// usageError is a wrong command line.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

func usage(format string, args ...any) error { return usageError{fmt.Sprintf(format, args...)} }

// Classes of the tool's own failures; the engine's are in package orbitte.
var (
	errDiffers    = errors.New("SHA-256 differs")
	errNoManifest = errors.New("the peer publishes no files")
	errNoFile     = errors.New("the peer has no such file")
	errRefused    = errors.New("refused")
	errLocal      = errors.New("local file")
	errTarget     = errors.New("unfit target")
)

// failure adds to an error what the tool knows: which file, what stands, what to do.
type failure struct {
	class         error // nil: that of cause
	object        string
	cause         error
	known, remedy string // empty: what cause says
}

func (f *failure) Error() string {
	text := f.object
	if f.class != nil {
		text = join(text, className(f.class))
	}
	if f.cause != nil {
		text = join(text, headline(f.cause))
	}
	return text
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + ": " + b
}

func (f *failure) Unwrap() []error {
	var all []error
	for _, err := range []error{f.class, f.cause} {
		if err != nil {
			all = append(all, err)
		}
	}
	return all
}

// headline is an error in one line, without what explain puts on lines of their own.
func headline(err error) string {
	own, ok := err.(*orbitte.Error)
	if !ok {
		return err.Error()
	}
	text := className(own.Class)
	if own.Endpoint != "" {
		text = "peer " + own.Endpoint + ": " + text
	}
	if own.Cause != nil {
		cause := inFlags(own.Cause.Error())
		if rest, ok := strings.CutPrefix(cause, className(own.Class)); ok { // said once
			return text + rest
		}
		text += ": " + cause
	}
	return text
}

// facts are what explain puts on lines of their own.
type facts struct {
	class, remedy string
	known         []string
}

// add takes what the inner error says behind what the outer one said.
func (f *facts) add(class, known, remedy string) {
	if f.class == "" {
		f.class = class
	}
	if known != "" {
		f.known = append(f.known, known)
	}
	if f.remedy == "" {
		f.remedy = remedy
	}
}

func (f *facts) collect(err error) {
	var own *failure
	var engine *orbitte.Error
	var path *fs.PathError
	switch {
	case errors.As(err, &own):
		class := ""
		if own.class != nil {
			class = className(own.class)
		}
		f.add(class, own.known, own.remedy)
		if own.cause != nil {
			f.collect(own.cause)
		}
	case errors.As(err, &engine):
		said := tellingOf(engine)
		if engine.Class == orbitte.ErrUnquiesced {
			said.known = engine.Known() // what it is that is not quiet
		} else if len(f.known) > 0 {
			said.known = "" // what the tool counted says it better
		}
		f.add(className(engine.Class), said.known, said.remedy)
	case errors.As(err, &path):
		f.add(errLocal.Error(), "", "see the system's error")
	}
}

// factsOf collects what there is to say about an error.
func factsOf(err error) (f facts) {
	f.collect(err)
	return f
}

// explain renders an error: what failed, its class, what is known, what to do.
func explain(who string, err error) string {
	f := factsOf(err)
	text := who + ": " + headline(err) + "\n"
	for _, line := range []struct{ label, value string }{{"class: ", f.class}, {"known: ", strings.Join(f.known, "; ")}, {"remedy:", f.remedy}} {
		if line.value != "" {
			text += "  " + line.label + " " + line.value + "\n"
		}
	}
	return text
}
