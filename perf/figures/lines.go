package figures

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
)

// Machine says where and how a run was made.
type Machine struct {
	Time    string `json:"time"` // UTC, RFC 3339
	Go      string `json:"go"`
	Arch    string `json:"arch"`
	CPUs    int    `json:"cpus"`
	CPU     string `json:"cpu"`    // model name
	Memory  uint64 `json:"memory"` // bytes
	System  string `json:"system"` // release of the operating system's kernel
	Kernel  string `json:"kernel"` // what drove the engine's sockets
	Commit  string `json:"commit"`
	Command string `json:"command"`
	Load    string `json:"load"` // load averages at the start
	Note    string `json:"note,omitempty"`
	// Uncounted says why system calls were not counted; empty where they were.
	Uncounted string `json:"uncounted,omitempty"`
	// Peers lists each program of others with its version, or why it is not there.
	Peers map[string]string `json:"peers,omitempty"`
}

// End is the last line of a run: how it ended, and so whether all that was asked for is there.
type End struct {
	Time        string `json:"time"` // UTC, RFC 3339
	Load        string `json:"load"` // load averages then, the run's own work among them
	Interrupted bool   `json:"interrupted"`
	Failed      string `json:"failed,omitempty"` // the error that ended it early
}

// Whole is true exactly when all that was asked for was measured, or could not be.
func (e *End) Whole() bool { return e != nil && !e.Interrupted && e.Failed == "" }

// Text says how the run ended. Nil, a run without that line, was cut off, or comes from a harness that wrote none.
func (e *End) Text() string {
	const missing = "what is not here was not measured, and the last group may have fewer rounds"
	switch {
	case e == nil:
		return "nobody knows: there is no closing line, so the run was cut off or still goes on, or a harness made it that wrote none (runs of 2026-11-30 and before)"
	case e.Interrupted:
		return "INTERRUPTED at " + e.Time + ", not whole: " + missing
	case e.Failed != "":
		return "ended early at " + e.Time + " by an error, not whole: " + missing + ". The error: " + e.Failed
	}
	return e.Time + ", whole; load then " + e.Load + ", the run's own work among it"
}

// Run is one run of the harness.
type Run struct {
	Machine Machine
	Cells   []*Cell
	Targets []Target
	End     *End // nil where it is not known
}

// line is one line of a file: exactly one field is set.
type line struct {
	Machine *Machine `json:"machine,omitempty"`
	Cell    *Cell    `json:"cell,omitempty"`
	Target  *Target  `json:"target,omitempty"`
	End     *End     `json:"end,omitempty"`
}

// WriteMachine, WriteCell and WriteTarget write one line each, so that a run that is cut short has what it measured.
func WriteMachine(w io.Writer, m *Machine) error { return json.NewEncoder(w).Encode(line{Machine: m}) }

// WriteCell writes a cell.
func WriteCell(w io.Writer, c *Cell) error { return json.NewEncoder(w).Encode(line{Cell: c}) }

// WriteTarget writes the verdict on one target.
func WriteTarget(w io.Writer, t *Target) error { return json.NewEncoder(w).Encode(line{Target: t}) }

// WriteEnd writes the last line.
func WriteEnd(w io.Writer, e *End) error { return json.NewEncoder(w).Encode(line{End: e}) }

// ReadRun reads what the four wrote. Errors name the line.
func ReadRun(r io.Reader) (*Run, error) {
	run := &Run{}
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, 1<<20)
	for n := 1; scanner.Scan(); n++ {
		var l line
		if err := json.Unmarshal(scanner.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		switch {
		case l.Machine != nil:
			run.Machine = *l.Machine
		case l.Cell != nil:
			run.Cells = append(run.Cells, l.Cell)
		case l.Target != nil:
			run.Targets = append(run.Targets, *l.Target)
		case l.End != nil:
			run.End = l.End
		default:
			return nil, fmt.Errorf("line %d is neither machine, cell, target nor end", n)
		}
	}
	return run, scanner.Err()
}
