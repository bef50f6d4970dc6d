package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A skip is something that did not run, and why.
type skip struct {
	kind, what, reason string
}

// A spent is how long one phase took.
type spent struct {
	phase string
	took  time.Duration
	bad   bool
}

// counts is what all phases add up to. One goroutine uses it.
type counts struct {
	passed, failed int
	skips          []skip
	phases         []spent
	failures       []string
}

func (c *counts) pass(n int) { c.passed += n }

func (c *counts) fail(what string) {
	c.failed++
	c.failures = append(c.failures, what)
}

var typed = regexp.MustCompile(`^([a-z][a-z0-9]*(?:-[a-z0-9]+)*): (.+)$`)

// skip notes a skip once; the plain and the race run skip the same tests.
func (c *counts) skip(what, reason string) {
	s := skip{"untyped", what, reason}
	if m := typed.FindStringSubmatch(reason); m != nil {
		s.kind, s.reason = m[1], m[2]
	}
	if !slices.Contains(c.skips, s) {
		c.skips = append(c.skips, s)
	}
}

// print writes the closing report; its last line is the closing line.
func (c *counts) print(out io.Writer) {
	fmt.Fprintln(out, "\nphases:")
	for _, p := range c.phases {
		state := "ok"
		if p.bad {
			state = "FAIL"
		}
		fmt.Fprintf(out, "  %-4s %-24s %7.1f s\n", state, p.phase, p.took.Seconds())
	}
	if len(c.skips) > 0 {
		fmt.Fprintf(out, "skipped (%d):\n", len(c.skips))
		slices.SortStableFunc(c.skips, func(a, b skip) int { return strings.Compare(a.kind, b.kind) })
		for _, s := range c.skips {
			fmt.Fprintf(out, "  %-16s %s: %s\n", s.kind, s.what, s.reason)
		}
	}
	if len(c.failures) > 0 {
		fmt.Fprintf(out, "failed (%d):\n", c.failed)
		for _, f := range c.failures {
			fmt.Fprintf(out, "  %s\n", f)
		}
	}
	fmt.Fprintf(out, "%d passed, %d failed\n", c.passed, c.failed)
}

var closing = regexp.MustCompile(`^(\d+) passed, (\d+) failed$`)

// closingLine reads a script's own counts from its last line.
func closingLine(line string) (passed, failed int, ok bool) {
	if !closing.MatchString(line) {
		return 0, 0, false
	}
	_, err := fmt.Sscanf(line, "%d passed, %d failed", &passed, &failed)
	return passed, failed, err == nil
}
