package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/orbitte/orbitte/perf/figures"
)

// The round that warms up is none of those that the user asked for, so the last one that is told is the last one there is.
func TestProgressCountsTheRoundsThatWereAskedFor(t *testing.T) {
	subjects := []subject{{name: "s", measure: func(context.Context, *bench, int) (figures.Sample, error) {
		return figures.Sample{Bytes: 1e9, Seconds: 1, Operations: 1}, nil
	}}}
	for cold, want := range map[bool]string{
		false: "here, warming up: g: s|here, round 1 of 2: g: s|here, round 2 of 2: g: s|here, counting calls: g: s",
		true:  "here, round 1 of 2: g: s|here, round 2 of 2: g: s",
	} {
		var told strings.Builder
		r := &runner{bench: &bench{}, rounds: 2, window: time.Millisecond, progress: &progress{to: &told, terminal: true, start: time.Now()}}
		r.measure(t.Context(), group{name: "g", figure: figures.Rate, cold: cold, subjects: subjects}, "here")
		lines := strings.Split(strings.ReplaceAll(told.String(), "  0 s  ", ""), "\r\033[K")
		if got := strings.Join(lines[1:], "|"); got != want {
			t.Errorf("cold %v: told\n%s, want\n%s", cold, got, want)
		}
	}
}
