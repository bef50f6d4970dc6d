package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	limit := flag.Duration("limit", 0, "stop after this time and count what is unfinished as failed; 0: no limit")
	fuzzTime := flag.Duration("time", 10*time.Minute, "how long each fuzz target runs")
	parallel := flag.Int("parallel", 0, "fuzz workers; 0: one per CPU")
	flag.Parse()

	// Children are in groups of their own: an interrupted run has to end them itself.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *limit)
		defer cancel()
	}
	r := &runner{ctx: ctx, out: os.Stdout, counts: &counts{}}
	switch flag.Arg(0) {
	case "", "test":
		if !r.runPhases(tail(flag.Args())) {
			os.Exit(2)
		}
	case "fuzz":
		r.fuzz(tail(flag.Args()), *fuzzTime, *parallel)
	default:
		fmt.Fprintf(os.Stderr, "summary: unknown command %q; it knows test and fuzz\n", flag.Arg(0))
		os.Exit(2)
	}
	r.close()
	if r.counts.failed > 0 {
		os.Exit(1)
	}
}

func tail(args []string) []string {
	if len(args) == 0 {
		return nil
	}
	return args[1:]
}
