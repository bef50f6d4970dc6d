package main

import "context"

// baseline runs the guest's command of that name, which prints perftest's figures as JSON.
func baseline(ctx context.Context, args []string) (int, error) {
	o := newOptions("baseline")
	rounds := o.String("rounds", "3", "how often each figure is taken")
	_ = o.Parse(args) // it exits by itself
	if err := o.prepareMachine(gateNeeds...); err != nil {
		return 1, err
	}
	o.machine.Args = []string{"baseline", *rounds}
	results, err := o.machine.run(ctx)
	return report(results, o.verbose), err
}
