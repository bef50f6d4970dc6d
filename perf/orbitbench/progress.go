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

// clear takes the line away, before something else is written.
func (p *progress) clear() {
	if p.terminal {
		fmt.Fprint(p.to, "\r\033[K")
	}
}
