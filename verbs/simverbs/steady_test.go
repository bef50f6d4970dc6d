package simverbs_test

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// The calls of the lane allocate nothing, as verbs.Calls promises, nor does the fabric behind them.
func TestCallsOfTheLaneAllocateNothing(t *testing.T) {
	for _, p := range []simverbs.Personality{simverbs.Hardware, simverbs.SoftRoCE} {
		f := newFabric(t, simverbs.Options{Personality: p})
		an, bn := open(t, f, "a"), open(t, f, "b")
		channel, err := an.CreateChannel(an.device)
		an.must(err)
		a, b := an.end(16, channel), bn.end(16, 0)
		join(a, b)
		from, to := a.piece(64<<10, 1, everyone), b.piece(64<<10, 2, everyone)
		sends := []verbs.SendWork{writing(1, from, to, 64<<10), {ID: 2, Operation: verbs.Send, Flags: verbs.Signaled | verbs.Fence, Address: from.address, Length: 141, LocalKey: from.local}}
		receives := []verbs.ReceiveWork{{ID: 3, Address: to.address, Length: 256, LocalKey: to.local}}
		done := 0
		round := func() {
			must := func(err error) {
				if err != nil {
					t.Fatal(err)
				}
			}
			must(a.Arm(a.sends))
			_, err := b.PostReceive(b.pair, receives)
			must(err)
			_, err = a.PostSend(a.pair, sends)
			must(err)
			for f.Step() {
			}
			_, _, err = a.NextEvent(channel)
			must(err)
			_, _, err = a.NextAsync(a.device)
			must(err)
			for _, e := range []*end{a, b} {
				sent, received, err := e.Poll(e.sends, e.receives, e.buffer[:])
				must(err)
				done += sent + received
			}
		}
		for range 50 {
			round()
		}
		if n := testing.AllocsPerRun(50, round); n != 0 {
			t.Errorf("%v: %v allocations for a round of calls", p, n)
		}
		if done != 3*101 {
			t.Errorf("%v: %d completions, want %d", p, done, 3*101)
		}
	}
}

// eventfd is a signal over a real descriptor.
func eventfd(*simverbs.Process) (descriptor int, set, clear, end func(), err error) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return 0, nil, nil, nil, err
	}
	one := binary.NativeEndian.AppendUint64(nil, 1)
	set = func() { _, _ = unix.Write(fd, one) }
	clear = func() {
		var b [8]byte
		_, _ = unix.Read(fd, b[:])
	}
	return fd, set, clear, func() { _ = unix.Close(fd) }, nil
}

// With a real clock, real descriptors and somebody who drives it, the fabric serves goroutines that wait in poll(2).
func TestAFabricServesGoroutinesWithARealClock(t *testing.T) {
	began := time.Now()
	o := simverbs.Options{Now: func() time.Duration { return time.Since(began) }, Signal: eventfd}
	t.Run("Pump", func(t *testing.T) {
		f := newFabric(t, o)
		var stop atomic.Bool
		var pump sync.WaitGroup
		pump.Add(1)
		go func() {
			defer pump.Done()
			for !stop.Load() {
				if f.Pump() != 0 {
					time.Sleep(20 * time.Microsecond)
				}
				runtime.Gosched()
			}
		}()
		serveFour(t, f)
		stop.Store(true)
		pump.Wait()
	})
	t.Run("Later", func(t *testing.T) {
		o.Later = func(d time.Duration, f func()) { time.AfterFunc(d, f) }
		serveFour(t, newFabric(t, o))
	})
}

// serveFour runs four connections on goroutines of their own.
func serveFour(t *testing.T, f *simverbs.Fabric) {
	var users sync.WaitGroup
	for i := range 4 {
		name := string(rune('a' + 2*i))
		an, bn := open(t, f, name), open(t, f, name+"'")
		channel, err := an.CreateChannel(an.device)
		an.must(err)
		a, b := an.end(16, channel), bn.end(16, 0)
		join(a, b)
		from, to := a.piece(30000, byte(i+1), everyone), b.piece(30000, 0, everyone)
		users.Add(1)
		go func() {
			defer users.Done()
			a.serve(t, channel, from, to)
			if !bytes.Equal(from.bytes, to.bytes) {
				t.Errorf("pair %d: bytes differ", i)
			}
			a.must(a.ModifyPair(a.pair, verbs.Transition{To: verbs.PairError}))
			a.must(a.DestroyPair(a.pair))
			a.must(a.Deregister(from.handle))
			a.must(a.DestroyQueue(a.sends))
			a.must(a.DestroyQueue(a.receives))
			a.must(a.DestroyChannel(channel))
			a.must(a.FreeDomain(a.domain))
			a.must(a.CloseDevice(a.device))
			b.windUp(to)
		}()
	}
	users.Wait()
	noneLive(t, f)
}

// serve writes 40 times, waiting for each event in poll(2).
func (e *end) serve(t *testing.T, channel verbs.ChannelHandle, from, to piece) {
	fds := []unix.PollFd{{Fd: int32(e.ChannelDescriptor(channel)), Events: unix.POLLIN}}
	for i := range 40 {
		if err := e.Arm(e.sends); err != nil {
			t.Error(err)
			return
		}
		if _, err := e.PostSend(e.pair, []verbs.SendWork{writing(uint64(i), from, to, 30000)}); err != nil {
			t.Error(err)
			return
		}
		n, err := unix.Poll(fds, 10000)
		for err == unix.EINTR { // the runtime preempts by a signal
			n, err = unix.Poll(fds, 10000)
		}
		if n != 1 {
			t.Errorf("no event: %v", err)
			return
		}
		if _, some, err := e.NextEvent(channel); !some || err != nil {
			t.Errorf("no event in the channel: %v", err)
		}
		sent, _, err := e.Poll(e.sends, 0, e.buffer[:])
		if sent != 1 || err != nil || e.buffer[0].Status != success || e.buffer[0].ID != uint64(i) {
			t.Errorf("round %d: %d completions, the first %+v: %v", i, sent, e.buffer[0], err)
			return
		}
	}
}

// BenchmarkWrite is what a WRITE of 1 MiB and its completion cost in the twin.
func BenchmarkWrite(b *testing.B) {
	f := simverbs.NewFabric(1, simverbs.Options{})
	from, to := couple(b, f)
	source, target := from.piece(1<<20, 1, everyone), to.piece(1<<20, 2, everyone)
	b.SetBytes(1 << 20)
	for b.Loop() {
		from.post(writing(1, source, target, 1<<20))
		settle(f, from)
		from.sent = from.sent[:0]
	}
}
