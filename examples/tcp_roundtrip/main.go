package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/orbitte/orbitte"
)

const size = 1 << 20

func main() {
	log.SetFlags(0)
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	// One deadline for everything. A context without one would get Config.RequestTimeout for each call.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()

	// An engine is both: a source, which serves its registered memory, and a requester. The zero Config
	// listens on 127.0.0.1, on a port that the system chooses.
	source, err := orbitte.Open(orbitte.Config{})
	if err != nil {
		return err
	}
	defer source.Close(ctx)
	requester, err := orbitte.Open(orbitte.Config{})
	if err != nil {
		return err
	}
	defer requester.Close(ctx)

	// Payload memory lies off the Go heap. Registering it says who may do what: peers may read and write
	// the remote half, nobody sees the local one.
	remote, err := register(source, orbitte.ReadWrite)
	if err != nil {
		return err
	}
	defer remote.Close()
	local, err := register(requester, orbitte.LocalOnly)
	if err != nil {
		return err
	}
	defer local.Close()

	// The epoch names this life of the source. If another process had its port by now, every request would
	// be refused.
	segment, err := requester.OpenSegment(ctx, source.Endpoint(), source.Epoch())
	if err != nil {
		return err
	}
	region := segment.Regions()[0] // what the source publishes

	want := bytes.Repeat([]byte("orbit te"), size/8)
	copy(local.Bytes(), want)
	write := orbitte.Request{Operation: orbitte.Write, Segment: segment, Local: local.Address(), Remote: region.Address, Length: size}
	report, err := requester.SubmitAndWait(ctx, []orbitte.Request{write})
	if err != nil {
		return err
	}
	fmt.Printf("WRITE %d bytes over %s to region %d of %s\n", report.Bytes, report.Path, region.ID, segment.Endpoint())

	clear(local.Bytes()) // so that only the READ can bring the bytes back
	read := write
	read.Operation = orbitte.Read
	if report, err = requester.SubmitAndWait(ctx, []orbitte.Request{read}); err != nil {
		return err
	}
	fmt.Printf("READ  %d bytes over %s\n", report.Bytes, report.Path)

	if !bytes.Equal(local.Bytes(), want) || !bytes.Equal(remote.Bytes(), want) {
		return errors.New("the bytes differ")
	}
	fmt.Println("both sides hold the same bytes")
	return requester.CloseSegment(ctx, segment)
}

// register allocates memory and registers the whole of it. The registration keeps the memory alive until it
// is unregistered or the process ends.
func register(e *orbitte.Engine, p orbitte.Permission) (*orbitte.Memory, error) {
	memory, err := orbitte.Allocate(size)
	if err != nil {
		return nil, err
	}
	_, err = e.Register(memory, 0, size, p)
	return memory, err
}
