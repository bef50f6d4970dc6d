package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A target is one fuzz function.
type target struct{ folder, name string }

var fuzzName = regexp.MustCompile(`^Fuzz\w+$`)

// targets lists the fuzz functions of the given packages.
func (r *runner) targets(packages []string) ([]target, error) {
	var found []target
	args := append([]string{"test", "-json", "-list=^Fuzz"}, packages...)
	err := r.lines(goTool(args...), func(line string) {
		var e event
		if json.Unmarshal([]byte(line), &e) != nil {
			fmt.Fprintln(r.out, line)
			return
		}
		if name := strings.TrimSpace(e.Output); e.Action == "output" && fuzzName.MatchString(name) {
			found = append(found, target{e.Package, name})
		}
		if e.Action == "build-output" {
			fmt.Fprint(r.out, e.Output)
		}
	})
	return found, err
}

// fuzz runs each fuzz target for the given time, one after the other. What one finds lies below the
// package's testdata/fuzz and is a seed of go test from then on.
func (r *runner) fuzz(packages []string, each time.Duration, parallel int) {
	if len(packages) == 0 {
		packages = []string{"./..."}
	}
	found, err := r.targets(packages)
	if err != nil {
		fmt.Fprintf(r.out, "    go test -list: %v\n", err)
		r.counts.fail("list fuzz targets")
	}
	if len(found) == 0 {
		r.counts.fail("no fuzz targets found")
	}
	for _, t := range found {
		args := []string{"test", "-run=^$", "-fuzz=^" + t.name + "$", "-fuzztime=" + each.String()}
		if parallel > 0 {
			args = append(args, "-parallel="+strconv.Itoa(parallel))
		}
		r.phase(shorten(t.folder)+" "+t.name, func(name string) { r.check(name, goTool(append(args, t.folder)...)) })
	}
}
