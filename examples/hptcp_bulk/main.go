package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/orbitte/orbitte"
)

const size = 48 << 20 // more than one payload (8 MiB): over HP-TCP only each chunk is bounded by that

func main() {
	log.SetFlags(0)
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	source, err := orbitte.Open(orbitte.Config{HPTCP: &orbitte.HPTCPConfig{}})
	if err != nil {
		return err
	}
	defer source.Close(ctx)
	weights, err := orbitte.Allocate(size)
	if err != nil {
		return err
	}
	defer weights.Close()
	rand.Read(weights.Bytes()) // never fails
	published, err := source.Register(weights, 0, size, orbitte.RemoteRead, orbitte.OverHPTCP)
	if err != nil {
		return err
	}
	defer source.Unregister(ctx, published)
	return fetch(ctx, source.Endpoint(), source.Epoch(), published.Address(), sha256.Sum256(weights.Bytes()))
}

// fetch is the other process's part.
func fetch(ctx context.Context, endpoint string, epoch orbitte.Epoch, address uint64, want [sha256.Size]byte) error {
	// The side that asks chooses checksums, for both directions.
	replica, err := orbitte.Open(orbitte.Config{HPTCP: &orbitte.HPTCPConfig{Checksums: true}})
	if err != nil {
		return err
	}
	defer replica.Close(ctx)
	memory, err := orbitte.Allocate(size)
	if err != nil {
		return err
	}
	defer memory.Close()
	local, err := replica.Register(memory, 0, size, orbitte.LocalOnly)
	if err != nil {
		return err
	}
	defer replica.Unregister(ctx, local)
	segment, err := replica.OpenSegment(ctx, endpoint, epoch)
	if err != nil {
		return err
	}
	defer replica.CloseSegment(ctx, segment)
	if _, err := segment.Path(orbitte.Read, orbitte.TransportHPTCP); err != nil {
		return err // it says what is missing, and on which side; nothing becomes plain TCP
	}
	// One request; the engine cuts it into chunks and keeps several on their way.
	began := time.Now()
	report, err := replica.SubmitAndWait(ctx, []orbitte.Request{{
		Operation: orbitte.Read, Transport: orbitte.TransportHPTCP, Segment: segment, Local: memory.Address(), Remote: address, Length: size,
	}})
	if err != nil {
		return err
	}
	took := time.Since(began)
	if sha256.Sum256(memory.Bytes()) != want {
		return errors.New("the bytes that arrived are not those that were published")
	}
	stats := replica.Stats().HPTCP
	fmt.Printf("read %d bytes over %s at %.1f GB/s in %d requests\n", report.Bytes, report.Path, float64(report.Bytes)/float64(took.Nanoseconds()), stats.Requests)
	fmt.Printf("verified: the same bytes, %d chunks with a wrong CRC32C\n", stats.Mismatches)
	return nil
}
