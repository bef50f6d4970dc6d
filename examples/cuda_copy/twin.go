package main

import (
	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/test/twins"
)

// twin is a simulated driver with two GPUs, on the real clock.
func twin() (cuda.Calls, error) { return twins.CUDA(1, simcuda.Options{}), nil }
