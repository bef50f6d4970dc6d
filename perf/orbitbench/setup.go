package main

import (
	"fmt"
	"strings"

	"github.com/orbitte/orbitte"
)

// Setup is how one engine, and its peer, are opened. Equal setups share engines.
type Setup struct {
	Transport string `json:"transport"` // "tcp", "hptcp"
	Placement string `json:"placement"` // "staged", "direct"; of tcp
	Progress  string `json:"progress"`  // "adaptive", "event", "busy", "manual"
	Kernel    string `json:"kernel"`    // "auto", "io_uring", "epoll"
	Lanes     int    `json:"lanes"`
	Sources   int    `json:"sources"` // engines of the source process, each a peer; 0: one
}

var progressModes = map[string]orbitte.Progress{"adaptive": orbitte.Adaptive, "event": orbitte.EventDriven, "busy": orbitte.Busy, "manual": orbitte.Manual}

var kernelChoices = map[string]orbitte.KernelChoice{"auto": orbitte.Auto, "io_uring": orbitte.IOUring, "epoll": orbitte.Epoll}

// config is the engine's. Limits are wide: what is measured is the data path, not the budgets.
func (s Setup) config() (orbitte.Config, error) {
	progress, known := progressModes[s.Progress]
	kernel, knownToo := kernelChoices[s.Kernel]
	if !known || !knownToo {
		return orbitte.Config{}, fmt.Errorf("setup %+v names an unknown progress mode or kernel", s)
	}
	c := orbitte.Config{
		Lanes: s.Lanes, Progress: progress, Kernel: kernel,
		Limits: orbitte.Limits{
			Registrations: 1 << 15, RegisteredBytes: 8 << 30, BatchRequests: 1 << 14, BatchSlots: 1 << 17, Batches: 256, Submissions: 256,
			SubmittedBytes: 2 << 30, PayloadBytes: 64 << 20, SourceHandlers: 256, SourceQueue: 1024, PeerSegments: 2048,
		},
	}
	if s.Placement == "direct" {
		c.TCPHostMemory = orbitte.Direct
	}
	s.plane(&c)
	return c, nil
}

// source is the peer's setup: nobody drives a manual source, so it spins instead, with as many lanes.
func (s Setup) source() Setup {
	if s.Progress == "manual" {
		s.Progress, s.Lanes = "busy", max(s.Lanes, 1)
	}
	return s
}

// spins is true exactly when one of the two engines takes a processor while it is idle.
func (s Setup) spins() bool { return s.source().Progress == "busy" }

func (s Setup) transport() orbitte.Transport {
	if s.Transport == "hptcp" {
		return orbitte.TransportHPTCP
	}
	return orbitte.TransportTCP
}

// name is what the results call it.
func (s Setup) name() string {
	parts := []string{"orbitte", s.Transport}
	if s.Transport == "tcp" {
		parts = append(parts, s.Placement)
	}
	if s.Progress != "adaptive" {
		parts = append(parts, s.Progress)
	}
	if s.Kernel != "auto" {
		parts = append(parts, s.Kernel)
	}
	return strings.Join(parts, " ")
}
