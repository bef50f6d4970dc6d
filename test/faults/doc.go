// Package faults is the text of a simulated run: who takes part, what each of them does in which turn, and
// which faults meet them. A script stands in golden files and bug reports, is cut down by a shrinker, and says
// everything about a run that its seeds do not.
//
// A Script owns its slices, and nothing else; it ends when nobody holds it. Actions are values and may be
// shared between scripts, since nobody changes one in place.
//
// It imports the standard library only. What a word means to engines is the business of test/world.
//
// There are no states: text in, a Script or an *Error with its line out; a Script in, text out. Parsing what was
// printed gives the same script, and printing it the same text. The form:
//
//	(world (seed 42) (engines 2) (delay-min 5µs) (delay-max 50µs))
//	(engine (number 0) (placement direct) (handlers 2))
//	(at 3 (allocate (engine 0) (memory 1) (length 4096)))
//	(at 9 (transfer (engine 0) (deadline 20ms) (read (memory 1) (segment 1) (target 2) (at 64) (length 32))))
//
// Numbers after engine, memory, registration, segment, batch and note are names that the script gives; an
// action whose object does not exist does nothing. A parameter that is left out is zero, off, or its
// word's first value. A semicolon begins a comment. WORDS.md has every word. It relies on time.Duration's text form.
package faults
