package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/orbitte/orbitte/test/faults"
	"github.com/orbitte/orbitte/test/world"
	"github.com/orbitte/orbitte/test/world/shrink"
)

// cut reduces a failing script to a short one that the same oracle refuses, and writes it with what was found.
func (s *settings) cut(script faults.Script, command string) int {
	found := world.Run(script, world.Options{Quiet: true}).Violation
	if found == nil {
		fmt.Println("PASSED: nothing to shrink;", command)
		return 0
	}
	fmt.Printf("%v\n", first(found))
	same := func(candidate faults.Script) bool {
		v := world.Run(candidate, world.Options{Quiet: true}).Violation
		return v != nil && v.Oracle == found.Oracle
	}
	r, err := shrink.Shrink(script, same, shrink.Options{Progress: func(text string) { fmt.Fprintln(os.Stderr, text) }})
	if err != nil { // the same script gave two results: a mistake of the world
		fmt.Fprintln(os.Stderr, "sim:", err)
		return 2
	}
	why := world.Run(r.Script, world.Options{Quiet: true}).Violation
	text := fmt.Sprintf("; %v\n; from %s\n%s", first(why), command, r.Script)
	fmt.Print(text)
	if !r.Minimal {
		fmt.Printf("; after %d runs it may still be too long\n", r.Runs)
	}
	if err := os.WriteFile(s.shrink, []byte(text), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		return 2
	}
	fmt.Printf("%s written after %d runs; replay: %s\n", s.shrink, r.Runs, s.replay("SCRIPT="+s.shrink))
	return 1
}

// first is a violation without the stack behind it.
func first(v *world.Violation) string {
	line, _, _ := strings.Cut(v.Error(), "\n")
	return line
}
