//go:build planted

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// patience bounds one seed, far above what it takes: a run that spins inside one turn is a sighting, too.
const patience = 30 * time.Second

// sighting is what a program says about one seed.
type sighting struct {
	Seed      int
	Violation *struct{ Oracle, What string }
}

func (s sighting) String() string {
	line, _, _ := strings.Cut(s.Violation.What, "\n")
	return fmt.Sprintf("%s: %.200s", s.Violation.Oracle, line)
}

// violated is a sighting that the program did not live to tell.
func violated(seed int, oracle, what string) sighting {
	return sighting{seed, &struct{ Oracle, What string }{oracle, what}}
}

// world is a program that serves seeds: it reads a seed from each line and answers with one line of JSON.
type world struct {
	t       *testing.T
	program string
	command *exec.Cmd // nil: not running
	seeds   io.WriteCloser
	answers *json.Decoder
	said    *strings.Builder
}

func (w *world) start() {
	w.t.Helper()
	w.command, w.said = exec.Command(w.program, "-child"), &strings.Builder{}
	w.command.Stderr = w.said
	var err error
	if w.seeds, err = w.command.StdinPipe(); err != nil {
		w.t.Fatal(err)
	}
	out, err := w.command.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	w.answers = json.NewDecoder(out)
	if err := w.command.Start(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) stop() {
	if w.command != nil {
		w.command.Process.Kill()
		_ = w.command.Wait() // killed, or dead before: its status says nothing new
		w.command = nil
	}
}

// run asks for one seed. A program that dies, or does not answer, is stopped; the next seed starts another one.
func (w *world) run(seed int) sighting {
	w.t.Helper()
	if w.command == nil {
		w.start()
	}
	hung := make(chan struct{})
	process := w.command.Process
	timer := time.AfterFunc(patience, func() {
		close(hung)
		process.Kill()
	})
	defer timer.Stop()
	var s sighting
	_, err := fmt.Fprintln(w.seeds, seed)
	if err == nil {
		err = w.answers.Decode(&s)
	}
	if err == nil {
		return s
	}
	w.stop()
	select {
	case <-hung:
		return violated(seed, "hang", fmt.Sprintf("no answer within %v", patience))
	default:
		return violated(seed, "panic", "the program died: "+w.said.String())
	}
}
