package main

import (
	"flag"
	"fmt"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/libcuda"
	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/libibverbs"
)

// way is how this program reaches GPUs, and its requests the source.
type way struct {
	twin, rdma bool
	slots      int // Request.RemoteSlots; 0: each side stages for itself

	driver  cuda.Calls
	library func() (verbs.Calls, error) // for one engine
}

// flags are the program's.
func (w *way) flags() {
	flag.BoolVar(&w.twin, "twin", false, "run on a simulated driver, and with -rdma on simulated devices as well, in one process")
	flag.BoolVar(&w.rdma, "rdma", false, "carry the payload over RDMA instead of TCP; the same at both ends")
	flag.IntVar(&w.slots, "remote-slots", 0, "direct the staging at the source: so many `slots` for a request, 1 to 16; at both ends (the source offers them)")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "%s\n", usage)
		flag.PrintDefaults()
	}
}

// load opens the native libraries. Importing them is what links C; loading is the program's own step.
func (w *way) load() (err error) {
	if w.driver, w.library = nil, libibverbs.Load; w.twin {
		w.driver, w.library = twin()
		return nil
	}
	w.driver, err = libcuda.Load()
	return err
}

// open opens an engine that can use the GPUs.
func (w *way) open(bind string) (*orbitte.Engine, error) {
	c := orbitte.Config{Bind: bind, CUDA: w.driver, Limits: orbitte.Limits{SubmittedBytes: 1 << 30}}
	if w.slots != 0 { // both ends opt in; one with GPUs offers slots: here as many as asked for to each of at most four lanes
		c.RemoteStaging = &orbitte.RemoteStagingConfig{Slots: 4 * max(1, w.slots)}
	}
	if w.rdma {
		library, err := w.library()
		if err != nil {
			return nil, err
		}
		c.Verbs, c.RDMA = library, &orbitte.RDMAConfig{Limits: orbitte.RDMALimits{CachedBytes: 1 << 30}}
	}
	return orbitte.Open(c)
}

// request is one to the source.
func (w *way) request(r orbitte.Request) orbitte.Request {
	r.RemoteSlots = w.slots
	if w.rdma {
		r.Transport = orbitte.TransportRDMA
	}
	return r
}

// active names the GPUs that have a primary context.
func active(driver cuda.Calls) (string, error) {
	devices, err := driver.Devices()
	if err != nil {
		return "", err
	}
	names := ""
	for _, d := range devices {
		on, err := driver.PrimaryActive(d.Ordinal)
		if err != nil {
			return "", err
		}
		if on {
			names += fmt.Sprint(" ", d.Ordinal)
		}
	}
	return names, nil
}
