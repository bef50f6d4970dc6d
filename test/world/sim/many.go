package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// tally is what all children found together.
type tally struct {
	mu        sync.Mutex
	settings  *settings
	next      uint64
	done      uint64
	turns     int
	requests  int
	failures  []answer
	counts    map[string]int
	start     time.Time
	lastShown time.Time
}

// progressEvery is how often a line tells how far it is.
const progressEvery = 10 * time.Second

// many runs all seeds, one child process for each job.
func (s *settings) many() int {
	t := &tally{settings: s, next: s.first, counts: map[string]int{}, start: time.Now(), lastShown: time.Now()}
	var group sync.WaitGroup
	for range max(1, s.jobs) {
		group.Add(1)
		go func() {
			defer group.Done()
			if err := t.work(); err != nil {
				fmt.Fprintln(os.Stderr, "sim:", err)
			}
		}()
	}
	group.Wait()
	t.report()
	if len(t.failures) > 0 || t.done < s.seeds {
		return 1
	}
	return 0
}

// seed hands out the next seed; false when there is none, or enough has failed.
func (t *tally) seed() (uint64, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.next >= t.settings.first+t.settings.seeds || len(t.failures) >= t.settings.failures {
		return 0, false
	}
	t.next++
	return t.next - 1, true
}

// work keeps one child busy, and replaces it when it has died.
func (t *tally) work() error {
	var c *child
	defer func() {
		if c != nil {
			c.stop()
		}
	}()
	for {
		seed, ok := t.seed()
		if !ok {
			return nil
		}
		if c == nil {
			var err error
			if c, err = startChild(t.settings.turns); err != nil {
				c = nil
				return err
			}
		}
		a, alive := c.run(seed, t.settings.patience)
		if !alive {
			c = nil
		}
		t.add(a)
	}
}

func (t *tally) add(a answer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done++
	t.turns += a.Turns
	t.requests += a.Requests
	for k, n := range a.Counts {
		t.counts[k] += n
	}
	if a.Violation != nil {
		t.failures = append(t.failures, a)
		fmt.Printf("FAILED SEED=%d TURNS=%d %v\nreplay: %s\n", a.Seed, t.settings.turns, a.Violation, t.settings.replaySeed(a.Seed))
	}
	if now := time.Now(); now.Sub(t.lastShown) > progressEvery {
		t.lastShown = now
		fmt.Printf("%d of %d seeds, %d failures, %.0f seeds/s\n", t.done, t.settings.seeds, len(t.failures), t.rate())
	}
}

func (t *tally) rate() float64 { return float64(t.done) / time.Since(t.start).Seconds() }

// report prints how often each action, fault and outcome occurred, then the sum.
func (t *tally) report() {
	for _, group := range []string{"action ", "fault ", ""} {
		for _, k := range slices.Sorted(maps.Keys(t.counts)) {
			kind := ""
			for _, prefix := range []string{"action ", "fault "} {
				if strings.HasPrefix(k, prefix) {
					kind = prefix
				}
			}
			if kind == group {
				fmt.Printf("%9d  %s\n", t.counts[k], k)
			}
		}
	}
	for _, a := range t.failures { // again, since the table has pushed them away
		fmt.Printf("FAILED %s: %s\n", t.settings.replaySeed(a.Seed), first(a.Violation))
	}
	if len(t.failures) >= t.settings.failures {
		fmt.Printf("stopped after %d failures, before the end of the %d seeds\n", len(t.failures), t.settings.seeds)
	}
	fmt.Printf("%d seeds, %d turns, %d requests, %d failures; %.0f seeds/s, %v\n",
		t.done, t.turns, t.requests, len(t.failures), t.rate(), time.Since(t.start).Round(time.Second))
}
