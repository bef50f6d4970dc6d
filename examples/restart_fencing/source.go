package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/orbitte/orbitte"
)

// serve is the child process: it publishes its text until it is killed, or nobody wants it any more.
func serve() error {
	engine, err := orbitte.Open(orbitte.Config{Bind: os.Args[2]})
	if err != nil {
		return err
	}
	memory, err := orbitte.Allocate(size)
	if err != nil {
		return err
	}
	copy(memory.Bytes(), os.Args[3])
	if _, err := engine.Register(memory, 0, size, orbitte.RemoteRead); err != nil {
		return err
	}
	fmt.Println(engine.Endpoint(), engine.Epoch(), memory.Address())
	time.Sleep(time.Minute) // the parent kills it long before
	return nil
}

// read opens a segment of the source with its own epoch and READs the text.
func (s *source) read(ctx context.Context, e *orbitte.Engine, local *orbitte.Memory) (*orbitte.Segment, string, error) {
	segment, err := e.OpenSegment(ctx, s.endpoint, s.epoch)
	if err != nil {
		return nil, "", err
	}
	_, err = e.SubmitAndWait(ctx, []orbitte.Request{{Operation: orbitte.Read, Segment: segment, Local: local.Address(), Remote: s.address, Length: size}})
	return segment, strings.TrimRight(string(local.Bytes()), "\x00"), err
}
