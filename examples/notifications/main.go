package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/orbitte/orbitte"
)

const (
	blocks = 4
	block  = 64 << 10
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
	decode, err := orbitte.Open(orbitte.Config{}) // receives blocks, as a decode worker does
	if err != nil {
		return err
	}
	defer decode.Close(ctx)
	prefill, err := orbitte.Open(orbitte.Config{}) // sends them
	if err != nil {
		return err
	}
	defer prefill.Close(ctx)
	inbox, err := register(decode, orbitte.RemoteWrite) // peers may write it, but not read it
	if err != nil {
		return err
	}
	defer inbox.Close()
	outbox, err := register(prefill, orbitte.LocalOnly)
	if err != nil {
		return err
	}
	defer outbox.Close()

	// The receiver waits on a goroutine of its own and looks at the data when it is told.
	told := make(chan error, 1)
	go func() { told <- receive(ctx, decode, inbox) }()

	segment, err := prefill.OpenSegment(ctx, decode.Endpoint(), decode.Epoch())
	if err != nil {
		return err
	}
	var requests []orbitte.Request
	for i := range uint64(blocks) {
		outbox.Bytes()[i*block] = byte(i + 1)
		requests = append(requests, orbitte.Request{Operation: orbitte.Write, Segment: segment, Local: outbox.Address() + i*block, Remote: inbox.Address() + i*block, Length: block})
	}
	report, err := prefill.SubmitAndNotify(ctx, requests, orbitte.Notification{Name: "blocks", Message: "request 17 is ready"})
	if err != nil {
		return err
	}
	// Delivered: it is in the peer's inbox. Whether the peer has consumed it, a receipt cannot know.
	fmt.Printf("sent %d blocks, %d bytes; notification %v\n", report.Completed, report.Bytes, report.Notification.Status)
	if err := <-told; err != nil {
		return err
	}

	// A failed batch notifies nobody: the inbox may not be read by peers.
	requests[0].Operation = orbitte.Read
	report, err = prefill.SubmitAndNotify(ctx, requests, orbitte.Notification{Name: "blocks", Message: "never sent"})
	if !errors.Is(err, orbitte.ErrPermission) || report.Notification.Status != orbitte.Skipped {
		return fmt.Errorf("a failed batch ended with %v and notification %v", err, report.Notification.Status)
	}
	fmt.Printf("a batch that fails: notification %v\n", report.Notification.Status)
	return nil
}

func receive(ctx context.Context, e *orbitte.Engine, inbox *orbitte.Memory) error {
	notes, err := e.AwaitNotifications(ctx)
	if err != nil {
		return err
	}
	for i := range blocks {
		if inbox.Bytes()[i*block] != byte(i+1) {
			return fmt.Errorf("block %d is not there", i)
		}
	}
	fmt.Printf("received %q: %q, and every block is in place\n", notes[0].Name, notes[0].Message)
	return nil
}

func register(e *orbitte.Engine, p orbitte.Permission) (*orbitte.Memory, error) {
	memory, err := orbitte.Allocate(blocks * block)
	if err != nil {
		return nil, err
	}
	_, err = e.Register(memory, 0, blocks*block, p)
	return memory, err
}
