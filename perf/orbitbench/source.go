package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/perf/baselines"
	"github.com/orbitte/orbitte/perf/meter"
)

const (
	memoryBytes = 512 << 20 // of each side: 120,000 pages of 4 KiB, and room
	filledBytes = 64 << 20  // of it, from the start; more on demand
)

// Questions to the source process, as lines of JSON; an empty Do is an error.
type question struct {
	Do    string `json:"do"` // "open", "close", "heap", "fill"
	Setup Setup  `json:"setup"`
	Bind  string `json:"bind,omitempty"`
	Name  string `json:"name,omitempty"` // what the endpoint is called, when it is bound to all addresses
	ID    int    `json:"id"`
	Bytes int    `json:"bytes"`
}

// helloLine is the source's first line: where its baselines listen.
type helloLine struct {
	Raw string `json:"raw"`
	Net string `json:"net"`
}

// opened tells of a source engine.
type opened struct {
	ID       int    `json:"id"`
	Endpoint string `json:"endpoint"`
	Epoch    string `json:"epoch"`
	Address  uint64 `json:"address"`
}

// heap tells of the process's memory and work so far.
type heap struct {
	Mallocs   uint64 `json:"mallocs"`
	Bytes     uint64 `json:"bytes"`
	Crossings uint64 `json:"crossings"`
	Live      uint64 `json:"live"`     // bytes of the Go heap after a collection
	Resident  uint64 `json:"resident"` // bytes, then
}

type source struct {
	memory  *orbitte.Memory
	filled  int
	engines map[int]*orbitte.Engine
	next    int
}

// serveSource is the source process: baselines' servers, and engines as they are asked for.
func serveSource() error {
	listener, raw, err := baselines.ListenRaw()
	if err != nil {
		return err
	}
	go baselines.ServeRaw(listener)
	plain, err := baselines.ListenNet()
	if err != nil {
		return err
	}
	go baselines.ServeNet(plain)
	s := &source{engines: map[int]*orbitte.Engine{}}
	if s.memory, err = orbitte.Allocate(memoryBytes); err != nil {
		return err
	}
	s.fill(filledBytes)
	sourcePattern.fill(s.memory.Bytes()[keptOffset:], keptOffset)
	clear(s.memory.Bytes()[zeroOffset:][:zeroBytes])
	debug.SetGCPercent(400)
	hello, err := json.Marshal(helloLine{raw, plain.Addr().String()})
	if err != nil {
		return err
	}
	return baselines.Serve(string(hello), s.answer)
}

func (s *source) fill(bytes int) {
	if bytes = min(bytes, zeroOffset); bytes > s.filled {
		sourcePattern.fill(s.memory.Bytes()[s.filled:bytes], s.filled)
		s.filled = bytes
	}
}

func (s *source) answer(line []byte) (any, error) {
	var q question
	if err := json.Unmarshal(line, &q); err != nil {
		return nil, err
	}
	switch q.Do {
	case "open":
		return s.open(q)
	case "close":
		e := s.engines[q.ID]
		if e == nil {
			return nil, fmt.Errorf("no engine %d", q.ID)
		}
		delete(s.engines, q.ID)
		return nil, e.Close(context.Background())
	case "fill":
		s.fill(q.Bytes)
		return nil, nil
	case "heap":
		return s.heap(q.Bytes != 0), nil
	}
	return nil, fmt.Errorf("unknown question %q", q.Do)
}

func (s *source) open(q question) (any, error) {
	config, err := q.Setup.config()
	if err != nil {
		return nil, err
	}
	config.Bind, config.Advertise = q.Bind, q.Name
	e, err := orbitte.Open(config)
	if err != nil {
		return nil, err
	}
	if err := q.Setup.publish(e, s.memory, memoryBytes); err != nil {
		_ = e.Close(context.Background())
		return nil, err
	}
	s.next++
	s.engines[s.next] = e
	return opened{s.next, e.Endpoint(), e.Epoch().String(), s.memory.Address()}, nil
}

func (s *source) heap(collect bool) heap {
	var h heap
	if collect {
		h.Live, h.Resident = settled()
	}
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	h.Mallocs, h.Bytes = stats.Mallocs, stats.TotalAlloc
	for _, e := range s.engines {
		h.Crossings += crossings(e)
	}
	return h
}

// settled is the live heap and the resident memory after everything that can be given back was.
func settled() (live, resident uint64) {
	runtime.GC() // a pool gives up what it holds at the second one
	runtime.GC()
	debug.FreeOSMemory()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc, meter.ResidentBytes(os.Getpid())
}

// crossings is how many system calls the engine's lanes say they made.
func crossings(e *orbitte.Engine) uint64 {
	n := uint64(0)
	for _, l := range e.Stats().Lanes {
		n += l.Loop.Counters.Crossings
	}
	return n
}
