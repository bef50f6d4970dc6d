package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/orbitte/orbitte/perf/baselines"
	"github.com/orbitte/orbitte/perf/figures"
)

// flags of the command line.
type flags struct {
	rounds  int
	window  time.Duration
	only    string
	kernel  string
	subject string
	out     string
	peers   string
	full    bool
	source  bool
	profile string
}

const usage = `Usage: orbitbench [flags]             measure the workloads
       orbitbench [flags] check       measure the targets in under a minute; exit status 1 if one is short
       orbitbench list                name the workloads
       orbitbench report FILE.jsonl   make FILE.html of a run again

Measures the engine beside raw loops and programs of others, in the same run, interleaved.

`

func main() {
	if len(os.Args) > 1 && os.Args[1] == baselines.DuoArgument { // a helper for one tool of others
		baselines.DuoMain(os.Args[2:])
		return
	}
	var f flags
	flag.IntVar(&f.rounds, "rounds", 5, "rounds of each group; medians count")
	flag.DurationVar(&f.window, "window", 100*time.Millisecond, "how long one sample should take")
	flag.StringVar(&f.only, "only", "", "measure only groups whose workload or name contains this; several: a,b")
	flag.StringVar(&f.subject, "subject", "", "of the chosen groups measure only the subjects (several, maybe) whose name contains this, for a profiler")
	flag.StringVar(&f.kernel, "kernel", "auto", "auto, io_uring or epoll, where the kernel is not what varies")
	flag.StringVar(&f.out, "out", "", "write FILE.jsonl and FILE.html as well")
	flag.StringVar(&f.peers, "peers", "", "program with gnet and grpc-go (perf/peers, built); empty: it is built")
	flag.BoolVar(&f.full, "full", false, "bulk in every progress mode, on both kernels, in batches of one and of many")
	flag.BoolVar(&f.source, "source", false, "be the source process (used by the program itself)")
	flag.StringVar(&f.profile, "profile", "", "write a CPU profile of the measuring process to this file")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	if err := f.command(flag.Args()); err != nil {
		if !errors.Is(err, errShort) {
			fmt.Fprintln(os.Stderr, "orbitbench:", err)
		}
		os.Exit(1)
	}
}

var errShort = errors.New("a target is short")

func (f *flags) command(args []string) error {
	word := ""
	if len(args) > 0 {
		word = args[0]
	}
	switch {
	case f.source:
		signal.Ignore(syscall.SIGINT) // a terminal sends it to the whole group; the end of its input ends the source
		return serveSource()
	case word == "list":
		return list(os.Stdout)
	case word == "report" && len(args) == 2:
		return remake(args[1])
	case word == "check", word == "":
		if err := f.sensible(); err != nil {
			return err
		}
		return f.measure(word == "check")
	}
	flag.Usage()
	return fmt.Errorf("unknown command %q", strings.Join(args, " "))
}

// sensible refuses flags that no run can have.
func (f *flags) sensible() error {
	switch {
	case f.rounds < 1:
		return fmt.Errorf("-rounds is %d; it must be at least 1", f.rounds)
	case f.window <= 0:
		return fmt.Errorf("-window is %v; it must be above 0", f.window)
	case !slices.Contains([]string{"auto", "io_uring", "epoll"}, f.kernel):
		return fmt.Errorf("-kernel is %q; it must be auto, io_uring or epoll", f.kernel)
	}
	return nil
}

func list(w io.Writer) error {
	for _, l := range workloads {
		if _, err := fmt.Fprintf(w, "%-14s %s\n", l.name, l.about); err != nil {
			return err
		}
	}
	return nil
}

// measure is a run: workloads, or the targets.
func (f *flags) measure(check bool) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	stopProfile, err := startProfile(f.profile)
	if err != nil {
		return err
	}
	defer stopProfile()
	machine := thisMachine() // before a result is written over, which would count as a change
	o, err := newOutput(f.out)
	if err != nil {
		return err
	}
	o.run.Machine = machine
	p := &progress{to: os.Stderr, terminal: isTerminal(os.Stderr), start: time.Now()}
	b, err := newBench(f.kernel)
	if err != nil {
		return err
	}
	defer b.close()
	b.peers.path = f.peers
	p.show("building gnet and grpc-go (perf/peers)")
	o.note(b, b.peers.build(ctx))
	if b.brief = check; check {
		err = f.check(ctx, b, p, o)
	} else {
		err = f.workloads(ctx, b, p, o)
	}
	p.clear()
	if ctx.Err() != nil {
		fmt.Fprintln(os.Stderr, "interrupted: what was measured until then is written")
	}
	return errors.Join(err, o.finish(b))
}

func (f *flags) workloads(ctx context.Context, b *bench, p *progress, o *output) error {
	r := &runner{bench: b, rounds: f.rounds, window: f.window, progress: p, emit: func(group string, cells []*figures.Cell) error {
		p.clear()
		return errors.Join(figures.WriteTable(os.Stdout, group, cells), o.cells(cells))
	}}
	groups := narrowed(selected(options{kernel: f.kernel, full: f.full}, f.only), f.subject)
	if len(groups) == 0 {
		return fmt.Errorf("no group has %q in its name with a subject %q; orbitbench list names the workloads", f.only, f.subject)
	}
	fmt.Println("* baseline: the best of a group's baselines over all rounds is what a ratio is held against, round by round")
	return r.run(ctx, groups)
}

// selected are the groups that the user wants.
func selected(o options, only string) []group {
	var groups []group
	for _, w := range workloads {
		for _, g := range w.groups(o) {
			for word := range strings.SplitSeq(only, ",") {
				if strings.Contains(strings.ToLower(w.name+": "+g.name), strings.ToLower(strings.TrimSpace(word))) {
					groups = append(groups, g)
					break
				}
			}
		}
	}
	return groups
}

// narrowed keeps the subjects whose name contains a text, and the groups that have one.
func narrowed(groups []group, text string) []group {
	var kept []group
	for _, g := range groups {
		g.subjects = slices.DeleteFunc(g.subjects, func(s subject) bool { return !strings.Contains(s.name, text) })
		if len(g.subjects) > 0 {
			kept = append(kept, g)
		}
	}
	return kept
}

// remake makes the page of a run again.
func remake(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	run, err := figures.ReadRun(file)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	page := strings.TrimSuffix(path, filepath.Ext(path)) + ".html"
	fmt.Println(page)
	return writePage(page, run)
}
