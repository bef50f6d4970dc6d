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
	given   map[string]bool // by name: those that the command line has
}

const usage = `Usage: orbitbench [flags]             measure the workloads
       orbitbench check [flags]       measure the targets in about a minute; exit status 1 if one is short
       orbitbench list                name the workloads and the targets
       orbitbench report FILE.jsonl   make FILE.html of a run again

Measures the engine beside raw loops and programs of others, in the same run, interleaved. Exit status: 0 done, 1 a
target is short or the run failed, 2 a wrong command line. Flags may stand before or behind the command.

`

func main() {
	if len(os.Args) > 1 && os.Args[1] == baselines.DuoArgument { // a helper for one tool of others
		baselines.DuoMain(os.Args[2:])
		return
	}
	f, words, err := parse(os.Args[1:], os.Stderr)
	if err == nil {
		err = f.command(words)
	}
	os.Exit(status(err, os.Stderr))
}

// status is the exit status of an error, which is told where it says more than what was printed.
func status(err error, told io.Writer) int {
	var wrong *usageError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errShort):
		return 1
	case errors.As(err, &wrong):
		fmt.Fprintf(told, "orbitbench: %v\n(orbitbench -h explains commands and flags)\n", err)
		return 2
	}
	fmt.Fprintln(told, "orbitbench:", err)
	return 1
}

var errShort = errors.New("a target is short")

// usageError is a command line that says nothing that can be done.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func wrong(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// parse reads flags and words of a command line in any order.
func parse(args []string, told io.Writer) (f *flags, words []string, err error) {
	f = &flags{given: map[string]bool{}}
	set := f.set()
	set.SetOutput(io.Discard) // what is wrong is told by status
	set.Usage = func() {}
	for len(args) > 0 {
		if err := set.Parse(args); errors.Is(err, flag.ErrHelp) {
			set.SetOutput(told)
			fmt.Fprint(told, usage)
			set.PrintDefaults()
			return f, words, err
		} else if err != nil {
			return f, words, wrong("%v", err)
		}
		if args = set.Args(); len(args) > 0 {
			words, args = append(words, args[0]), args[1:]
		}
	}
	set.Visit(func(one *flag.Flag) { f.given[one.Name] = true })
	return f, words, nil
}

// set are the flags.
func (f *flags) set() *flag.FlagSet {
	set := flag.NewFlagSet("orbitbench", flag.ContinueOnError)
	set.IntVar(&f.rounds, "rounds", 5, "rounds of each group; medians count")
	set.DurationVar(&f.window, "window", 100*time.Millisecond, "how long one sample should take")
	set.StringVar(&f.only, "only", "", "measure only groups whose workload or name contains this, or targets; several: a,b")
	set.StringVar(&f.subject, "subject", "", "of the chosen groups measure only the subjects (several, maybe) whose name contains this, for a profiler")
	set.StringVar(&f.kernel, "kernel", "auto", "auto, io_uring or epoll, where the kernel is not what varies")
	set.StringVar(&f.out, "out", "", "write FILE.jsonl and FILE.html as well; in a folder that is there; a FILE.jsonl that is there is never written over")
	set.StringVar(&f.peers, "peers", "", "program with gnet and grpc-go (perf/peers, built); empty: it is built where it is measured")
	set.BoolVar(&f.full, "full", false, "bulk in every progress mode, on both kernels, in batches of one and of many")
	set.BoolVar(&f.source, "source", false, "be the source process (used by the program itself)")
	set.StringVar(&f.profile, "profile", "", "write a CPU profile of the measuring process to this file")
	return set
}

func (f *flags) command(words []string) error {
	word := ""
	if len(words) > 0 {
		word = words[0]
	}
	switch {
	case f.source:
		signal.Ignore(syscall.SIGINT, syscall.SIGTERM) // terminals and timeout(1) send them to the whole group; the end of its input ends the source
		return serveSource()
	case word == "list" && len(words) == 1:
		return list(os.Stdout)
	case word == "report":
		if len(words) != 2 {
			return wrong("report makes the page of one file: orbitbench report FILE.jsonl")
		}
		return remake(words[1])
	case word == "check" && len(words) == 1, word == "":
		if err := f.sensible(word == "check"); err != nil {
			return err
		}
		return f.measure(word == "check")
	}
	return wrong("unknown command %q; there are check, list and report FILE.jsonl, and workloads are measured without one (-only chooses)", strings.Join(words, " "))
}

// sensible refuses what no run can have, or what it would leave unheard.
func (f *flags) sensible(check bool) error {
	for _, name := range []string{"rounds", "window", "subject", "full"} {
		if check && f.given[name] {
			return wrong("-%s does not go with check, which has rounds, windows and subjects of its own; -only, -kernel, -out, -peers and -profile do", name)
		}
	}
	switch {
	case f.rounds < 1:
		return wrong("-rounds is %d; it must be at least 1", f.rounds)
	case f.window <= 0:
		return wrong("-window is %v; it must be above 0", f.window)
	case !slices.Contains([]string{"auto", "io_uring", "epoll"}, f.kernel):
		return wrong("-kernel is %q; it must be auto, io_uring or epoll", f.kernel)
	}
	if check {
		return f.findTargets()
	}
	return f.findGroups()
}

func (f *flags) options() options { return options{kernel: f.kernel, full: f.full} }

// findGroups refuses words of -only that no group has, and a -subject that none of the chosen ones has.
func (f *flags) findGroups() error {
	for word := range strings.SplitSeq(f.only, ",") {
		if len(selected(f.options(), word)) == 0 {
			return wrong("-only %q: no workload and no group has that in its name; orbitbench list names the workloads", word)
		}
	}
	if len(f.groups(false)) == 0 {
		return wrong("-subject %q: no subject of the chosen groups has that in its name; names are those of the table's first column", f.subject)
	}
	return nil
}

// findTargets refuses words of -only that no target has.
func (f *flags) findTargets() error {
	names := targetNames(f.options())
	for word := range strings.SplitSeq(f.only, ",") {
		if f.only != "" && !slices.ContainsFunc(names, func(name string) bool { return matchesAny(name, word) }) {
			return wrong("check -only %q: no target has that in its name; there are %s", word, strings.Join(names, ", "))
		}
	}
	return nil
}

func targetNames(o options) (names []string) {
	for _, e := range examinations(o) {
		for _, a := range e.aims {
			names = append(names, a.name)
		}
	}
	return names
}

func list(w io.Writer) error {
	var b strings.Builder
	for _, l := range workloads {
		fmt.Fprintf(&b, "%-14s %s\n", l.name, l.about)
	}
	fmt.Fprintf(&b, "\ntargets of check: %s\n", strings.Join(targetNames(options{kernel: "auto"}), ", "))
	_, err := io.WriteString(w, b.String())
	return err
}

// measure is a run: workloads, or the targets.
func (f *flags) measure(check bool) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := usablePeers(f.peers); err != nil {
		return err
	}
	machine := thisMachine() // before there is a result, which could count as a change
	o, err := newOutput(f.out)
	if err != nil {
		return err
	}
	stopProfile, err := startProfile(f.profile)
	if err != nil {
		return errors.Join(err, o.abandon())
	}
	defer stopProfile()
	o.run.Machine = machine
	p := &progress{to: os.Stderr, terminal: isTerminal(os.Stderr), start: time.Now()}
	b, err := newBench(f.kernel)
	if err != nil {
		return errors.Join(err, o.abandon())
	}
	defer b.close()
	b.peers.path, b.brief = f.peers, check
	others := errUnneeded
	if wanted(f.groups(check)) {
		p.show("building gnet and grpc-go (perf/peers)")
		others = b.peers.build(ctx)
	}
	o.note(b, others)
	if check {
		err = f.check(ctx, b, p, o, os.Stdout)
	} else {
		err = f.workloads(ctx, b, p, o)
	}
	p.clear()
	if ctx.Err() != nil {
		err = distinct(err, errInterrupted)
	}
	return distinct(err, o.finish(b, endOf(err)))
}

// endOf is the closing line of a run that ended so.
func endOf(err error) figures.End {
	end := figures.End{Time: now(), Load: load(), Interrupted: errors.Is(err, errInterrupted)}
	if err != nil && !end.Interrupted && !errors.Is(err, errShort) {
		end.Failed = oneLine(err.Error())
	}
	return end
}

// errInterrupted is an error since targets that were not measured are not met.
var errInterrupted = errors.New("interrupted: what was measured until then was told, the rest was not measured")

// legend says what the tables' columns are, and those of the page and the lines that have no room in a table.
const legend = `* baseline: the best of a group's baselines over all rounds is what a ratio is held against, round by round;
  p50 to p99.9 are times of one list of requests by SubmitAndWait, whatever its size; rates are medians of the rounds, beside them the least and the greatest;
  prepare, post and transfer (page and JSON lines of -out) are means of a few other submissions, by Submit and Wait: they do not add up to p50`

func (f *flags) workloads(ctx context.Context, b *bench, p *progress, o *output) error {
	r := &runner{bench: b, rounds: f.rounds, window: f.window, progress: p, emit: func(group string, cells []*figures.Cell) error {
		p.clear()
		return errors.Join(figures.WriteTable(os.Stdout, group, cells), o.cells(cells))
	}}
	fmt.Println(legend)
	return r.run(ctx, f.groups(false))
}

// groups are those that a run measures.
func (f *flags) groups(check bool) (list []group) {
	if !check {
		return narrowed(selected(f.options(), f.only), f.subject)
	}
	for _, e := range f.examinations() {
		list = append(list, e.group)
	}
	return list
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
