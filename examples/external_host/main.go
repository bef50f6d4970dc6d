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

const (
	size  = 256 << 10
	block = 4 << 10
)

func main() {
	log.SetFlags(0)
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
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

	// The memory exists before the engine hears of it, and outlives it.
	arena, err := newArena(size)
	if err != nil {
		return err
	}
	memory, err := arena.adopt()
	if err != nil {
		return err
	}
	for i := range size / block {
		copy(arena.bytes[i*block:], bytes.Repeat([]byte{byte(i)}, block))
	}
	// Only a part is published: the second quarter. Addresses outside are refused, whatever is behind them.
	registration, err := source.Register(memory, size/4, size/4, orbitte.RemoteRead)
	if err != nil {
		return err
	}

	// The requester's side is a plain Go slice, pinned as long as the engine may touch it.
	slice := make([]byte, size/4)
	local, err := orbitte.Adopt(slice)
	if err != nil {
		return err
	}
	defer local.Close()
	if _, err := requester.Register(local, 0, uint64(len(slice)), orbitte.LocalOnly); err != nil {
		return err
	}
	segment, err := requester.OpenSegment(ctx, source.Endpoint(), source.Epoch())
	if err != nil {
		return err
	}
	read := orbitte.Request{Operation: orbitte.Read, Segment: segment, Local: local.Address(), Remote: registration.Address(), Length: size / 4}
	if _, err := requester.SubmitAndWait(ctx, []orbitte.Request{read}); err != nil {
		return err
	}
	if !bytes.Equal(slice, arena.bytes[size/4:size/2]) {
		return errors.New("the bytes differ")
	}
	fmt.Printf("READ %d bytes of foreign memory at %#x into a Go slice\n", size/4, registration.Address())

	read.Remote-- // one byte before the published range
	if _, err := requester.SubmitAndWait(ctx, []orbitte.Request{read}); !errors.Is(err, orbitte.ErrUnknownRegion) {
		return fmt.Errorf("a byte outside was not refused: %v", err)
	}
	fmt.Println("the byte before the published range is refused")

	// Unregister returns nil only when the engine cannot touch the memory any more: now it may end.
	if err := source.Unregister(ctx, registration); err != nil {
		return err
	}
	memory.Close()
	fmt.Println("unregistered: the memory is its owner's again")
	return arena.end()
}
