package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// guest is the host's side of one guest; it lives in one goroutine.
type guest struct {
	machine *machine
	node    int
	prefix  string
	wires   []*os.File
	ready   chan<- struct{} // told when this guest is
	start   <-chan struct{} // closed when all guests are
	result  result
	console tail
	heard   time.Time // the last frame
}

// live boots the guest and follows it to its end; the error is one of the host.
func (g *guest) live(ctx context.Context) error {
	g.result = result{Ended: endDied, Detail: "never started", Boots: 1}
	initrd, err := g.machine.initrd(g.node)
	if err != nil {
		return err
	}
	ours, theirs, err := socketPair(unix.SOCK_STREAM)
	if err != nil {
		return errors.Join(err, initrd.Close())
	}
	cmd := g.machine.qemu(g.node, initrd, theirs, g.wires)
	cmd.Stdout, cmd.Stderr = &g.console, &g.console
	began := time.Now()
	err = cmd.Start()
	for _, file := range append([]*os.File{initrd, theirs}, g.wires...) {
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		return errors.Join(err, ours.Close())
	}
	frames := make(chan frame, 16)
	gone := make(chan struct{})
	go func() {
		defer close(frames)
		for {
			f, err := receive(ours)
			if err != nil {
				return // QEMU ended; the wait below tells how
			}
			select {
			case frames <- f:
			case <-gone:
				return
			}
		}
	}()
	known := g.follow(ctx, frames, ours, began)
	close(gone)
	if known {
		_ = cmd.Process.Kill() // it may have ended by itself
	}
	ended := cmd.Wait()
	g.result.Console = string(g.console.kept)
	if !known {
		g.result.Ended, g.result.Detail = describe(g.result.Console, ended)
	}
	return ours.Close()
}

// follow handles frames until the end is known (true) or QEMU has ended (false).
func (g *guest) follow(ctx context.Context, frames <-chan frame, answer io.Writer, began time.Time) bool {
	out := g.machine.Stdout
	if g.machine.Plain && g.node == 2 { // guest 1's output is read by a program
		out = g.machine.Stderr
	}
	stdout := &prefixed{to: out, prefix: g.prefix}
	stderr := &prefixed{to: g.machine.Stderr, prefix: g.prefix}
	defer stdout.flush()
	defer stderr.flush()
	start := (<-chan struct{})(nil) // of no interest before the guest is ready
	limit := (<-chan time.Time)(nil)
	ready := began
	g.heard = began
	defer func() { g.result.Run = time.Since(ready) }()
	watch := time.NewTicker(beatEvery)
	defer watch.Stop()
	for {
		select {
		case f, ok := <-frames:
			if !ok {
				return false
			}
			g.heard = time.Now()
			switch f.kind {
			case frameReady:
				ready = g.heard
				g.result.Boot = ready.Sub(began)
				start = g.start
				g.ready <- struct{}{}
			case frameStdout:
				if g.machine.Plain && g.node == 2 {
					f.text = bytes.ReplaceAll(f.text, []byte{0x16}, nil) // test2json's mark, which it takes for guest 1's
				}
				_, _ = stdout.Write(f.text) // a reader that went away ends no guest
				g.heard = time.Now()        // a slow one is no silence of the guest
			case frameStderr:
				_, _ = stderr.Write(f.text)
				g.heard = time.Now()
			case frameExit, frameFailed:
				g.end(f)
				return true
			}
		case <-start:
			start = nil
			g.result.started = true
			limit = time.After(g.machine.Limit)
			if _, err := answer.Write([]byte{answerGo}); err != nil {
				return false
			}
		case <-watch.C:
			if g.overdue(began) {
				return true
			}
		case <-limit:
			g.stop()
			return true
		case <-ctx.Done():
			g.result.Ended, g.result.Detail = endDied, "given up"
			return true
		}
	}
}

// end notes what the guest's last frame says.
func (g *guest) end(f frame) {
	status, err := strconv.Atoi(string(f.text))
	switch {
	case f.kind == frameFailed:
		g.result.Ended, g.result.Detail = endFailed, string(f.text)
	case err != nil:
		g.result.Ended, g.result.Detail = endFailed, fmt.Sprintf("exit status %q", f.text)
	default:
		g.result.Ended, g.result.Exit, g.result.Detail = endExited, status, ""
	}
}

func (m *machine) quiet() time.Duration { return cmp.Or(m.Quiet, quietMax) }

// overdue ends a guest that has been silent, or that has booted, for too long.
func (g *guest) overdue(began time.Time) bool {
	switch silent := time.Since(g.heard); {
	case g.result.Boot == 0 && time.Since(began) > bootMax:
		g.result.Detail = fmt.Sprintf("not ready %v after QEMU started", bootMax)
	case g.result.Boot != 0 && silent > g.machine.quiet():
		g.result.Detail = fmt.Sprintf("no sign of the guest's user space for %.0f s", silent.Seconds())
	default:
		return false
	}
	g.result.Ended = endHang
	return true
}

// stop notes how the guest was at the time limit.
func (g *guest) stop() {
	if silent := time.Since(g.heard); silent > min(quietAtEnd, g.machine.quiet()) {
		g.result.Ended = endHang
		g.result.Detail = fmt.Sprintf("at the time limit of %v the guest's user space had been silent for %.0f s", g.machine.Limit, silent.Seconds())
		return
	}
	g.result.Ended = endLimit
	g.result.Detail = fmt.Sprintf("the time limit of %v was reached; the guest lived", g.machine.Limit)
}
