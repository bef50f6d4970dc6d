package main

import (
	"os"
	"time"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
)

// twin is a simulated driver with two GPUs, on the real clock, whose callbacks write to pipes.
func twin() (cuda.Calls, error) {
	began := time.Now()
	return simcuda.New(1, simcuda.Options{
		Now:   func() time.Duration { return time.Since(began) },
		Later: func(d time.Duration, f func()) { time.AfterFunc(d, f) },
		Sleep: time.Sleep,
		Signal: func(*simcuda.Driver) (descriptor int, set, clear, end func(), err error) {
			r, w, err := os.Pipe()
			if err != nil {
				return 0, nil, nil, nil, err
			}
			full, one := false, make([]byte, 1)
			set = func() {
				if !full {
					full = true
					_, _ = w.Write(one)
				}
			}
			clear = func() {
				if full {
					full = false
					_, _ = r.Read(one)
				}
			}
			return int(r.Fd()), set, clear, func() { _ = r.Close(); _ = w.Close() }, nil
		},
	}), nil
}
