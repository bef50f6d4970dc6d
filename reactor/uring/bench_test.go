package uring_test

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/epoll"
	"github.com/orbitte/orbitte/reactor/uring"
)

// The benchmarks compare the kernels with a raw loop of non-blocking calls in one run:
//
//	go test -run '^$' -bench . -benchtime 1s -count 5 ./reactor/uring
//
// Each end of the stream has a locked thread and a kernel of its own, as lanes have.

var benchmarked = []struct {
	name string
	open func() (reactor.Kernel, error)
}{
	{"io_uring", func() (reactor.Kernel, error) { return uring.New(uring.Options{}) }},
	{"epoll", func() (reactor.Kernel, error) { return epoll.New(epoll.Options{}) }},
}

// modes are how long a Poll may wait.
var modes = []struct {
	name string
	wait func(reactor.Kernel) reactor.Instant
}{
	{"spin", func(reactor.Kernel) reactor.Instant { return 0 }},
	{"block", func(reactor.Kernel) reactor.Instant { return reactor.Forever }},
}

// end is one end of a stream on its own kernel.
type end struct {
	b    *testing.B
	k    reactor.Kernel
	d    reactor.Descriptor
	wait func(reactor.Kernel) reactor.Instant
	out  [8]reactor.Completion
	op   reactor.Operation // reused, since a pointer through an interface moves what it points to to the heap
}

// do performs one operation to its end.
func (e *end) do(kind reactor.Kind, buffer []byte) int {
	e.op = reactor.Operation{Kind: kind, Descriptor: e.d, Ticket: e.op.Ticket + 1, Buffers: [2][]byte{buffer}}
	e.k.Submit(&e.op)
	for {
		if e.k.Poll(e.out[:], e.wait(e.k)) > 0 {
			if e.out[0].Err != nil {
				e.b.Error(e.out[0].Err)
				runtime.Goexit()
			}
			return e.out[0].N
		}
	}
}

func (e *end) all(kind reactor.Kind, buffer []byte) {
	for len(buffer) > 0 {
		n := e.do(kind, buffer)
		if n == 0 {
			runtime.Goexit()
		}
		buffer = buffer[n:]
	}
}

// streams connects two descriptors over loopback, for kernels that are opened later.
func streams(b *testing.B) (reactor.Descriptor, reactor.Descriptor) {
	k, err := epoll.New(epoll.Options{AnyThread: true})
	if err != nil {
		b.Fatal(err)
	}
	client, server := connected(b, k)
	if err := k.Shutdown(); err != nil {
		b.Fatal(err)
	}
	return client, server
}

// pin keeps the calling goroutine's thread on one CPU; the thread ends with the goroutine. Two spinning
// threads on one CPU would measure the scheduler's time slice.
func pin(cpu int) {
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(cpu % runtime.NumCPU())
	_ = unix.SchedSetaffinity(0, &set)
}

// lane runs f with a kernel of its own on a locked thread.
func lane(b *testing.B, open func() (reactor.Kernel, error), wait func(reactor.Kernel) reactor.Instant,
	cpu int, d reactor.Descriptor, f func(*end)) chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		pin(cpu)
		k, err := open()
		if err == nil {
			err = k.Bind()
		}
		if err != nil {
			b.Error(err)
			return
		}
		if _, err := k.Tune(d, reactor.SocketOptions{Congestion: "auto"}); err != nil {
			b.Error(err)
		}
		f(&end{b: b, k: k, d: d, wait: wait})
		if err := k.Close(d); err != nil {
			b.Error(err)
		}
		if err := k.Shutdown(); err != nil {
			b.Error(err)
		}
	}()
	return done
}

func BenchmarkPingPong64B(b *testing.B) {
	b.Run("raw/spin", func(b *testing.B) {
		client, server := streams(b)
		rawPair(b, client, server, func(fd int) {
			buffer := make([]byte, 64)
			for range b.N {
				rawAll(fd, buffer, rawSend)
				rawAll(fd, buffer, rawReceive)
			}
		}, func(fd int) {
			buffer := make([]byte, 64)
			for range b.N {
				rawAll(fd, buffer, rawReceive)
				rawAll(fd, buffer, rawSend)
			}
		})
	})
	for _, m := range modes {
		for _, k := range benchmarked {
			b.Run(k.name+"/"+m.name, func(b *testing.B) {
				client, server := streams(b)
				b.ReportAllocs()
				b.ResetTimer()
				one := lane(b, k.open, m.wait, 0, server, func(e *end) {
					buffer := make([]byte, 64)
					for range b.N {
						e.all(reactor.Receive, buffer)
						e.all(reactor.Send, buffer)
					}
				})
				other := lane(b, k.open, m.wait, 1, client, func(e *end) {
					buffer := make([]byte, 64)
					for range b.N {
						e.all(reactor.Send, buffer)
						e.all(reactor.Receive, buffer)
					}
					b.ReportMetric(float64(e.k.Counters().Crossings)/float64(b.N), "crossings/op")
				})
				<-one
				<-other
			})
		}
	}
}

func BenchmarkOneWay1MiB(b *testing.B) {
	const size = 1 << 20
	b.Run("raw/spin", func(b *testing.B) {
		b.SetBytes(size)
		client, server := streams(b)
		rawPair(b, client, server, func(fd int) {
			buffer := make([]byte, size)
			for range b.N {
				rawAll(fd, buffer, rawSend)
			}
		}, func(fd int) {
			buffer := make([]byte, size)
			for range b.N {
				rawAll(fd, buffer, rawReceive)
			}
		})
	})
	for _, m := range modes {
		for _, k := range benchmarked {
			b.Run(k.name+"/"+m.name, func(b *testing.B) {
				client, server := streams(b)
				b.SetBytes(size)
				b.ReportAllocs()
				b.ResetTimer()
				one := lane(b, k.open, m.wait, 0, server, func(e *end) {
					buffer := make([]byte, size)
					for range b.N {
						e.all(reactor.Receive, buffer)
					}
					b.ReportMetric(float64(e.k.Counters().Crossings)/float64(b.N), "received-crossings/op")
				})
				other := lane(b, k.open, m.wait, 1, client, func(e *end) {
					buffer := make([]byte, size)
					for range b.N {
						e.all(reactor.Send, buffer)
					}
				})
				<-one
				<-other
			})
		}
	}
}

func rawPair(b *testing.B, client, server reactor.Descriptor, f, g func(fd int)) {
	b.ResetTimer()
	done := make(chan struct{}, 2)
	for cpu, run := range [...]func(){func() { f(int(client)) }, func() { g(int(server)) }} {
		go func() {
			pin(cpu)
			run()
			done <- struct{}{}
		}()
	}
	<-done
	<-done
	_, _ = unix.Close(int(client)), unix.Close(int(server))
}
