package main

import (
	"context"

	"github.com/orbitte/orbitte/perf/figures"
)

// subject is one way of doing a group's work.
type subject struct {
	name     string
	baseline bool
	// against, if not empty, is the one subject that this one is held against instead of the group's baselines; its own name
	// means none.
	against string
	axes    figures.Axes
	note    string
	unit    string // of Sample.Value; empty: the value means nothing
	// counts: operations of the first, warming sample; of which all others are a multiple; and the most. The runner
	// chooses so many that a sample takes the group's window.
	first, step, most int
	measure           func(ctx context.Context, b *bench, n int) (figures.Sample, error)
	// stretch makes the window so many times longer, for programs whose start must not show; 0: once.
	stretch int
	// others is true for what needs the program with gnet and grpc-go (perf/peers).
	others bool
	// alone is true for what must not stay open beside others: its engines spin.
	alone bool
}

// group is what is measured in the same rounds, since it is compared.
type group struct {
	workload string
	name     string
	figure   figures.Figure // what is compared
	subjects []subject
	// whole: figures come from work of a given amount, so that no window is aimed at.
	whole bool
	// settle: each sample follows one of the subject's first count that is not shown: what is compared is the steady state.
	settle bool
	// cold: there is no round to warm up.
	cold bool
}

// firstCount is how many operations of a size warm up: 8 MiB of them, within reason.
func firstCount(size uint64) int { return int(min(max(8<<20/size, 2), 2048)) }

// counts fills defaults in.
func (s *subject) counts() (first, step, most int) {
	step = max(s.step, 1)
	first = max(s.first, step)
	most = s.most
	if most == 0 {
		most = 1 << 30
	}
	return first, step, most
}
