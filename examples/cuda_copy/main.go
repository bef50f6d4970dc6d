package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"strconv"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/libcuda"
)

func main() {
	log.SetFlags(0)
	simulated := flag.Bool("twin", false, "run on a simulated driver")
	flag.Parse()
	if err := run(*simulated, flag.Args()); err != nil {
		log.Fatal(err)
	}
}

// run loads the driver, does what was asked, and looks whether everything was given back.
func run(simulated bool, args []string) error {
	load := libcuda.Load // importing libcuda is what links C; loading is the program's own step
	if simulated {
		load = twin
	}
	driver, err := load()
	if err != nil {
		return err
	}
	before, err := active(driver) // other parts of a program may use GPUs, too
	if err != nil {
		return err
	}
	if err := dispatch(driver, args); err != nil {
		return err
	}
	after, err := active(driver)
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

// dispatch picks the role.
func dispatch(driver cuda.Calls, args []string) error {
	switch {
	case len(args) >= 2 && args[0] == "source":
		return serve(driver, args[1], args[2:])
	case len(args) >= 3 && args[0] == "peer":
		ordinals, err := chosen(driver, args[3:], false)
		if err != nil {
			return err
		}
		return visit(driver, args[1], args[2], ordinals[0])
	}
	ordinals, err := chosen(driver, args, true)
	if err != nil {
		return err
	}
	for _, ordinal := range ordinals {
		if err := alone(driver, ordinal); err != nil {
			return fmt.Errorf("GPU %d: %w", ordinal, err)
		}
	}
	return nil
}

// chosen reads ordinals; without any it takes GPU 0, or all that can be used.
func chosen(driver cuda.Calls, args []string, all bool) (ordinals []int, err error) {
	for _, arg := range args {
		ordinal, err := strconv.Atoi(arg)
		if err != nil {
			return nil, fmt.Errorf("%q is no ordinal of a GPU", arg)
		}
		ordinals = append(ordinals, ordinal)
	}
	if len(ordinals) > 0 || !all {
		return append(ordinals, 0), nil
	}
	devices, err := driver.Devices()
	for _, d := range devices {
		if d.Unified && !d.Prohibited {
			ordinals = append(ordinals, d.Ordinal)
		}
	}
	if err == nil && len(ordinals) == 0 {
		err = errors.New("the driver sees no GPU that can be used; orbitte devices says why")
	}
	return ordinals, err
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
