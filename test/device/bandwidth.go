package main

import (
	"flag"
	"fmt"
	"slices"
	"time"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/libcuda"
)

// A cell is one size in one direction, medians of the rounds.
type cell struct {
	Direction string  `json:"direction"` // "to the device" or "from the device"
	Bytes     int     `json:"bytes"`
	Rounds    int     `json:"rounds"`
	Query     float64 `json:"plain_query_us"`  // one pinned asynchronous copy, its event queried until it is complete
	Signal    float64 `json:"plain_signal_us"` // the same, awaited by the eventfd that a host callback writes to
	Staged    float64 `json:"staged_us"`       // the engine's own transfer of memory that is not pinned
	Plain     float64 `json:"plain_gbps"`      // gigabytes (10⁹) per second
	Engine    float64 `json:"staged_gbps"`
	Ratio     float64 `json:"ratio"` // of the rounds' plain query to staged: 1 is as fast as plain
}

// A round takes the three times one after the other, so that what disturbs one disturbs all.
type measured struct{ query, signal, staged []float64 }

func (m *measured) cell(direction string, bytes int) cell {
	c := cell{Direction: direction, Bytes: bytes, Rounds: len(m.query), Query: median(m.query), Signal: median(m.signal), Staged: median(m.staged)}
	var ratios []float64
	for i := range m.staged {
		ratios = append(ratios, m.query[i]/m.staged[i])
	}
	c.Plain, c.Engine, c.Ratio = float64(bytes)/c.Query/1e3, float64(bytes)/c.Staged/1e3, median(ratios)
	return c
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

func micros(act func() error) (float64, error) {
	began := time.Now()
	err := act()
	return float64(time.Since(began).Nanoseconds()) / 1e3, err
}

// options of the measurement.
type options struct {
	driver          string
	ordinal         int
	least, largest  int
	budget          time.Duration // for one cell
	pinned, chunked uint64        // Limits.PinnedStagingBytes and StagingChunkBytes; 0: the defaults
}

func bandwidth(args []string) error {
	var o options
	flags := flag.NewFlagSet("bandwidth", flag.ExitOnError)
	flags.StringVar(&o.driver, "driver", defaultDriver(), "the CUDA driver's library")
	flags.IntVar(&o.ordinal, "gpu", 0, "ordinal")
	flags.IntVar(&o.least, "least", 4<<10, "smallest size in bytes")
	flags.IntVar(&o.largest, "largest", 256<<20, "largest size in bytes")
	flags.DurationVar(&o.budget, "budget", 2*time.Second, "time for one size in one direction")
	flags.Uint64Var(&o.pinned, "pinned", 0, "bytes of pinned staging memory; 0: the engine's default")
	flags.Uint64Var(&o.chunked, "chunk", 0, "bytes of one chunk; 0: the engine's default")
	_ = flags.Parse(args)
	calls, err := libcuda.LoadPath(o.driver)
	if err != nil {
		return err
	}
	cells, err := measure(calls, o)
	if len(cells) > 0 {
		if err := hand(cells); err != nil {
			return err
		}
	}
	return err
}

// measure fills the table; on a failure it returns what it has.
func measure(calls cuda.Calls, o options) (cells []cell, err error) {
	fmt.Printf("GPU %d of %+v\n", o.ordinal, calls.Library())
	p, err := openPlain(calls, o.ordinal, o.largest)
	if err != nil {
		return nil, err
	}
	defer func() { err = first(err, p.close()) }()
	e, err := openStaged(calls, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = first(err, e.close()) }()
	fmt.Printf("%12s %-15s %7s %12s %12s %12s %9s %9s %6s\n", "bytes", "direction", "rounds", "query µs", "signal µs", "staged µs", "GB/s", "staged", "ratio")
	for bytes := o.least; bytes <= o.largest; bytes *= 4 {
		if err := e.verify(bytes); err != nil {
			return cells, err
		}
		for _, there := range []bool{true, false} {
			c, err := one(p, e, bytes, there, o.budget)
			if err != nil {
				return cells, fmt.Errorf("%s, %d bytes: %w", way(there), bytes, err)
			}
			cells = append(cells, c)
			fmt.Printf("%12d %-15s %7d %12.1f %12.1f %12.1f %9.2f %9.2f %6.2f\n", c.Bytes, c.Direction, c.Rounds, c.Query, c.Signal, c.Staged, c.Plain, c.Engine, c.Ratio)
		}
	}
	return cells, nil
}

func way(there bool) string {
	if there {
		return "to the device"
	}
	return "from the device"
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// one measures a cell: two rounds that do not count, then at least five.
func one(p *plain, e *staged, bytes int, there bool, budget time.Duration) (cell, error) {
	var m measured
	end := time.Now().Add(budget)
	for round := -2; round < 5 || round < 2000 && time.Now().Before(end); round++ {
		query, err1 := micros(func() error { return p.copy(bytes, there, false) })
		signal, err2 := micros(func() error { return p.copy(bytes, there, true) })
		staged, err3 := micros(func() error { return e.move(bytes, there) })
		if err := first(err1, err2, err3); err != nil {
			return cell{}, err
		}
		if round >= 0 {
			m.query, m.signal, m.staged = append(m.query, query), append(m.signal, signal), append(m.staged, staged)
		}
	}
	return m.cell(way(there), bytes), nil
}
