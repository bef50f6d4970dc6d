package main

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// keptOutputMax bounds the output kept of one test until its end is known, in bytes.
const keptOutputMax = 256 << 10

// An event is one line of go test -json; see go doc test2json.
type event struct {
	Action, Package, Test, Output, ImportPath string
	Elapsed                                   float64
}

// A suite is one package while its tests run.
type suite struct {
	names   []string // in order of their start
	results map[string]string
	output  map[string]string // "" is the package's own
}

// collector turns events into progress lines and counts.
type collector struct {
	phase  string
	out    io.Writer
	counts *counts
	suites map[string]*suite
	ended  int // packages that had tests
}

func newCollector(phase string, out io.Writer, c *counts) *collector {
	return &collector{phase: phase, out: out, counts: c, suites: map[string]*suite{}}
}

// line takes one line of output. What is no event, such as a message of the go command, is shown.
func (c *collector) line(text string) {
	var e event
	if !strings.HasPrefix(text, "{") || json.Unmarshal([]byte(text), &e) != nil {
		fmt.Fprintln(c.out, text)
		return
	}
	if e.Action == "build-output" {
		fmt.Fprint(c.out, "    "+e.Output)
		return
	}
	if e.Package == "" {
		return
	}
	s := c.suites[e.Package]
	if s == nil {
		s = &suite{results: map[string]string{}, output: map[string]string{}}
		c.suites[e.Package] = s
	}
	switch e.Action {
	case "run":
		s.names = append(s.names, e.Test)
	case "output":
		s.keep(e.Test, e.Output)
	case "pass", "fail", "skip":
		if e.Test != "" {
			s.results[e.Test] = e.Action
			return
		}
		c.end(e.Package, s, e)
	}
}

func (s *suite) keep(test, output string) {
	kept := s.output[test] + output
	if len(kept) > keptOutputMax {
		kept = kept[len(kept)-keptOutputMax:]
	}
	s.output[test] = kept
}

// end counts one package and prints its line.
func (c *collector) end(name string, s *suite, e event) {
	delete(c.suites, name)
	short := shorten(name)
	passed, skipped := 0, 0
	failedBefore := c.counts.failed
	for _, test := range s.names {
		result := s.results[test]
		parent := slices.ContainsFunc(s.names, func(n string) bool { return strings.HasPrefix(n, test+"/") })
		switch {
		case result == "skip":
			skipped++
			c.counts.skip(short+" "+test, reason(s.output[test]))
		case result == "pass":
			if !parent {
				passed++
			}
		case parent && s.childFailed(test):
			fmt.Fprint(c.out, indent(s.output[test]))
		default: // failed, or never ended: a panic or a time-out
			if result == "" {
				test += " (did not end)"
			}
			c.counts.fail(c.phase + " " + short + " " + test)
			fmt.Fprint(c.out, indent(s.output[strings.TrimSuffix(test, " (did not end)")]))
		}
	}
	if e.Action == "fail" {
		if c.counts.failed == failedBefore {
			c.counts.fail(c.phase + " " + short + " (package)")
		}
		fmt.Fprint(c.out, indent(s.output[""]))
	}
	c.counts.pass(passed)
	if e.Action == "skip" || len(s.names) == 0 && e.Action == "pass" {
		return // no tests here
	}
	c.ended++
	state := "ok"
	if e.Action == "fail" {
		state = "FAIL"
	}
	fmt.Fprintf(c.out, "  %-4s %-28s %4d passed %3d failed %3d skipped %7.2f s\n", state, short, passed, c.counts.failed-failedBefore, skipped, e.Elapsed)
}

// childFailed says whether a subtest explains the failure of a test.
func (s *suite) childFailed(test string) bool {
	return slices.ContainsFunc(s.names, func(n string) bool {
		r := s.results[n]
		return strings.HasPrefix(n, test+"/") && (r == "fail" || r == "")
	})
}

// abandoned counts packages that never ended, since the run was killed.
func (c *collector) abandoned() {
	var names []string
	for name := range c.suites {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		c.end(name, c.suites[name], event{Action: "fail"})
	}
}

var position = regexp.MustCompile(`^\s*[\w.-]+\.go:\d+: `)

// reason finds what t.Skip said: the last line that is no frame of the test runner.
func reason(output string) string {
	last := "no reason given"
	for line := range strings.Lines(output) {
		line = strings.TrimRight(line, "\n")
		trimmed := strings.TrimSpace(line)
		if trimmed == "" || strings.HasPrefix(trimmed, "=== ") || strings.HasPrefix(trimmed, "--- ") {
			continue
		}
		last = position.ReplaceAllString(line, "")
	}
	return strings.TrimSpace(last)
}

func shorten(name string) string {
	if name == module {
		return "."
	}
	return strings.TrimPrefix(name, module+"/")
}

func indent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "=== ") {
			continue
		}
		b.WriteString("    " + line)
	}
	if b.Len() > 0 && !strings.HasSuffix(b.String(), "\n") {
		b.WriteByte('\n')
	}
	return b.String()
}
