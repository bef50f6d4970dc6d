package cudatest

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"

	"github.com/orbitte/orbitte/cuda"
)

var copyCases = []conformance{
	{"HostAndDeviceCopiesKeepTheirBounds", hostDevice},
	{"DeviceCopiesKeepTheirBounds", deviceDevice},
	{"CopiesCrossGPUs", acrossDevices},
	{"ZerosKeepTheirBounds", zeros},
	{"ASubmissionRunsInOrder", chain},
	{"OrdinaryHostMemoryIsCopied", ordinary},
	{"ManyStreamsRunSideBySide", manyStreams},
	{"ThreadsComeAndGo", threads},
}

const (
	guard = 67
	span  = 70_001
)

// pieces are sizes and offsets that meet no border of anything.
var pieces = []struct{ offset, size int }{{0, 1}, {1, 1}, {3, 7}, {guard, 255}, {511, 513}, {4095, 4098}, {guard, span - 2*guard}, {0, span}, {span - 1, 1}}

// hostDevice: cuMemcpyAsync between pinned and device memory: exactly the bytes named, both ways.
func hostDevice(r *rig) {
	for _, ordinal := range r.Ordinals {
		s := r.site(ordinal)
		p, h := s.allocate(span), s.pinned(span)
		for i, k := range pieces {
			model := counting(make([]byte, span), byte(i))
			s.store(p, model)
			counting(h.bytes, byte(100+i))
			copy(model[k.offset:][:k.size], h.bytes[span-k.offset-k.size:])
			s.do(cuda.Copy{To: p + cuda.Pointer(k.offset), From: h.at(span - k.offset - k.size), Bytes: uint64(k.size)})
			r.same(fmt.Sprintf("device memory after %+v", k), s.load(p, span), model)

			want := counting(h.bytes, byte(200+i))
			want = append([]byte(nil), want...)
			copy(want[k.offset:][:k.size], model[span-k.offset-k.size:])
			s.do(cuda.Copy{To: h.at(k.offset), From: p + cuda.Pointer(span-k.offset-k.size), Bytes: uint64(k.size)})
			r.same(fmt.Sprintf("pinned memory after %+v", k), h.bytes, want)
		}
	}
}

func deviceDevice(r *rig) {
	s := r.site(r.Ordinals[0])
	s.between(s)
}

func acrossDevices(r *rig) {
	if len(r.Ordinals) < 2 {
		r.Skip("absent: a second GPU")
	}
	s := r.site(r.Ordinals[0])
	s.between(r.site(r.Ordinals[1]))
}

// between copies from one GPU to another, or to other memory of the same.
func (s *site) between(to *site) {
	from, target := s.allocate(span), to.allocate(span)
	for i, k := range pieces {
		source, model := counting(make([]byte, span), byte(i)), counting(make([]byte, span), byte(50+i))
		s.store(from, source)
		to.store(target, model)
		copy(model[k.offset:][:k.size], source[span-k.offset-k.size:])
		s.do(cuda.Copy{To: target + cuda.Pointer(k.offset), From: from + cuda.Pointer(span-k.offset-k.size), Bytes: uint64(k.size)})
		s.same(fmt.Sprintf("target after %+v", k), to.load(target, span), model)
		s.same("source", s.load(from, span), source)
	}
}

func zeros(r *rig) {
	s := r.site(r.Ordinals[0])
	p := s.allocate(span)
	for i, k := range pieces {
		model := counting(make([]byte, span), byte(i))
		s.store(p, model)
		clear(model[k.offset:][:k.size])
		r.must(r.Zero(s.context, s.stream, p+cuda.Pointer(k.offset), uint64(k.size)))
		r.must(r.Synchronize(s.context, s.stream))
		r.same(fmt.Sprintf("zeros %+v", k), s.load(p, span), model)
	}
}

// chain: work on one stream happens in the order in which it was put there.
func chain(r *rig) {
	s := r.site(r.Ordinals[0])
	a, b, h := s.allocate(span), s.allocate(span), s.pinned(2*span)
	counting(h.bytes, 9)
	want := append([]byte(nil), h.bytes[:span]...)
	clear(want[100:200])
	r.must(r.Zero(s.context, s.stream, a, span))
	s.do(
		cuda.Copy{To: a, From: h.at(0), Bytes: 100},
		cuda.Copy{To: a + 200, From: h.at(200), Bytes: span - 200},
		cuda.Copy{To: b, From: a, Bytes: span},
		cuda.Copy{To: h.at(span), From: b, Bytes: span},
	)
	r.same("what came round", h.bytes[span:], want)
}

// ordinary: memory that is not page-locked may be copied as well; the driver sees to it.
func ordinary(r *rig) {
	s := r.site(r.Ordinals[0])
	heap, back := counting(make([]byte, 10_007), 5), make([]byte, 10_007)
	p := s.allocate(10_007)
	s.do(cuda.Copy{To: p, From: cuda.Pointer(addressOf(heap)), Bytes: 10_007})
	s.do(cuda.Copy{To: cuda.Pointer(addressOf(back)), From: p, Bytes: 10_007})
	r.same("ordinary memory", back, heap)
	runtime.KeepAlive(heap)
}

// manyStreams: streams do not wait for each other, and each event speaks for its own stream.
func manyStreams(r *rig) {
	const n, size = 12, 300_007
	s := r.site(r.Ordinals[0])
	h, back := s.pinned(n*size), s.pinned(n*size)
	counting(h.bytes, 1)
	events := make([]cuda.EventHandle, n)
	for i := range n {
		stream, p := s.newStream(), s.allocate(size)
		events[i] = s.newEvent()
		done, err := r.Submit(s.context, stream, []cuda.Copy{
			{To: p, From: h.at(i * size), Bytes: size}, {To: back.at(i * size), From: p, Bytes: size},
		}, events[i], 0)
		r.must(err)
		if done.Copies != 2 || !done.Recorded {
			r.Fatalf("stream %d: %+v", i, done)
		}
	}
	for i := n - 1; i >= 0; i-- {
		s.await(events[i])
		r.same(fmt.Sprintf("bytes of stream %d", i), back.bytes[i*size:(i+1)*size], h.bytes[i*size:(i+1)*size])
	}
}

// threads: calls come from goroutines that change their threads; no thread keeps a context, and none needs one.
func threads(r *rig) {
	const n, rounds, size = 8, 25, 5_003
	sites := make([]*site, n)
	memory, host := make([]cuda.Pointer, n), make([]pinned, n)
	for i := range n {
		sites[i] = r.site(r.Ordinals[i%len(r.Ordinals)])
		memory[i], host[i] = sites[i].allocate(size), sites[i].pinned(2*size)
	}
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			s, h := sites[i], host[i]
			for round := range rounds {
				counting(h.bytes[:size], byte(i*rounds+round))
				hop(round)
				done, err := r.Submit(s.context, s.stream, []cuda.Copy{
					{To: memory[i], From: h.at(0), Bytes: size}, {To: h.at(size), From: memory[i], Bytes: size},
				}, s.event, 0)
				if err != nil || !done.Recorded {
					r.Errorf("goroutine %d: %+v, %v", i, done, err)
					return
				}
				complete := r.eventually(func() bool { hop(round); ok, err := r.Query(s.context, s.event); return ok || err != nil })
				if !complete || string(h.bytes[size:]) != string(h.bytes[:size]) {
					r.Errorf("goroutine %d, round %d: complete %t", i, round, complete)
					return
				}
			}
		})
	}
	all.Wait()
}

// hop makes it likely that the goroutine goes on another thread.
func hop(round int) {
	if rand.IntN(4) == 0 { // which thread it is cannot be repeated from a seed anyway
		runtime.LockOSThread()
		runtime.Gosched()
		runtime.UnlockOSThread()
	} else if round%2 == 0 {
		runtime.Gosched()
	}
}
