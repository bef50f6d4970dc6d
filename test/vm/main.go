package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const usage = `usage: vm run [options] -- COMMAND [ARG ...]   run a command of this machine in a guest
       vm baseline [options]                   perftest's figures as JSON
       vm gate [-part NAME]                    the soft-RoCE gate, as go test -json and a table
       vm prepare [options]                    install and download what a guest takes
Exit status of run: the command's; 124 time limit; 125 the guest panicked, hung, died or could not be set up;
77 no guest can be booted here. What happened is told on standard error. Options of each: vm run -h`

func main() {
	if os.Getpid() == 1 {
		asInit()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
	command, args := os.Args[1], os.Args[2:]
	do := map[string]func(context.Context, []string) (int, error){"run": run, "baseline": baseline, "gate": gate, "prepare": prepare}[command]
	if do == nil {
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
	status, err := do(ctx, args)
	var no *cannot
	switch {
	case errors.As(err, &no):
		fmt.Println(no) // the last line is the reason of a skip
		status = exitCannot
	case err != nil:
		fmt.Fprintln(os.Stderr, "vm:", err)
		status = max(status, 1)
	}
	os.Exit(status)
}

func say(text string) { fmt.Fprintln(os.Stderr, "vm:", text) }

// options are the flags of everything that boots.
type options struct {
	*flag.FlagSet
	machine machine
	kernel  string
	verbose bool
}

func newOptions(name string) *options {
	o := &options{FlagSet: flag.NewFlagSet("vm "+name, flag.ExitOnError)}
	m := &o.machine
	m.Stdout, m.Stderr, m.Say = os.Stdout, os.Stderr, say
	o.StringVar(&o.kernel, "kernel", kernelDefault, "Debian's kernel: 6.12 or 6.1")
	o.StringVar(&m.Net, "net", "two", "two: both ends of each wire in one guest; pair: two guests; none")
	o.IntVar(&m.Wires, "wires", 1, "wires, 1 to 4; a wire has an RDMA device at each end")
	o.StringVar(&m.Share, "share", ".", "folder that the guest may write")
	o.StringVar(&m.Dir, "dir", "", "working folder of the command (default: the share)")
	o.DurationVar(&m.Limit, "limit", 2*time.Minute, "wall time of the command; a boot has three minutes beside it")
	o.IntVar(&m.Memory, "memory", 512, "MiB for each guest")
	o.IntVar(&m.CPUs, "cpus", 2, "processors of each guest")
	o.BoolVar(&m.Plain, "plain", false, "of a pair, the lines of guest 1 stay as they are; all of guest 2 goes to standard error, with 2| before it")
	o.BoolVar(&o.verbose, "v", false, "print the guest's kernel log and the times")
	o.Func("env", "NAME=VALUE for the command; may be repeated", func(v string) error {
		m.Env = append(m.Env, v)
		return nil
	})
	return o
}

// prepareMachine fills in what the flags say and what booting takes.
func (o *options) prepareMachine(needs ...need) error {
	m := &o.machine
	if m.Wires < 1 || m.Wires > 4 || m.CPUs < 1 || m.Memory < 256 || m.Limit <= 0 {
		return errors.New("-wires is 1 to 4, -cpus at least 1, -memory at least 256, -limit above 0")
	}
	if m.Net != "two" && m.Net != "pair" && m.Net != "none" {
		return fmt.Errorf("-net %q: it is one of two, pair, none", m.Net)
	}
	var err error
	if m.Share, err = realPath(m.Share); err != nil {
		return err
	}
	if slices.Contains([]string{"/", "/run", "/dev", "/proc", "/sys"}, m.Share) {
		return fmt.Errorf("-share %s would hide what the guest mounts there; name a folder below", m.Share)
	}
	if m.Dir, err = realPath(cmp.Or(m.Dir, m.Share)); err != nil {
		return err
	}
	if own := hiddenIn(m.Dir, m.Share); own != "" {
		return fmt.Errorf("-dir %s: the guest has a %s of its own; let -share hold it", m.Dir, own)
	}
	if m.Init, err = os.Executable(); err != nil {
		return err
	}
	cache, err := cacheFolder()
	if err != nil {
		return err
	}
	if err := install(append(machineNeeds, needs...), cache, say); err != nil {
		return err
	}
	m.Kernel, err = findKernel(o.kernel, cache, say)
	return err
}

func realPath(name string) (string, error) {
	path, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

// program makes a path to a program absolute and refuses one that the guest cannot see.
func (m *machine) program(name string) (string, error) {
	if !strings.Contains(name, "/") {
		return name, nil // looked up in the guest
	}
	path, err := realPath(name)
	if err != nil {
		return "", err
	}
	if own := hiddenIn(path, m.Share); own != "" {
		return "", fmt.Errorf("%s: the guest has a %s of its own; name the program's folder with -share", path, own)
	}
	return path, nil
}

func run(ctx context.Context, args []string) (int, error) {
	o := newOptions("run")
	withParent := o.Bool("with-parent", false, "end the run when the process that started it ends")
	_ = o.Parse(args) // it exits by itself
	if *withParent {
		if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGTERM), 0, 0, 0); err != nil {
			return 1, err
		}
	}
	if o.NArg() == 0 {
		return 2, errors.New("run: no command; put -- before it")
	}
	if err := o.prepareMachine(); err != nil {
		return 1, err
	}
	program, err := o.machine.program(o.Arg(0))
	if err != nil {
		return 2, err
	}
	o.machine.Args = append([]string{program}, o.Args()[1:]...)
	results, err := o.machine.run(ctx)
	if ctx.Err() != nil {
		return 130, errors.New("interrupted")
	}
	return report(results, o.verbose), err
}

// report tells what did not go as it should and gives the exit status of a run: the first guest's that is not 0.
func report(results []result, verbose bool) int {
	status := 0
	for i, r := range results {
		if r.Ended != endExited && r.Console != "" || verbose {
			fmt.Fprintln(os.Stderr, lastLines(r.Console, 40))
		}
		if r.Ended != endExited || verbose {
			say(fmt.Sprintf("guest %d: %s: %s (exit status %d, boots %d, boot %.1f s, run %.1f s)",
				i+1, r.Ended, r.Detail, r.status(), r.Boots, r.Boot.Seconds(), r.Run.Seconds()))
		}
		if status == 0 {
			status = r.status()
		}
	}
	return status
}

func prepare(_ context.Context, args []string) (int, error) {
	o := newOptions("prepare")
	_ = o.Parse(args) // it exits by itself
	return 0, o.prepareMachine(gateNeeds...)
}
