package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/rs/zerolog"

	"github.com/orbitte/orbitte"
)

const length = 1 << 20

func main() {
	log.SetFlags(0)
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// A logger gets structured lines, at most one of a kind in a second; without one the engine is silent.
	logger := zerolog.New(os.Stderr).With().Timestamp().Logger()
	source, err := orbitte.Open(orbitte.Config{
		Logger: &logger,
		// What is zero keeps its default. A limit refuses before anything happens.
		Limits: orbitte.Limits{PayloadBytes: length, SourceHandlers: 8, SourceQueue: 16},
	})
	if err != nil {
		return err
	}
	defer source.Close(ctx)
	published, err := register(source, orbitte.RemoteRead)
	if err != nil {
		return err
	}
	defer published.Close()

	// The requester has no threads: its lanes move only inside Progress and inside calls that wait.
	requester, err := orbitte.Open(orbitte.Config{Progress: orbitte.Manual})
	if err != nil {
		return err
	}
	defer requester.Close(ctx)
	local, err := register(requester, orbitte.LocalOnly)
	if err != nil {
		return err
	}
	defer local.Close()
	segment, err := requester.OpenSegment(ctx, source.Endpoint(), source.Epoch())
	if err != nil {
		return err
	}
	batch, err := requester.Submit(ctx, []orbitte.Request{{
		Operation: orbitte.Read, Segment: segment, Local: local.Address(), Remote: published.Address(), Length: length,
	}})
	if err != nil {
		return err
	}
	defer batch.Free()
	rounds := 0
	for {
		requester.Progress(time.Millisecond) // waits no longer when there is nothing to do
		rounds++                             // here a program's own loop does its work
		report, ended, err := batch.Poll()
		if err != nil {
			return err
		}
		if ended {
			fmt.Printf("%d bytes over %s\n", report.Bytes, report.Path)
			break
		}
	}
	fmt.Fprintf(os.Stderr, "after %d rounds of our own loop\n", rounds)

	// Stats may be read at any time. A gauge is one limit: what is used, the most it was, how often it refused.
	stats := requester.Stats()
	fmt.Printf("read %d bytes in %d READs\n", stats.Totals.BytesRead, stats.Totals.ReadsDone)
	for _, g := range stats.Gauges {
		if g.Used > 0 {
			fmt.Printf("%s: %d of %d %s\n", g.Name, g.Used, g.Limit, g.Unit)
		}
	}
	return nil
}

// register allocates and registers memory, which keeps itself until it is closed.
func register(e *orbitte.Engine, permission orbitte.Permission) (*orbitte.Memory, error) {
	memory, err := orbitte.Allocate(length)
	if err != nil {
		return nil, err
	}
	_, err = e.Register(memory, 0, length, permission)
	return memory, err
}
