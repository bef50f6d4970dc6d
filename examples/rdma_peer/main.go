package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"time"

	"github.com/orbitte/orbitte"
)

func main() {
	log.SetFlags(0)
	simulated := flag.Bool("twin", false, "run on simulated devices, in one process")
	flag.Parse()
	if *simulated {
		load = twin()
	}
	if err := run(flag.Args(), *simulated); err != nil {
		log.Fatal(err)
	}
}

// run picks the role.
func run(args []string, simulated bool) error {
	switch {
	case len(args) == 0:
		return alone()
	case simulated: // no other process has this fabric
	case len(args) == 2 && args[0] == "source":
		return serve(args[1])
	case len(args) == 3 && args[0] == "peer":
		return visit(args[1], args[2])
	}
	return fmt.Errorf("unknown arguments %q; it is rdma_peer [-twin], rdma_peer source ADDRESS, or rdma_peer peer ENDPOINT EPOCH", args)
}

// visit is the requester: once with its memory registered with the devices, once through private buffers.
func visit(endpoint, epochText string) error {
	epoch, err := orbitte.ParseEpoch(epochText)
	if err != nil {
		return err
	}
	for _, memory := range []orbitte.HostMemory{orbitte.HostDirect, orbitte.HostStaged} {
		if err := exercise(endpoint, epoch, memory); err != nil {
			return fmt.Errorf("host memory %v: %w", memory, err)
		}
	}
	return nil
}

// exercise writes odd sizes into the peer's memory, reads them back, and compares every byte around them as well.
func exercise(endpoint string, epoch orbitte.Epoch, memory orbitte.HostMemory) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	e, err := open("127.0.0.1:0", memory)
	if err != nil {
		return err
	}
	defer e.Close(ctx)
	local, err := orbitte.Allocate(size)
	if err != nil {
		return err
	}
	defer local.Close()
	if _, err := e.Register(local, 0, size, orbitte.LocalOnly); err != nil {
		return err
	}
	segment, err := e.OpenSegment(ctx, endpoint, epoch)
	if err != nil {
		return err
	}
	// The way is known before a byte moves, for each direction, and an engine or peer without RDMA is refused here.
	way, err := segment.Path(orbitte.Write, orbitte.TransportRDMA)
	if err != nil {
		return err
	}
	fmt.Println("the way is", way)
	base := segment.Regions()[0].Address
	move := func(op orbitte.Operation, at, n uint64) error {
		_, err := e.SubmitAndWait(ctx, []orbitte.Request{{Operation: op, Transport: orbitte.TransportRDMA, Segment: segment, Local: local.Address() + at, Remote: base + at, Length: n}})
		return err
	}
	for i, n := range []uint64{1, 4097, 1<<20 + 17} {
		// Guard bytes fill both memories; then the payload in the middle travels there and back.
		want := bytes.Repeat([]byte{0xa5}, size)
		copy(local.Bytes(), want)
		if err := move(orbitte.Write, 0, size); err != nil {
			return err
		}
		for j := range n {
			want[guard+j] = byte(int(j)*7 + i)
		}
		copy(local.Bytes(), want)
		if err := move(orbitte.Write, guard, n); err != nil {
			return err
		}
		clear(local.Bytes())
		if err := move(orbitte.Read, 0, size); err != nil {
			return err
		}
		if !bytes.Equal(local.Bytes(), want) {
			return errors.New("a payload or a guard byte differs")
		}
		fmt.Printf("%d bytes went there and came back, no guard byte was touched\n", n)
	}
	return e.CloseSegment(ctx, segment)
}
