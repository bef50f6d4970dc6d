package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"strconv"

	"github.com/orbitte/orbitte"
)

func main() {
	log.SetFlags(0)
	w := &way{}
	w.flags()
	flag.Parse()
	if err := run(w, flag.Args()); err != nil {
		log.Fatal(err)
	}
}

// run loads the driver, does what was asked, and looks whether everything was given back.
func run(w *way, args []string) error {
	do, err := role(w, args)
	if err != nil {
		return err
	}
	if err := w.load(); err != nil {
		return err
	}
	before, err := active(w.driver) // other parts of a program may use GPUs, too
	if err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	after, err := active(w.driver)
	if err == nil && after != before {
		err = fmt.Errorf("GPUs with a primary context: %q, before %q", after, before)
	}
	if kept := orbitte.RetainedByCUDA(); err == nil && len(kept) > 0 {
		err = fmt.Errorf("the driver kept %v", kept)
	}
	if err == nil {
		fmt.Println("every context, allocation, stream and event was given back")
	}
	return err
}

const usage = `cuda_copy [-twin] [-rdma] [-remote-slots N] [ORDINAL…]
cuda_copy [-twin] [-rdma] [-remote-slots N] source ADDRESS [ORDINAL]
cuda_copy [-twin] [-rdma] [-remote-slots N] peer ENDPOINT EPOCH [ORDINAL]
Flags come first, and are the same at both ends.`

// role is what the arguments ask for.
func role(w *way, args []string) (func() error, error) {
	kind, operands := "", 0 // no role: both, in this process
	if len(args) > 0 && (args[0] == "source" || args[0] == "peer") {
		kind, operands = args[0], map[string]int{"source": 2, "peer": 3}[args[0]]
	}
	if len(args) < operands || kind != "" && len(args) > operands+1 {
		return nil, fmt.Errorf("arguments %q; it is\n%s", args, usage)
	}
	if w.slots < 0 || w.slots > 16 {
		return nil, fmt.Errorf("-remote-slots is %d; it must be 1 to 16, or 0 to let each side stage for itself", w.slots)
	}
	if kind != "" && w.twin && w.rdma {
		return nil, fmt.Errorf("no other process has the simulated RDMA devices of this one; leave %s, or -rdma, or -twin", kind)
	}
	var ordinals []int
	for _, arg := range args[operands:] {
		ordinal, err := strconv.Atoi(arg)
		if err != nil {
			return nil, fmt.Errorf("%q is neither a role nor the ordinal of a GPU; it is\n%s", arg, usage)
		}
		ordinals = append(ordinals, ordinal)
	}
	if kind == "" {
		return func() error { return each(w, ordinals) }, nil
	}
	ordinal := append(ordinals, 0)[0] // one that is named, or GPU 0
	if kind == "source" {
		return func() error { return serve(w, args[1], ordinal) }, nil
	}
	return func() error { return visit(w, args[1], args[2], ordinal) }, nil
}

// each runs both roles on GPUs of this process; without ordinals on all that can be used.
func each(w *way, ordinals []int) error {
	if len(ordinals) == 0 {
		devices, err := w.driver.Devices()
		if err != nil {
			return err
		}
		for _, d := range devices {
			if d.Unified && !d.Prohibited {
				ordinals = append(ordinals, d.Ordinal)
			}
		}
		if len(ordinals) == 0 {
			return errors.New("the driver sees no GPU that can be used; orbitte devices says why")
		}
	}
	for _, ordinal := range ordinals {
		if err := alone(w, ordinal); err != nil {
			return fmt.Errorf("GPU %d: %w", ordinal, err)
		}
	}
	return nil
}
