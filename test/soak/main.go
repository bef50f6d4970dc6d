package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// minutesMax is a year: longer plans do not fit the clock.
const minutesMax = 366 * 24 * 60

func main() {
	if spec := os.Getenv(childVariable); spec != "" {
		livePeer(spec)
		return
	}
	minutes := flag.Float64("minutes", 1, "how long the plan is")
	seed := flag.String("seed", "", "of the plan and of each process's choices; empty: a random one")
	peers := flag.Int("peers", 5, "processes, 3 to 6; the first two are never killed")
	pace := flag.Duration("pace", time.Second, "mean time between faults")
	workers := flag.Int("workers", 4, "goroutines that submit, of each engine, at most 4")
	dir := flag.String("dir", "", "folder for the log and what the processes write on standard error; empty: a temporary one")
	show := flag.Bool("plan", false, "print the plan and end")
	flag.Parse()
	o := options{length: time.Duration(*minutes * float64(time.Minute)), peers: *peers, pace: *pace, workers: *workers, dir: *dir, out: os.Stdout}
	o.seed = rand.Uint64()
	if *seed != "" {
		n, err := strconv.ParseUint(*seed, 0, 64)
		if err != nil {
			usage(fmt.Sprintf("-seed %s is no number", *seed))
		}
		o.seed = n
	}
	switch {
	case flag.NArg() > 0:
		usage(fmt.Sprintf("%q is no flag; there are no arguments beside flags", flag.Arg(0)))
	case !(*minutes > 0 && *minutes <= minutesMax): // NaN is neither
		usage(fmt.Sprintf("-minutes %g: more than 0, at most %d", *minutes, int(minutesMax)))
	case *peers <= steady || *peers > peersMax:
		usage(fmt.Sprintf("-peers %d: %d to %d", *peers, steady+1, peersMax))
	case *workers < 1 || *workers > workersMax:
		usage(fmt.Sprintf("-workers %d: 1 to %d", *workers, workersMax))
	case *pace <= 0:
		usage(fmt.Sprintf("-pace %v: more than 0", *pace))
	}
	if *show {
		fmt.Print(planText(plan(o.seed, o.length, o.peers, o.pace)))
		return
	}
	os.Exit(soak(o))
}

func usage(why string) {
	fmt.Fprintln(os.Stderr, "soak:", why)
	flag.Usage()
	os.Exit(2)
}

// soak runs and prints the closing line; the answer is the exit status.
func soak(o options) int {
	var err error
	if o.dir == "" {
		o.dir, err = os.MkdirTemp("", "soak-")
	} else {
		err = os.MkdirAll(o.dir, 0o755)
	}
	var line string
	var failures int
	if err == nil {
		o.dir, err = filepath.Abs(o.dir)
	}
	if err == nil {
		line, failures, err = run(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		return 1
	}
	fmt.Fprintln(o.out, line)
	if failures > 0 {
		fmt.Fprintf(o.out, "again: make soak MINUTES=%.3g SEED=%d\n", o.length.Minutes(), o.seed)
		return 1
	}
	return 0
}
