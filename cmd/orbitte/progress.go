package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// meter shows how far one file has come.
type meter struct {
	w           io.Writer
	style       string // bar, plain or none
	name        string
	total, done uint64
	began       time.Time
	shown       time.Time
}

func newMeter(w io.Writer, style, name string, total uint64) *meter {
	if style == "auto" {
		style = "plain"
		if f, ok := w.(*os.File); ok && terminal(f) {
			style = "bar"
		}
	}
	now := time.Now()
	return &meter{w: w, style: style, name: name, total: total, began: now, shown: now}
}

// terminal is true exactly when the file answers like one.
func terminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// add counts n bytes more and shows them, a bar ten times a second at most, a line once.
func (m *meter) add(n uint64) {
	m.done += n
	pause := time.Second
	if m.style == "bar" {
		pause = time.Second / 10
	}
	now := time.Now()
	if m.style == "none" || m.done < m.total && now.Sub(m.shown) < pause {
		return
	}
	m.shown = now
	m.show(now)
}

const barCells = 30

func (m *meter) show(now time.Time) {
	percent := 100.0
	if m.total > 0 {
		percent = float64(m.done) / float64(m.total) * 100
	}
	speed := rate(m.done, now.Sub(m.began).Seconds())
	if m.style != "bar" {
		fmt.Fprintf(m.w, "%s: %.0f %%, %d of %d bytes, %s\n", m.name, percent, m.done, m.total, speed)
		return
	}
	full := int(percent / 100 * barCells)
	fmt.Fprintf(m.w, "\r%s [%s%s] %3.0f %%  %.1f of %.1f MiB  %-12s", m.name, strings.Repeat("#", full), strings.Repeat("-", barCells-full),
		percent, float64(m.done)/(1<<20), float64(m.total)/(1<<20), speed)
}

// end leaves the bar's line, whether or not the file was completed.
func (m *meter) end() {
	if m.style == "bar" && m.done > 0 {
		fmt.Fprintln(m.w)
	}
}
