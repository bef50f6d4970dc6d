package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// cell is one line of the results.
type cell struct {
	Sweep   string  `json:"sweep"`
	N       int     `json:"n"`
	Seconds float64 `json:"seconds"` // of wall time
	Metrics metrics `json:"metrics"`
}

// slope is how one figure grows with the size: figure ~ size^exponent.
type slope struct {
	Sweep    string  `json:"sweep"`
	Figure   string  `json:"figure"`
	Exponent float64 `json:"exponent"` // fitted over all sizes
	Last     float64 `json:"last"`     // between the last two
}

// fit is the least-squares line through (log size, log figure). ok is false when a figure is not above zero, or
// there are too few.
func fit(sizes []int, figures []float64) (exponent float64, ok bool) {
	if len(sizes) < 2 {
		return 0, false
	}
	var sx, sy, sxx, sxy float64
	for i, size := range sizes {
		if !(figures[i] > 0) {
			return 0, false
		}
		x, y := math.Log(float64(size)), math.Log(figures[i])
		sx, sy, sxx, sxy = sx+x, sy+y, sxx+x*x, sxy+x*y
	}
	n := float64(len(sizes))
	return (n*sxy - sx*sy) / (n*sxx - sx*sx), true
}

// table writes one sweep: a column for each size, a row for each figure, and the slope.
func table(out io.Writer, s sweep, cells []cell) (slopes []slope) {
	names := map[string]bool{}
	for _, c := range cells {
		for name, figure := range c.Metrics {
			names[name] = names[name] || figure != 0
		}
	}
	maps.DeleteFunc(names, func(_ string, moves bool) bool { return !moves })
	sorted := slices.SortedFunc(maps.Keys(names), func(a, b string) int { return strings.Compare(unitOf(a)+a, unitOf(b)+b) })
	fmt.Fprintf(out, "\n%s: %s\n%-50s", s.name, s.of, "")
	sizes := make([]int, len(cells))
	for i, c := range cells {
		sizes[i] = c.N
		fmt.Fprintf(out, "%12d", c.N)
	}
	fmt.Fprintf(out, "%8s%8s\n", "slope", "last")
	for _, name := range sorted {
		figures := make([]float64, len(cells))
		fmt.Fprintf(out, "%-50s", name)
		for i, c := range cells {
			figures[i] = c.Metrics[name]
			fmt.Fprintf(out, "%12s", number(figures[i]))
		}
		if exponent, ok := fit(sizes, figures); ok {
			last, _ := fit(sizes[len(sizes)-2:], figures[len(sizes)-2:])
			slopes = append(slopes, slope{s.name, name, round(exponent), round(last)})
			fmt.Fprintf(out, "%8.2f%8.2f", exponent, last)
		}
		fmt.Fprintln(out)
	}
	return slopes
}

// unitOf groups figures: those of one thing stand together.
func unitOf(name string) string {
	_, unit, _ := strings.Cut(name, " per ")
	return unit
}

func round(v float64) float64 { return math.Round(v*1000) / 1000 }

func number(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// machine is the first line of the results.
func machine(seed uint64) map[string]any {
	commit := "unknown"
	if text, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output(); err == nil {
		commit = strings.TrimSpace(string(text))
	}
	return map[string]any{
		"date": time.Now().UTC().Format(time.DateOnly), "seed": seed, "go": runtime.Version(), "arch": runtime.GOARCH,
		"cpus": runtime.NumCPU(), "cpu": first("/proc/cpuinfo", "model name"), "kernel": strings.TrimSpace(read("/proc/sys/kernel/osrelease")),
		"commit": commit, "command": strings.Join(append([]string{"go run ./test/world/fleet"}, os.Args[1:]...), " "),
	}
}

func read(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(text)
}

// first is the value of the first "key : value" line with this key.
func first(path, key string) string {
	for line := range strings.Lines(read(path)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// lines writes values as JSON, one a line.
func lines[T any](out io.Writer, values []T) error {
	encoder := json.NewEncoder(out)
	for _, v := range values {
		if err := encoder.Encode(v); err != nil {
			return err
		}
	}
	return nil
}
