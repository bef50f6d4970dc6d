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
	tasks = 16
	block = 256 << 10
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
	remote, err := register(source, orbitte.RemoteRead)
	if err != nil {
		return err
	}
	defer remote.Close()
	for i := range remote.Bytes() {
		remote.Bytes()[i] = byte(i / block)
	}
	local, err := register(requester, orbitte.LocalOnly)
	if err != nil {
		return err
	}
	defer local.Close()
	segment, err := requester.OpenSegment(ctx, source.Endpoint(), source.Epoch())
	if err != nil {
		return err
	}
	var requests []orbitte.Request
	for i := range uint64(tasks) {
		requests = append(requests, orbitte.Request{Operation: orbitte.Read, Segment: segment, Local: local.Address() + i*block, Remote: remote.Address() + i*block, Length: block})
	}

	// Submit checks everything, starts and returns. Everything that the batch needs is borrowed by now: it
	// goes on even if a registration is taken back meanwhile.
	batch, err := requester.Submit(ctx, requests)
	if err != nil {
		return err
	}
	if _, terminal, _ := batch.Poll(); !terminal { // never blocks
		state, _, _ := batch.Task(tasks - 1)
		fmt.Printf("right after Submit the last task is %v\n", state)
	}
	<-batch.Done() // for select; Wait(ctx) is the same with a context
	report, err := batch.Wait(ctx)
	if err != nil {
		return err
	}
	for i := range tasks {
		if state, n, err := batch.Task(i); state != orbitte.TaskSucceeded || n != block {
			return fmt.Errorf("task %d: %v, %d bytes, %v", i, state, n, err)
		}
	}
	if !bytes.Equal(local.Bytes(), remote.Bytes()) {
		return errors.New("the bytes differ")
	}
	fmt.Printf("%d of %d tasks, %d bytes over %s\n", report.Completed, batch.Len(), report.Bytes, report.Path)
	if err := batch.Free(); err != nil { // until then it counts against Limits.Batches
		return err
	}
	return cancelled(ctx, requester, requests)
}

// cancelled ends a batch early. What was queued posts nothing; the report has the completed prefix, and says
// whether the memory is quiet.
func cancelled(ctx context.Context, requester *orbitte.Engine, requests []orbitte.Request) error {
	batch, err := requester.Submit(ctx, requests)
	if err != nil {
		return err
	}
	defer batch.Free()
	batch.Cancel()
	report, err := batch.Wait(ctx)
	if err != nil && !errors.Is(err, context.Canceled) || !report.LocallyDrained {
		return fmt.Errorf("cancelled: %v, drained %v", err, report.LocallyDrained)
	}
	fmt.Printf("cancelled after %d of %d tasks; the memory is quiet\n", report.Completed, tasks)
	return nil
}

func register(e *orbitte.Engine, p orbitte.Permission) (*orbitte.Memory, error) {
	memory, err := orbitte.Allocate(tasks * block)
	if err != nil {
		return nil, err
	}
	_, err = e.Register(memory, 0, tasks*block, p)
	return memory, err
}
