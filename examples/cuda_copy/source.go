package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/orbitte/orbitte"
)

// source is an engine with memory of a GPU that peers may read and write.
type source struct {
	engine *orbitte.Engine
	memory *orbitte.Memory
	export *orbitte.Registration
}

func publish(w *way, bind string, ordinal int) (s source, err error) {
	if s.memory, err = orbitte.AllocateDevice(w.driver, ordinal, callers*slot); err != nil {
		return s, err
	}
	if s.engine, err = w.open(bind); err != nil {
		return s, errors.Join(err, s.memory.Close())
	}
	if s.export, err = s.engine.Register(s.memory, 0, callers*slot, orbitte.ReadWrite); err != nil {
		return s, errors.Join(err, s.end())
	}
	return s, nil
}

// end gives everything back: first the engine, whose copies may still touch the memory.
func (s source) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := s.engine.Close(ctx)
	if s.export != nil {
		err = errors.Join(err, s.engine.Unregister(ctx, s.export))
	}
	return errors.Join(err, s.memory.Close())
}

// serve is the source as a process of its own.
func serve(w *way, bind string, ordinal int) error {
	s, err := publish(w, bind, ordinal)
	if err != nil {
		return err
	}
	fmt.Printf("cuda_copy peer %s %v\n", s.engine.Endpoint(), s.engine.Epoch())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	<-ctx.Done()
	return s.end()
}

// alone runs both roles on one GPU.
func alone(w *way, ordinal int) error {
	s, err := publish(w, "127.0.0.1:0", ordinal)
	if err != nil {
		return err
	}
	err = crowd(w, s, ordinal)
	if err == nil {
		err = visit(w, s.engine.Endpoint(), s.engine.Epoch().String(), ordinal)
	}
	return errors.Join(err, s.end())
}
