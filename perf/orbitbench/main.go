package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte"
)

// cell is one measurement: the engine against a raw loop.
type cell struct {
	Name     string  `json:"name"`
	Against  string  `json:"against"`
	Unit     string  `json:"unit"`
	Engine   float64 `json:"engine"` // median
	Raw      float64 `json:"raw"`    // median
	Ratio    float64 `json:"ratio"`  // median of the rounds' ratios
	Low      float64 `json:"low"`    // least and greatest ratio of a round
	High     float64 `json:"high"`
	Target   float64 `json:"target"`
	AtMost   bool    `json:"at_most"` // the target is an upper bound
	Rounds   int     `json:"rounds"`
	measured func(*bench) (engine, raw float64, err error)
}

func (c *cell) ok() bool {
	switch {
	case c.Target == 0: // shown, not judged
		return true
	case c.AtMost:
		return c.Ratio <= c.Target
	}
	return c.Ratio >= c.Target
}

func main() {
	rounds := flag.Int("rounds", 7, "rounds per cell; the median counts")
	only := flag.String("only", "", "measure only cells whose name contains this")
	kernel := flag.String("kernel", "auto", "auto, io_uring or epoll")
	out := flag.String("out", "", "also write the results as JSON lines to this file")
	child := flag.Bool("serve", false, "be the source side (used by the program itself)")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "Usage: orbitbench [flags] [check]\n\nMeasures the engine beside raw loops. With check, exits 1 when a target is missed.\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	if *child {
		if err := serve(*kernel); err != nil {
			fmt.Fprintln(os.Stderr, "orbitbench source:", err)
			os.Exit(1)
		}
		return
	}
	short, err := run(*rounds, *only, *kernel, *out)
	if err != nil {
		fmt.Fprintln(os.Stderr, "orbitbench:", err)
		os.Exit(1)
	}
	if short && flag.Arg(0) == "check" {
		os.Exit(1)
	}
}

func kernelOf(name string) orbitte.KernelChoice {
	switch name {
	case "io_uring":
		return orbitte.IOUring
	case "epoll":
		return orbitte.Epoll
	}
	return orbitte.Auto
}

func run(rounds int, only, kernel, out string) (short bool, err error) {
	b, err := newBench(kernel)
	if err != nil {
		return false, err
	}
	defer b.close()
	cells := slices.DeleteFunc(allCells(), func(c *cell) bool { return !strings.Contains(c.Name, only) })
	fmt.Printf("%-24s %12s %12s %8s %15s  %s\n", "name", "engine", "raw", "ratio", "low … high", "target")
	for _, c := range cells {
		if err := c.measure(b, rounds); err != nil {
			return false, fmt.Errorf("%s: %w", c.Name, err)
		}
		word, sign := "ok", "≥"
		if c.AtMost {
			sign = "≤"
		}
		if !c.ok() {
			word, short = "short", true
		}
		verdict := fmt.Sprintf("%s %.2f %s", sign, c.Target, word)
		if c.Target == 0 {
			verdict = "shown beside it"
		}
		fmt.Printf("%-24s %7.2f %-4s %7.2f %-4s %8.2f %6.2f … %-6.2f %s; %s\n", c.Name, c.Engine, c.Unit, c.Raw, c.Unit, c.Ratio, c.Low, c.High, verdict, c.Against)
	}
	if out != "" {
		err = write(out, cells, b)
	}
	return short, err
}

func (c *cell) measure(b *bench, rounds int) error {
	var engine, raw, ratio []float64
	for i := range rounds + 1 {
		fmt.Fprintf(os.Stderr, "\r%s: round %d of %d ", c.Name, i, rounds)
		e, r, err := c.measured(b)
		if err != nil {
			return err
		}
		if i == 0 {
			continue // warm-up
		}
		engine, raw, ratio = append(engine, e), append(raw, r), append(ratio, e/r)
	}
	fmt.Fprint(os.Stderr, "\r\033[K")
	c.Rounds, c.Low, c.High = rounds, slices.Min(ratio), slices.Max(ratio)
	c.Engine, c.Raw, c.Ratio = median(engine), median(raw), median(ratio)
	return nil
}

func median[T float64 | time.Duration](list []T) T {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[len(sorted)/2]
}

// write stores the results with what they were measured on.
func write(path string, cells []*cell, b *bench) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	var name unix.Utsname
	_ = unix.Uname(&name)
	commit := "unknown"
	if text, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output(); err == nil {
		commit = strings.TrimSpace(string(text))
	}
	head := map[string]any{
		"time": time.Now().UTC().Format(time.RFC3339), "go": runtime.Version(), "cpus": runtime.NumCPU(), "arch": runtime.GOARCH,
		"system": unix.ByteSliceToString(name.Release[:]), "kernel": b.kernelName, "commit": commit, "command": strings.Join(os.Args, " "),
	}
	encoder := json.NewEncoder(file)
	if err := encoder.Encode(head); err != nil {
		return err
	}
	for _, c := range cells {
		if err := encoder.Encode(c); err != nil {
			return err
		}
	}
	return file.Close()
}

// sourceHello is what the source side tells.
type sourceHello struct {
	Endpoint, Epoch string
	Address         uint64
}

const rangeBytes = 64 << 20

// modes of the source engines, each with its own lane.
var modes = map[string]orbitte.Config{
	"staged": {Lanes: 1},
	"direct": {Lanes: 1, TCPHostMemory: orbitte.Direct},
	"event":  {Lanes: 1, Progress: orbitte.EventDriven},
	"busy":   {Lanes: 1, Progress: orbitte.Busy},
}

// serve is the child: raw server and one source engine at a time, as the parent asks for it on standard
// input, so that idle engines do not disturb.
func serve(kernel string) error {
	listener, address, err := rawListen()
	if err != nil {
		return err
	}
	go rawServe(listener)
	memory, err := orbitte.Allocate(rangeBytes)
	if err != nil {
		return err
	}
	if err := memory.Prefault(); err != nil {
		return err
	}
	debug.SetGCPercent(400)
	fmt.Println(address)
	in := bufio.NewScanner(os.Stdin)
	var engine *orbitte.Engine
	for in.Scan() {
		engine, err = serveMode(engine, in.Text(), kernel, memory)
		if err != nil {
			return err
		}
	}
	return nil
}
