package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"time"
)

var noDeadline = context.Background()

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "\nfleet:", err)
		os.Exit(1)
	}
}

func run() error {
	seed := flag.Uint64("seed", 1, "what decides every order and delay")
	output := flag.String("json", "", "write one JSON line per cell and slope to this file; empty: to none")
	names := flag.String("sweeps", "", "only the sweeps whose names contain one of these words, separated by commas; empty: all")
	limit := flag.Int("limit", 5000, "leave larger sizes out; 10000 takes ten minutes and 8 GiB")
	count := flag.Int("engines", 1000, "engines of the large fleet; 0: none")
	requests := flag.Int("requests", 100_000, "requests of the large fleet, at least")
	profile := flag.String("cpuprofile", "", "write a CPU profile to this file; empty: none")
	flag.Parse()
	if flag.NArg() > 0 {
		return errors.New("there are no arguments beside flags")
	}
	if *profile != "" {
		file, err := os.Create(*profile)
		if err != nil {
			return err
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	results := &bytes.Buffer{}
	if err := lines(results, []map[string]any{machine(*seed)}); err != nil {
		return err
	}
	var slopes []slope
	for _, s := range sweeps() {
		if !chosen(s.name, *names) {
			continue
		}
		cells, err := s.run(plan{*seed, measured, 4095}, *limit)
		if err != nil {
			return err
		}
		slopes = append(slopes, table(os.Stdout, s, cells)...)
		if err := lines(results, cells); err != nil {
			return err
		}
	}
	if err := lines(results, slopes); err != nil {
		return err
	}
	if *count > 0 && chosen("fleet", *names) {
		c, err := whole(*seed, *count, *requests)
		if err != nil {
			return err
		}
		if err := lines(results, []cell{c}); err != nil {
			return err
		}
	}
	if *output == "" {
		return nil
	}
	return os.WriteFile(*output, results.Bytes(), 0o644)
}

func chosen(name, words string) bool {
	for word := range strings.SplitSeq(words, ",") {
		if strings.Contains(name, word) {
			return true
		}
	}
	return false
}

// run measures every cell of a sweep.
func (s *sweep) run(p plan, limit int) (cells []cell, err error) {
	for _, n := range s.sizes {
		if n > limit {
			break
		}
		announce("%s %d", s.name, n)
		start := time.Now()
		c := cell{Sweep: s.name, N: n, Metrics: metrics{}}
		if err := s.cell(p, n, c.Metrics); err != nil {
			return nil, fmt.Errorf("%s, %d, SEED=%d: %w", s.name, n, p.seed, err)
		}
		c.Seconds = time.Since(start).Seconds()
		cells = append(cells, c)
	}
	announce("")
	return cells, nil
}

// whole is the large fleet: everything checked, nothing swept.
func whole(seed uint64, n, requests int) (cell, error) {
	announce("fleet of %d engines, %d requests", n, requests)
	start := time.Now()
	c := cell{Sweep: "fleet", N: n, Metrics: metrics{}}
	w, err := newWork(seed, n, requests)
	if err == nil {
		w.tick = func() { announce("fleet of %d engines: %d of %d requests checked", n, w.requests, requests) }
		err = w.measure(c.Metrics)
	}
	if err != nil {
		return c, fmt.Errorf("fleet of %d engines, SEED=%d: %w", n, seed, err)
	}
	c.Seconds = time.Since(start).Seconds()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	c.Metrics["bytes from the system"] = float64(s.Sys)
	announce("")
	fmt.Printf("\nfleet: %d engines, %d requests of %d bytes checked, %d notifications, %d segments; %.1f s, of the virtual clock %.0f ms, Go's memory %d MiB\n",
		n, w.requests, w.bytes, w.notes, int(c.Metrics["segments"]), c.Seconds, c.Metrics["virtual ns per request"]*float64(w.requests)/1e6, s.Sys>>20)
	return c, nil
}

// announce replaces the progress line, where somebody can see it being replaced.
func announce(format string, a ...any) {
	if info, err := os.Stderr.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return
	}
	fmt.Fprintf(os.Stderr, "\r\x1b[K"+format, a...)
}
