package twins

import (
	"os"
	"time"

	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// RDMA is a fabric on the real clock. What the options say of clock, timers, sleep and signals is replaced.
func RDMA(seed uint64, o simverbs.Options) *simverbs.Fabric {
	o.Now, o.Later, o.Sleep = clock()
	o.Signal = func(*simverbs.Process) (int, func(), func(), func(), error) { return pipe() }
	return simverbs.NewFabric(seed, o)
}

// CUDA is a driver on the real clock. What the options say of clock, timers, sleep and signals is replaced.
func CUDA(seed uint64, o simcuda.Options) *simcuda.Driver {
	o.Now, o.Later, o.Sleep = clock()
	o.Signal = func(*simcuda.Driver) (int, func(), func(), func(), error) { return pipe() }
	return simcuda.New(seed, o)
}

func clock() (now func() time.Duration, later func(time.Duration, func()), sleep func(time.Duration)) {
	began := time.Now()
	now = func() time.Duration { return time.Since(began) }
	later = func(d time.Duration, do func()) { time.AfterFunc(d, do) }
	return now, later, time.Sleep
}

// pipe is a descriptor that is readable exactly from set to clear. The twins call both inside their gate.
func pipe() (descriptor int, set, clear, end func(), err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, nil, nil, nil, err
	}
	full, one := false, make([]byte, 1)
	set = func() {
		if !full {
			full = true
			_, _ = w.Write(one) // a pipe has room for one byte
		}
	}
	clear = func() {
		if full {
			full = false
			_, _ = r.Read(one)
		}
	}
	return int(r.Fd()), set, clear, func() { _ = r.Close(); _ = w.Close() }, nil
}
