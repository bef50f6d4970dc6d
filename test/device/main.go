package main

import (
	"flag"
	"fmt"
	"os"
	"time"
)

// commit is set by build.sh.
var commit = "unknown"

func main() {
	name, args := "", os.Args[1:]
	if len(args) > 0 {
		name = args[0]
	}
	switch name {
	case "probe":
		os.Exit(leave(probe(args[1:])))
	case "pair":
		os.Exit(leave(pair(args[1:])))
	case "bandwidth":
		os.Exit(leave(bandwidth(args[1:])))
	}
	flags := flag.NewFlagSet("device", flag.ExitOnError)
	out := flags.String("out", defaultOut(), "folder of gpu.json and gpu.txt")
	limit := flags.Duration("limit", 7*time.Minute+30*time.Second, "of the whole gate")
	driver := flags.String("driver", "libcuda.so.1", "the CUDA driver's library")
	_ = flags.Parse(args)
	g, err := newGate(*out, *limit, *driver)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(g.run(parts, flags.Args()))
}

// defaultOut is $OUT where that is set, otherwise results beside the program.
func defaultOut() string {
	if out := os.Getenv("OUT"); out != "" {
		return out
	}
	return beside("results")
}

// leave ends a part: an absence is told on the last line.
func leave(err error) int {
	switch absent := absence(err); {
	case err == nil:
		return 0
	case absent != "":
		fmt.Println(absent)
		return absentStatus
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}
