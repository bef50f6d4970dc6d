package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/orbitte/orbitte/cuda/libcuda"
)

// copier is the program with the two roles; build.sh puts it beside this one.
const copier = "cuda_copy"

// pair moves bytes between GPUs of two processes over TCP: the example's source, and its peer, which checks them. With two
// GPUs each process has its own; otherwise they share one.
func pair(args []string) error {
	flags := flag.NewFlagSet("pair", flag.ExitOnError)
	driver := flags.String("driver", defaultDriver(), "the CUDA driver's library, looked at for how many GPUs there are")
	program := flags.String("program", beside(copier), "with the roles source and peer")
	_ = flags.Parse(args)
	if _, err := os.Stat(*program); err != nil {
		fmt.Printf("not-built: %s\n", *program)
		os.Exit(absentStatus)
	}
	calls, err := libcuda.LoadPath(*driver)
	if err != nil {
		return err
	}
	devices, err := calls.Devices()
	if err != nil {
		return err
	}
	other := "0"
	if len(devices) > 1 {
		other = "1"
	}
	return roles(*program, other)
}

// roles runs both processes; the source has to end well, too.
func roles(program, ordinal string) error {
	source := exec.Command(program, "source", "127.0.0.1:0", "0")
	source.Stderr = os.Stderr
	out, err := source.StdoutPipe()
	if err != nil {
		return err
	}
	if err := source.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(out)
	err = peer(program, ordinal, lines)
	_ = source.Process.Signal(os.Interrupt)
	for lines.Scan() {
		fmt.Println("source:", lines.Text())
	}
	if ended := source.Wait(); ended != nil {
		err = errors.Join(err, fmt.Errorf("the source: %w", ended))
	}
	return err
}

// peer reads the source's first line, which is the command of its peer, and runs that.
func peer(program, ordinal string, lines *bufio.Scanner) error {
	if !lines.Scan() {
		return errors.New("the source ended before it published anything")
	}
	fmt.Println("source:", lines.Text())
	words := strings.Fields(lines.Text())
	if len(words) != 4 || words[1] != "peer" {
		return fmt.Errorf("the source said %q, no peer's command", lines.Text())
	}
	c := exec.Command(program, append(words[1:], ordinal)...)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	if err := c.Run(); err != nil {
		return fmt.Errorf("the peer: %w", err)
	}
	return nil
}
