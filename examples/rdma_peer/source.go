package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/orbitte/orbitte"
)

const (
	size  = 2 << 20
	guard = 4099 // bytes before the payload; odd, so that nothing is aligned by chance
)

// publish opens the source and registers its memory for peers.
func publish(bind string) (*orbitte.Engine, *orbitte.Memory, error) {
	e, err := open(bind, orbitte.HostDirect)
	if err != nil {
		return nil, nil, err
	}
	memory, err := orbitte.Allocate(size)
	if err == nil {
		_, err = e.Register(memory, 0, size, orbitte.ReadWrite)
	}
	if err != nil {
		e.Close(context.Background())
		return nil, nil, err
	}
	return e, memory, nil
}

// serve is the source as a process of its own.
func serve(bind string) error {
	e, memory, err := publish(bind)
	if err != nil {
		return err
	}
	fmt.Printf("rdma_peer peer %s %v\n", e.Endpoint(), e.Epoch())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	<-ctx.Done()
	return end(e, memory)
}

// alone runs both roles.
func alone() error {
	e, memory, err := publish("127.0.0.1:0")
	if err != nil {
		return err
	}
	err = visit(e.Endpoint(), e.Epoch().String())
	if ended := end(e, memory); err == nil {
		err = ended
	}
	return err
}

func end(e *orbitte.Engine, memory *orbitte.Memory) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := e.Close(ctx); err != nil { // the devices may still reach the memory: it stays
		return err
	}
	return memory.Close()
}
