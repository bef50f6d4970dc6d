package main

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/cuda"
)

// plain is the baseline: pinned memory, one stream, one event, and the driver's own asynchronous copy.
type plain struct {
	calls   cuda.Calls
	ordinal int
	context cuda.ContextHandle
	stream  cuda.StreamHandle
	event   cuda.EventHandle
	signal  cuda.SignalHandle
	device  cuda.Pointer
	host    uint64
}

func openPlain(calls cuda.Calls, ordinal, bytes int) (*plain, error) {
	p := &plain{calls: calls, ordinal: ordinal}
	var err error
	if p.context, err = calls.AcquirePrimary(ordinal); err != nil {
		return nil, err
	}
	var errs [5]error
	p.stream, errs[0] = calls.CreateStream(p.context)
	p.event, errs[1] = calls.CreateEvent(p.context)
	p.signal, errs[2] = calls.OpenSignal()
	p.device, errs[3] = calls.Allocate(p.context, uint64(bytes))
	p.host, errs[4] = calls.AllocateHost(p.context, uint64(bytes))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// close ends what there is.
func (p *plain) close() error {
	var errs []error
	end := func(made bool, act func() error) {
		if made {
			errs = append(errs, act())
		}
	}
	end(p.stream != 0, func() error { return p.calls.Synchronize(p.context, p.stream) })
	end(p.signal != 0, func() error { p.calls.CloseSignal(p.signal); return nil })
	end(p.event != 0, func() error { return p.calls.DestroyEvent(p.context, p.event) })
	end(p.stream != 0, func() error { return p.calls.DestroyStream(p.context, p.stream) })
	end(p.device != 0, func() error { return p.calls.Free(p.context, p.device) })
	end(p.host != 0, func() error { return p.calls.FreeHost(p.context, p.host) })
	end(true, func() error { return p.calls.ReleasePrimary(p.ordinal) })
	return errors.Join(errs...)
}

// copy is one copy from submission to proof.
func (p *plain) copy(bytes int, there, signalled bool) error {
	c := cuda.Copy{To: p.device, From: cuda.Pointer(p.host), Bytes: uint64(bytes)}
	if !there {
		c.To, c.From = c.From, c.To
	}
	signal := cuda.SignalHandle(0)
	if signalled {
		signal = p.signal
	}
	if _, err := p.calls.Submit(p.context, p.stream, []cuda.Copy{c}, p.event, signal); err != nil {
		return err
	}
	if signalled {
		if err := p.await(); err != nil {
			return err
		}
	}
	for {
		if done, err := p.calls.Query(p.context, p.event); done || err != nil {
			return err
		}
	}
}

// await sleeps until the callback rings.
func (p *plain) await() error {
	fds := []unix.PollFd{{Fd: int32(p.calls.SignalDescriptor(p.signal)), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 10_000)
	for err == unix.EINTR {
		n, err = unix.Poll(fds, 10_000)
	}
	if err != nil {
		return err
	}
	if n == 0 {
		return fmt.Errorf("no host callback within 10 s")
	}
	_, err = p.calls.TakeSignal(p.signal)
	return err
}
