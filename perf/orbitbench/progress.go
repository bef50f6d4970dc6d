package main

import (
	"fmt"
	"io"
	"time"
)

// progress is one line that is written over; on something that is no terminal a line every few seconds.
type progress struct {
	to       io.Writer
	terminal bool
	start    time.Time
	last     time.Time
}

const quietFor = 5 * time.Second

func (p *progress) show(format string, args ...any) {
	text := fmt.Sprintf("%3.0f s  %s", time.Since(p.start).Seconds(), fmt.Sprintf(format, args...))
	switch {
	case p.terminal:
		if line := []rune(text); len(line) > 110 {
			text = string(line[:110])
		}
		fmt.Fprintf(p.to, "\r\033[K%s", text)
	case time.Since(p.last) >= quietFor:
		p.last = time.Now()
		fmt.Fprintln(p.to, text)
	}
}

// slowAfter is how long a sample or a close may take before it is told: a stall that falls between samples is in no figure.
const slowAfter = 20 * time.Second

// watch tells, once it has ended, of what took too long; call what it returns at the end.
func (p *progress) watch(format string, args ...any) (ended func()) {
	start := time.Now()
	return func() {
		if took := time.Since(start); took >= slowAfter {
			p.clear()
			fmt.Fprintf(p.to, "%3.0f s  this took %.0f s: %s\n", time.Since(p.start).Seconds(), took.Seconds(), fmt.Sprintf(format, args...))
		}
	}
}

// clear takes the line away, before something else is written.
func (p *progress) clear() {
	if p.terminal {
		fmt.Fprint(p.to, "\r\033[K")
	}
}
