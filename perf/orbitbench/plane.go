package main

import (
	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/perf/baselines"
)

// plane switches on what the setup's transport needs.
func (s Setup) plane(c *orbitte.Config) error {
	if s.Transport == "hptcp" {
		return baselines.Absent("this engine has no HP-TCP")
	}
	return nil
}

// publish registers a range for peers.
func (s Setup) publish(e *orbitte.Engine, m *orbitte.Memory, length uint64) error {
	_, err := e.Register(m, 0, length, orbitte.ReadWrite)
	return err
}

// pagesOf makes one request of many pages, in the order of the harness's jumps.
func pagesOf(r orbitte.Request, size uint64, near, far []uint32) (orbitte.Request, error) {
	return r, baselines.Absent("this engine has no requests of many pages")
}
