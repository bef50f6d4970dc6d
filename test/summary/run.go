package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const module = "github.com/orbitte/orbitte"

// lineMax is the longest line of a child that is read as one, in bytes.
const lineMax = 16 << 20

// errStopped says that a command did not end by itself.
var errStopped = errors.New("killed: the time limit was reached, or the run was interrupted")

// runner starts processes and counts what they say.
type runner struct {
	ctx    context.Context
	out    io.Writer
	counts *counts
	named  bool // true exactly when the phases to run were named
}

// A command is one process to start.
type command struct {
	folder string   // empty: the repository root
	env    []string // beside the environment
	args   []string
}

func goTool(args ...string) command { return command{args: append([]string{"go"}, args...)} }

// environ is the caller's environment, without stamping versions into test binaries: a checkout that
// belongs to another user would fail there.
func environ(more []string) []string {
	env := os.Environ()
	if flags := os.Getenv("GOFLAGS"); !strings.Contains(flags, "-buildvcs") {
		env = append(env, "GOFLAGS="+strings.TrimSpace(flags+" -buildvcs=false"))
	}
	return append(env, more...)
}

// lines runs a command and hands each line of its output to take. A killed command is an error.
func (r *runner) lines(c command, take func(string)) error {
	cmd := exec.CommandContext(r.ctx, c.args[0], c.args[1:]...)
	cmd.Dir = c.folder
	cmd.Env = environ(c.env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	read, write := io.Pipe()
	cmd.Stdout, cmd.Stderr = write, write
	done := make(chan error, 1)
	go func() {
		scanner := bufio.NewScanner(read)
		scanner.Buffer(make([]byte, 64<<10), lineMax)
		for scanner.Scan() {
			take(scanner.Text())
		}
		done <- scanner.Err()
		_, _ = io.Copy(io.Discard, read) // after a line that is too long, let the child go on
	}()
	err := cmd.Run()
	_ = write.Close() // never fails on a pipe in memory
	scanErr := <-done
	if r.ctx.Err() != nil {
		return errStopped
	}
	return errors.Join(err, scanErr)
}

// show runs a command, prints its lines and returns the last one.
func (r *runner) show(c command) (last string, err error) {
	err = r.lines(c, func(line string) {
		if strings.TrimSpace(line) != "" {
			last = line
		}
		fmt.Fprintln(r.out, "    "+line)
	})
	return last, err
}

// check runs a command that counts as one test.
func (r *runner) check(name string, c command) {
	if _, err := r.show(c); err != nil {
		fmt.Fprintf(r.out, "    %s: %v\n", strings.Join(c.args, " "), err)
		r.counts.fail(name)
		return
	}
	r.counts.pass(1)
}

// test runs go test -json in a folder and counts every test.
func (r *runner) test(name string, c command) {
	col := newCollector(name, r.out, r.counts)
	before := r.counts.failed
	err := r.lines(c, col.line)
	col.abandoned()
	switch {
	case err != nil && r.counts.failed == before:
		fmt.Fprintf(r.out, "    %s: %v\n", strings.Join(c.args, " "), err)
		r.counts.fail(name)
	case err == nil && col.ended == 0:
		fmt.Fprintln(r.out, "    no package has tests")
		r.counts.fail(name + ": no tests found")
	}
}

// phase runs one named step and notes its time.
func (r *runner) phase(name string, step func(name string)) {
	fmt.Fprintf(r.out, "== %s\n", name)
	before, start := r.counts.failed, time.Now()
	if r.ctx.Err() != nil {
		r.counts.fail(name + ": not started")
	} else {
		step(name)
	}
	took := time.Since(start)
	r.counts.phases = append(r.counts.phases, spent{name, took, r.counts.failed > before})
	fmt.Fprintf(r.out, "== %s: %.1f s\n", name, took.Seconds())
}

func (r *runner) close() { r.counts.print(r.out) }
