package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/orbitte/orbitte/test/faults"
	"github.com/orbitte/orbitte/test/world"
)

type settings struct {
	seeds, first, seed uint64
	turns, jobs        int
	script, shrink     string
	bug                string
	print, child       bool
	patience           time.Duration
	failures           int
	given              map[string]bool // which flags the command line has
}

func main() {
	var s settings
	flag.Uint64Var(&s.seeds, "seeds", 10000, "how many seeds")
	flag.Uint64Var(&s.first, "first", 1, "the first of them")
	flag.Uint64Var(&s.seed, "seed", 0, "run this seed alone and show its history")
	flag.IntVar(&s.turns, "turns", world.TurnsDefault, "turns of a generated script")
	flag.IntVar(&s.jobs, "jobs", runtime.GOMAXPROCS(0), "child processes")
	flag.StringVar(&s.script, "script", "", "run this script and show its history")
	flag.StringVar(&s.shrink, "shrink", "", "make the failing script of -seed or -script short, and write it to this file")
	flag.BoolVar(&s.print, "print", false, "print the script of -seed and run nothing")
	flag.BoolVar(&s.child, "child", false, "serve seeds from standard input")
	flag.DurationVar(&s.patience, "patience", 60*time.Second, "how long a seed may take by the real clock")
	flag.IntVar(&s.failures, "failures", 10, "stop after so many failures")
	flag.StringVar(&s.bug, "bug", "", "what was planted into this program; the commands that replay name it")
	flag.Parse()
	s.given = map[string]bool{}
	flag.Visit(func(f *flag.Flag) { s.given[f.Name] = true })
	if err := s.check(flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		os.Exit(2)
	}
	os.Exit(s.run())
}

// check refuses what would silently do something else than was asked.
func (s *settings) check(rest []string) error {
	one, named := s.given["seed"], s.script != ""
	switch {
	case len(rest) > 0:
		return fmt.Errorf("%q is no flag; there are no arguments beside flags", rest[0])
	case named && (one || s.given["turns"] || s.given["seeds"]):
		return errors.New("a script has its own seed and turns: SCRIPT goes without SEED, SEEDS and TURNS")
	case one && s.given["seeds"]:
		return errors.New("SEED shows one run, SEEDS=n runs many: name one of them (-first begins at another seed)")
	case s.shrink != "" && !one && !named:
		return errors.New("SHRINK needs the failing SEED=n or SCRIPT=file")
	case s.print && !one:
		return errors.New("-print needs -seed")
	case s.seeds == 0 || s.turns < 1:
		return fmt.Errorf("%d seeds of %d turns: at least one of each", s.seeds, s.turns)
	}
	return nil
}

func (s *settings) run() int {
	switch {
	case s.child:
		return serve(os.Stdin, os.Stdout, s.turns)
	case s.script != "":
		text, err := os.ReadFile(s.script)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
		script, err := faults.Parse(string(text))
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", s.script, err)
			return 2
		}
		return s.one(script, s.replay("SCRIPT="+s.script))
	case s.print:
		fmt.Print(world.Generate(s.seed, s.turns))
		return 0
	case s.given["seed"]:
		return s.one(world.Generate(s.seed, s.turns), s.replaySeed(s.seed))
	}
	return s.many()
}

// replay is the command that runs the same again, with the same plant.
func (s *settings) replay(what string) string {
	if s.bug != "" {
		what = "BUG=" + s.bug + " " + what
	}
	return "make sim " + what
}

// replaySeed is the command that gives a seed's history again.
func (s *settings) replaySeed(seed uint64) string {
	return s.replay(fmt.Sprintf("SEED=%d TURNS=%d", seed, s.turns))
}

// one shows a script's run, or makes the script short.
func (s *settings) one(script faults.Script, command string) int {
	if s.shrink != "" {
		return s.cut(script, command)
	}
	return show(script, command)
}

// show runs one script and prints what happened.
func show(script faults.Script, command string) int {
	result := world.Run(script, world.Options{})
	fmt.Print(result.History)
	if result.Violation != nil {
		fmt.Printf("FAILED %v\nreplay: %s\n", result.Violation, command)
		return 1
	}
	fmt.Printf("PASSED %d turns, %d requests, %v of virtual time\n", result.Turns, result.Requests, result.Elapsed)
	return 0
}
