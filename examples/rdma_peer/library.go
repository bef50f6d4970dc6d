package main

import (
	"fmt"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/test/twins"
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/libibverbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// load opens the native RDMA library, or a twin.
var load = libibverbs.Load

// open opens an engine that uses every RDMA device it finds. Loading the library is the program's own step: importing
// libibverbs is what links C.
func open(bind string, memory orbitte.HostMemory) (*orbitte.Engine, error) {
	library, err := load()
	if err != nil {
		return nil, err
	}
	return orbitte.Open(orbitte.Config{Bind: bind, Verbs: library, RDMA: &orbitte.RDMAConfig{HostMemory: memory}})
}

// twin is a simulated fabric on the real clock; each engine is a host of its own on it.
func twin() func() (verbs.Calls, error) {
	fabric, hosts := twins.RDMA(1, simverbs.Options{}), 0
	return func() (verbs.Calls, error) {
		hosts++
		return fabric.Host(fmt.Sprint("host ", hosts)).Process("rdma_peer"), nil
	}
}
