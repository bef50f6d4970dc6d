package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/cuda/libcuda"
)

// machine names this machine.
func machine() string {
	host, _ := os.Hostname()
	var u unix.Utsname
	_ = unix.Uname(&u)
	cpu := ""
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				cpu = strings.TrimSpace(value)
				break
			}
		}
	}
	return fmt.Sprintf("%s, Linux %s %s, %d × %s", host, unix.ByteSliceToString(u.Release[:]), runtime.GOARCH, runtime.NumCPU(), cpu)
}

// hand gives a part's figures to the gate.
func hand(v any) error {
	path := os.Getenv("ORBITTE_GPU_DATA")
	if path == "" {
		return nil
	}
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

func defaultDriver() string {
	if path := os.Getenv("ORBITTE_GPU_DRIVER"); path != "" {
		return path
	}
	return "libcuda.so.1"
}

// probe lists what there is.
func probe(args []string) error {
	flags := flag.NewFlagSet("probe", flag.ExitOnError)
	driver := flags.String("driver", defaultDriver(), "the CUDA driver's library")
	_ = flags.Parse(args)
	fmt.Printf("loading %s\n", *driver)
	calls, err := libcuda.LoadPath(*driver)
	if err != nil {
		return err
	}
	fmt.Printf("%+v\n", calls.Library())
	devices, err := calls.Devices()
	if err != nil {
		return err
	}
	if err := hand(map[string]any{"library": calls.Library(), "devices": devices}); err != nil {
		return err
	}
	for _, d := range devices {
		fmt.Printf("%+v\n", d)
		active, err := calls.PrimaryActive(d.Ordinal)
		if err != nil {
			return err
		}
		if active {
			return fmt.Errorf("GPU %d has a primary context, though nobody asked for one", d.Ordinal)
		}
	}
	return nil
}
