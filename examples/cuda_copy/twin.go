package main

import (
	"fmt"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/test/twins"
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// twin is a simulated driver with two GPUs, on the real clock, and a simulated fabric on which each engine is a host of its own.
func twin() (cuda.Calls, func() (verbs.Calls, error)) {
	fabric, hosts := twins.RDMA(1, simverbs.Options{}), 0
	return twins.CUDA(1, simcuda.Options{}), func() (verbs.Calls, error) {
		hosts++
		return fabric.Host(fmt.Sprint("host ", hosts)).Process("cuda_copy"), nil
	}
}
