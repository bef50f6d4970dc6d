package orbitte

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/orbitte/orbitte/cuda/simcuda"
)

// Eight callers at once move memory between GPUs over real sockets, each in ranges of its own of shared memory objects,
// while registrations of other memory come and go; every byte is checked, and all is given back.
//
// proves C-4, C-5, M-9
func TestManyCallersShareGPUsOverRealSockets(t *testing.T) {
	eachKernel(t, func(t *testing.T, c Config) {
		const callers, slot = 8, 40 << 10
		here, there := realTwin(t, simcuda.Options{}), realTwin(t, simcuda.Options{})
		limits := Limits{StagingChunkBytes: 4093, PinnedStagingBytes: 2 * 4 * 4093 * 2}
		c.Lanes, c.Limits = 2, limits
		source, requester := c, c
		source.CUDA, requester.CUDA = there, here
		p := &pair{source: newEngine(t, source), requester: newEngine(t, requester)}
		p.remote, p.local = onGPU(t, there, 0, callers*slot), onGPU(t, here, 1, callers*slot)
		p.export, p.own = registered(t, p.source, p.remote, ReadWrite), registered(t, p.requester, p.local, ReadWrite)
		p.segment = opened(t, p.requester, p.source)
		own := opened(t, p.requester, p.requester)
		hosts := allocated(t, callers*slot)
		registered(t, p.requester, hosts, LocalOnly)
		ctx := within(t, time.Minute)
		var group sync.WaitGroup
		for i := range callers {
			group.Go(func() {
				if err := caller(ctx, p, own, hosts, i*slot, slot); err != nil {
					t.Errorf("caller %d: %v", i, err)
				}
			})
		}
		group.Go(func() {
			for range 20 {
				m, err := AllocateDevice(here, 0, 100)
				if err != nil {
					t.Error(err)
					return
				}
				r, err := p.requester.Register(m, 0, 100, ReadWrite)
				if err == nil {
					err = errors.Join(m.Close(), p.requester.Unregister(ctx, r))
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
		group.Wait()
		if s := p.requester.Stats().CUDA; s.Copies == 0 || s.ChunksInUse != 0 || s.CopiesInFlight != 0 || s.Waiting != 0 || s.Retained != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// caller fills its range of host memory, moves it to the own GPU, to the other one and back, and compares.
func caller(ctx context.Context, p *pair, own *Segment, hosts *Memory, at, slot int) error {
	mine := hosts.Bytes()[at : at+slot]
	for round := range 4 {
		n := slot - 5 - round*4093
		for i := range mine {
			mine[i] = byte(i*5 + i>>8 + at>>10 + round)
		}
		want := bytes.Clone(mine)
		move := func(op Operation, s *Segment, local, remote *Memory) Request {
			return Request{Operation: op, Segment: s, Local: local.Address() + uint64(at+3), Remote: remote.Address() + uint64(at+3), Length: uint64(n)}
		}
		_, err := p.requester.SubmitAndWait(ctx, []Request{
			move(Write, own, hosts, p.local), move(Write, p.segment, p.local, p.remote), move(Read, p.segment, p.local, p.remote),
		})
		if err != nil {
			return err
		}
		clear(mine[3 : 3+n])
		if _, err = p.requester.SubmitAndWait(ctx, []Request{move(Read, own, hosts, p.local)}); err != nil {
			return err
		}
		if !bytes.Equal(mine, want) {
			return fmt.Errorf("round %d: the bytes differ", round)
		}
	}
	return nil
}

// Engines that are closed with copies under way, and memory that is closed before its registration, end in any order.
//
// proves G-6, C-3, U-2
func TestEnginesCloseWhileCopiesAreUnderWay(t *testing.T) {
	eachMode(t, func(t *testing.T, c Config) {
		d := realTwin(t, simcuda.Options{DelayMin: time.Millisecond, DelayMax: 20 * time.Millisecond})
		c.CUDA, c.Limits = d, small
		e := newEngine(t, c)
		first, second := onGPU(t, d, 0, 30<<10), onGPU(t, d, 1, 30<<10)
		registered(t, e, first, ReadWrite)
		r := registered(t, e, second, ReadWrite)
		host := allocated(t, 30<<10)
		registered(t, e, host, LocalOnly)
		own := opened(t, e, e)
		var batches []*Batch
		for i := range 6 {
			local := [...]*Memory{host, first}[i%2]
			b, err := e.Submit(within(t, time.Minute), []Request{{Operation: [...]Operation{Read, Write}[i/3], Segment: own, Local: local.Address() + uint64(i*5000), Remote: second.Address() + uint64(i*5000), Length: 5000}})
			must(t, err)
			batches = append(batches, b)
		}
		for c.Progress != Manual && e.Stats().CUDA.CopiesInFlight == 0 {
			runtime.Gosched()
		}
		batches[3].Cancel()
		must(t, e.Unregister(within(t, time.Minute), r))
		closeEngine(t, e)
		for i, b := range batches {
			report, err := b.Wait(soon(t))
			over := err == nil || errors.Is(err, ErrCancelled) || errors.Is(err, ErrUnknownRegion) // unregistered before its turn
			if !over || !report.LocallyDrained {
				t.Errorf("batch %d: %+v, %v", i, report, err)
			}
			must(t, b.Free())
		}
	})
}
