package main

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/orbitte/orbitte/cuda/libcuda"
)

// absentStatus is the exit status of a part that cannot run here; the last line says why: "word: reason".
const absentStatus = 77

// A part is one program of the gate. The parts' limits together stay under the gate's own.
type part struct {
	name    string
	what    string
	program string // in this program's folder; empty: this program
	args    []string
	limit   time.Duration
	test    string // the Go test whose skip says that the part is absent; empty: none
}

// parts of the gate, in their order. A program that was not built is absent.
var parts = []part{
	{name: "driver", what: "the driver loads, lists its GPUs and makes no context", args: []string{"probe"}, limit: 40 * time.Second},
	{name: "cudatest", what: "the conformance suite on the real driver", program: "libcuda.test",
		args:  []string{"-test.run=^TestTheRealDriverConforms$", "-test.v", "-test.timeout=115s"},
		limit: 2 * time.Minute, test: "TestTheRealDriverConforms"},
	{name: "cuda_copy", what: "examples/cuda_copy: unaligned sizes, several callers, guard bytes", program: "cuda_copy", limit: 50 * time.Second},
	{name: "device_tcp", what: "device to device over TCP between two processes", args: []string{"pair"}, limit: 70 * time.Second},
	{name: "bandwidth", what: "staged transfers beside plain pinned copies of the same sizes", args: []string{"bandwidth"}, limit: 2*time.Minute + 20*time.Second},
}

// beside is a path in this program's folder.
func beside(name string) string {
	self, err := os.Executable()
	if err != nil {
		return name
	}
	return filepath.Join(filepath.Dir(self), name)
}

// absence is the reason by which an error says that there is nothing to test here, or nothing.
func absence(err error) string {
	for word, kind := range map[string]error{
		"no-cgo": libcuda.ErrNoCgo, "no-driver": libcuda.ErrNoLibrary, "no-gpu": libcuda.ErrNoDevice, "stub": libcuda.ErrStub,
	} {
		if errors.Is(err, kind) {
			return word + ": " + err.Error()
		}
	}
	return ""
}
