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

// Run is one run of the harness.
type Run struct {
	Machine Machine
	Cells   []*Cell
	Targets []Target
}

// line is one line of a file: exactly one field is set.
type line struct {
	Machine *Machine `json:"machine,omitempty"`
	Cell    *Cell    `json:"cell,omitempty"`
	Target  *Target  `json:"target,omitempty"`
}

// WriteMachine, WriteCell and WriteTarget write one line each, so that a run that is cut short has what it measured.
func WriteMachine(w io.Writer, m *Machine) error { return json.NewEncoder(w).Encode(line{Machine: m}) }

// WriteCell writes a cell.
func WriteCell(w io.Writer, c *Cell) error { return json.NewEncoder(w).Encode(line{Cell: c}) }

// WriteTarget writes the verdict on one target.
func WriteTarget(w io.Writer, t *Target) error { return json.NewEncoder(w).Encode(line{Target: t}) }

// ReadRun reads what the three wrote. Errors name the line.
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
		default:
			return nil, fmt.Errorf("line %d is neither machine, cell nor target", n)
		}
	}
	return run, scanner.Err()
}
