package main

import (
	"context"
	"slices"
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

// Where others want the processors, who spins waits for them: the better of the two raw ping-pongs counts in the table,
// while the targets keep the spinning one, as the plan says.
func TestLatencyIsHeldAgainstTheBetterOfSpinningAndBlocking(t *testing.T) {
	for _, g := range latencyGroups(options{kernel: "auto"}) {
		var entries []*entry
		for _, s := range g.subjects {
			if s.baseline || s.name == options.staged(options{kernel: "io_uring"}).name() {
				e := fakeEntry(s.name)
				e.subject = s
				for _, micros := range map[string][]int{spinning.name: {236, 8, 240}, blocking.name: {20, 40, 20}}[s.name] {
					e.samples = append(e.samples, timedSample(micros))
				}
				entries = append(entries, e)
			}
		}
		if len(entries) != 3 {
			t.Fatalf("%s: %d baselines and own subjects, want 2 and 1", g.name, len(entries))
		}
		own := entries[2]
		for _, micros := range []int{22, 44, 22} {
			own.samples = append(own.samples, timedSample(micros))
		}
		c := cellsOf(g, entries)[2]
		if c.Ratio == nil || c.Ratio.Median < 1.09 || c.Ratio.High > 1.11 || c.Against != spinning.name+" / "+blocking.name {
			t.Errorf("%s: ratio %+v against %q; want 1.1 in each round, against the blocking one", g.name, c.Ratio, c.Against)
		}
	}
	for _, e := range examinations(options{kernel: "auto"}) {
		for _, a := range e.aims {
			if strings.HasPrefix(a.name, "read-") && !slices.Equal(a.theirs, []string{spinning.name}) {
				t.Errorf("%s is judged against %q", a.name, a.theirs)
			}
		}
	}
}

func timedSample(micros int) figures.Sample {
	s := figures.Sample{Operations: 1, Seconds: 1, Latency: figures.NewHistogram()}
	s.Latency.Record(time.Duration(micros) * time.Microsecond)
	return s
}
