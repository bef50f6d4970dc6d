// Command chost is the Go part of a C program that embeds the engine: go build -buildmode=c-archive. The C part is
// main.c; the test that builds both is sigpipe_test.go.
package main

import "C"

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/orbitte/orbitte"
)

const payload = 8 << 20

//export orbitte_serve
func orbitte_serve(kernel C.int) C.int { return C.int(status(serve(orbitte.KernelChoice(kernel)))) }

//export orbitte_write
func orbitte_write(kernel C.int, endpoint, epoch *C.char, remote C.ulonglong, rounds C.int) C.int {
	return C.int(status(write(orbitte.KernelChoice(kernel), C.GoString(endpoint), C.GoString(epoch), uint64(remote), int(rounds))))
}

func status(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func open(kernel orbitte.KernelChoice) (*orbitte.Engine, *orbitte.Memory, error) {
	e, err := orbitte.Open(orbitte.Config{Kernel: kernel})
	if err != nil {
		return nil, nil, err
	}
	m, err := orbitte.Allocate(payload)
	if err != nil {
		return nil, nil, err
	}
	_, err = e.Register(m, 0, payload, orbitte.ReadWrite)
	return e, m, err
}

// serve is a source until the end of its input.
func serve(kernel orbitte.KernelChoice) error {
	e, m, err := open(kernel)
	if err != nil {
		return err
	}
	fmt.Println(e.Endpoint(), e.Epoch(), m.Address())
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return e.Close(context.Background())
}

// write sends to a peer that breaks every WRITE off.
func write(kernel orbitte.KernelChoice, endpoint, text string, remote uint64, rounds int) error {
	epoch, err := orbitte.ParseEpoch(text)
	if err != nil {
		return err
	}
	e, m, err := open(kernel)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, err := e.OpenSegment(ctx, endpoint, epoch)
	if err != nil {
		return err
	}
	r := orbitte.Request{Operation: orbitte.Write, Segment: s, Local: m.Address(), Remote: remote, Length: payload}
	for i := range rounds {
		if _, err := e.SubmitAndWait(ctx, []orbitte.Request{r}); !errors.Is(err, orbitte.ErrDisconnected) {
			return fmt.Errorf("WRITE %d that the peer broke off: %w", i, err)
		}
	}
	return e.Close(ctx)
}

func main() {}
