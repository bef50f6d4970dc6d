package cudatest

import (
	"errors"
	"fmt"

	"github.com/orbitte/orbitte/cuda"
)

var ownerCases = []conformance{
	{"AllocationsAreZeroAndLeaveNothing", ownAllocation},
	{"ContextsAreSharedAndReleased", ownContexts},
	{"AliasesShareOneObject", ownAliases},
	{"ForeignAndHostMemoryIsRefused", ownRefusals},
	{"OperationsOverlapAndAreConfirmed", ownOperations},
	{"DrainingProvesAnOperation", ownDrain},
	{"RefusedEndsAreRetained", ownRetained},
	{"UnprovenCopiesKeepEverything", ownUnquiesced},
}

// platform opens the owners' side, and closes it when the test ends.
func (r *rig) platform() *cuda.Platform {
	r.Helper()
	p, err := cuda.Open(r.Harness.Calls)
	r.must(err)
	r.ends = append(r.ends, func() {
		if err := p.Close(); err != nil {
			r.Errorf("end of the platform: %v", err)
		}
		n := p.Counts()
		if n.SilentCopies, n.OwedCallbacks = 0, 0; !r.kept && n != (cuda.Counts{}) {
			r.Errorf("owners left %+v", n)
		}
	})
	return p
}

func (r *rig) finish(p cuda.Pending) {
	r.Helper()
	var failed error
	if !r.eventually(func() bool { done, err := p.Confirm(); failed = err; return done || err != nil }) || failed != nil {
		r.Fatalf("the operation is not complete: %v", failed)
	}
}

// start begins one copy.
func (r *rig) start(m *cuda.Memory, to, from cuda.Pointer, bytes uint64, partner cuda.Partner, s *cuda.Signal) cuda.Pending {
	r.Helper()
	p, err := m.Start([]cuda.Copy{{To: to, From: from, Bytes: bytes}}, partner, s)
	r.must(err)
	return p
}

func (r *rig) pinnedOwner(p *cuda.Platform, bytes uint64) (*cuda.Pinned, []byte) {
	r.Helper()
	h, err := p.AllocateHost(r.Ordinals[0], bytes)
	r.must(err)
	return h, view(h.Address(), bytes)
}

func ownAllocation(r *rig) {
	p := r.platform()
	h, bytes := r.pinnedOwner(p, span)
	for _, ordinal := range r.Ordinals {
		for range 3 { // addresses come again, with old bytes
			m, err := p.Allocate(ordinal, span)
			r.must(err)
			if m.Ordinal() != ordinal || m.Bytes() != span || m.Adopted() || m.Holders() != 1 || !m.Covers(m.Pointer()+1, span-1) || m.Covers(m.Pointer()+1, span) {
				r.Errorf("%v: %+v", m, m.Info())
			}
			counting(bytes, 1)
			r.finish(r.start(m, cuda.Pointer(h.Address()), m.Pointer(), span, h, nil))
			r.same("a new allocation", bytes, make([]byte, span))
			counting(bytes, 2)
			r.finish(r.start(m, m.Pointer(), cuda.Pointer(h.Address()), span, h, nil))
			r.must(m.Verify())
			r.must(m.Drop())
		}
	}
	r.must(h.Free())
	r.must(h.Free())
}

// ownContexts: one reference for each device, from the first owner to the last; none where nobody asked.
func ownContexts(r *rig) {
	before := map[int]bool{}
	for _, i := range r.Ordinals {
		before[i], _ = r.PrimaryActive(i)
	}
	p := r.platform()
	look := func(ordinal int, want bool, when string) {
		r.Helper()
		if active, err := r.PrimaryActive(ordinal); err != nil || active != (want || before[ordinal]) {
			r.Errorf("%s: the context of GPU %d is active %t, want %t, %v", when, ordinal, active, want, err)
		}
	}
	last := r.Ordinals[len(r.Ordinals)-1]
	for _, i := range r.Ordinals {
		look(i, false, "opened")
	}
	one, err := p.Allocate(last, 10)
	r.must(err)
	two, err := p.AllocateHost(last, 10)
	r.must(err)
	for _, i := range r.Ordinals {
		look(i, i == last, "two owners")
	}
	if n := p.Counts().Contexts; n != 1 {
		r.Errorf("%d context references for two owners on one device", n)
	}
	r.must(one.Drop())
	look(last, true, "one owner left")
	r.must(two.Free())
	look(last, false, "no owner left")
}

// ownAliases: all ranges of one allocation have one object, whoever adopts them.
func ownAliases(r *rig) {
	p, s := r.platform(), r.site(r.Ordinals[0])
	raw := s.allocate(span)
	s.store(raw, counting(make([]byte, span), 3))
	one, err := p.Adopt(s.ordinal, raw, span, "the owner")
	r.must(err)
	two, err := p.Adopt(cuda.AnyOrdinal, raw+100, 5, "the owner")
	r.must(err)
	other, err := cuda.Open(r.Harness.Calls) // another engine
	r.must(err)
	three, err := other.Adopt(s.ordinal, raw+span-1, 1, nil)
	r.must(err)
	if one != two || one != three || one.Holders() != 3 || one.Pointer() != raw || one.Bytes() != span || !one.Adopted() {
		r.Errorf("%v, %v, %v with %d holders", one, two, three, one.Holders())
	}
	if p.Counts().Adopted != 1 {
		r.Errorf("%+v", p.Counts())
	}
	r.must(one.Prepare())
	h, bytes := r.pinnedOwner(p, span)
	r.finish(r.start(two, cuda.Pointer(h.Address()), raw, span, h, nil))
	r.same("adopted memory", bytes, counting(make([]byte, span), 3))
	r.must(one.Drop())
	r.must(two.Drop())
	r.must(three.Drop())
	r.must(other.Close())
	r.must(h.Free())
	r.same("adopted memory after its end", s.load(raw, span), counting(make([]byte, span), 3))

	mine, err := p.Allocate(s.ordinal, 1000)
	r.must(err)
	again, err := p.Adopt(s.ordinal, mine.Pointer()+7, 900, nil)
	r.must(err)
	if again != mine {
		r.Errorf("an allocation of ours was adopted as another object: %v, %v", mine, again)
	}
	r.must(again.Drop())
	r.must(mine.Drop())
}

func ownRefusals(r *rig) {
	p, s := r.platform(), r.site(r.Ordinals[0])
	raw, host := s.allocate(1000), s.pinned(1000)
	try := func(what string, ordinal int, pointer cuda.Pointer, bytes uint64, want error) {
		r.Helper()
		m, err := p.Adopt(ordinal, pointer, bytes, nil)
		var facts *cuda.AdoptionError
		if m != nil || !errors.Is(err, want) || !errors.Is(err, cuda.ErrAdoption) || !errors.As(err, &facts) || facts.Pointer != pointer {
			r.Errorf("%s: %v, %v, want %v", what, m, err, want)
		}
	}
	try("pinned memory", s.ordinal, host.at(0), 100, cuda.ErrHostMemory)
	try("an unknown address", s.ordinal, 8, 100, cuda.ErrUnknown)
	try("another GPU", s.ordinal+1, raw, 100, cuda.ErrOrdinal)
	try("a byte too many", s.ordinal, raw+1, 1000, cuda.ErrExtent)
	try("no bytes", s.ordinal, raw, 0, cuda.ErrExtent)
	try("more than all", s.ordinal, raw, 1<<63+5, cuda.ErrExtent)
	for _, ordinal := range []int{-5, 4711} {
		if _, err := p.Allocate(ordinal, 1); !errors.Is(err, cuda.ErrNoDevice) {
			r.Errorf("an allocation on GPU %d: %v", ordinal, err)
		}
		if _, err := p.AllocateHost(ordinal, 1); !errors.Is(err, cuda.ErrNoDevice) {
			r.Errorf("pinned memory on GPU %d: %v", ordinal, err)
		}
	}
	if n := p.Counts(); n != (cuda.Counts{}) {
		r.Errorf("refusals left %+v", n)
	}
}

// ownOperations: as many operations as there are slots are under way on one object, and one more is refused.
func ownOperations(r *rig) {
	p := r.platform()
	const size = 100_003
	m, err := p.Allocate(r.Ordinals[0], cuda.Slots*size)
	r.must(err)
	h, bytes := r.pinnedOwner(p, cuda.Slots*size)
	signal, err := p.OpenSignal()
	r.must(err)
	counting(bytes, 8)
	var all []cuda.Pending
	for i := range cuda.Slots {
		at := cuda.Pointer(i * size)
		all = append(all, r.start(m, m.Pointer()+at, cuda.Pointer(h.Address())+at, size, h, signal))
	}
	if _, err := m.Start([]cuda.Copy{{To: m.Pointer(), From: cuda.Pointer(h.Address()), Bytes: 1}}, h, nil); !errors.Is(err, cuda.ErrBusy) {
		r.Errorf("an operation too many: %v", err)
	}
	for what, err := range map[string]error{"memory": m.Drop(), "pinned memory": h.Free()} {
		if !errors.Is(err, cuda.ErrBusy) {
			r.Errorf("end of %s with operations: %v", what, err)
		}
	}
	left := len(all)
	if !r.eventually(func() bool {
		if !r.Readable(signal.Descriptor()) {
			return false
		}
		_, err := signal.Take()
		r.must(err)
		for i, pending := range all {
			if !pending.Started() {
				continue
			}
			done, err := pending.Confirm()
			r.must(err)
			if done {
				all[i] = cuda.Pending{}
				left--
			}
		}
		return left == 0
	}) {
		r.Fatalf("%d operations are never announced", left)
	}
	want := append([]byte(nil), bytes...)
	clear(bytes)
	r.finish(r.start(m, cuda.Pointer(h.Address()), m.Pointer(), cuda.Slots*size, h, nil))
	r.same("all operations", bytes, want)
	r.must(m.Drop())
	r.must(h.Free())
	r.eventually(func() bool { _, err := signal.Take(); return err == nil })
	signal.Close()
	signal.Close()
}

func ownDrain(r *rig) {
	p := r.platform()
	m, err := p.Allocate(r.Ordinals[0], span)
	r.must(err)
	h, bytes := r.pinnedOwner(p, 2*span)
	counting(bytes, 8)
	first := r.start(m, m.Pointer(), cuda.Pointer(h.Address()), span, h, nil)
	second := r.start(m, cuda.Pointer(h.Address())+span, m.Pointer(), span, h, nil)
	r.must(second.Drain())
	r.same("drained bytes", bytes[span:], bytes[:span])
	if done, err := first.Confirm(); !done || err != nil {
		r.Errorf("an operation before a drained one is complete %t, %v", done, err)
	}
	r.must(m.Drop())
	r.must(h.Free())
}

// ownRetained: each end that the driver refuses is listed, made once, and keeps the context.
func ownRetained(r *rig) {
	r.canFail()
	contexts := int64(1) // the refused reference, and then the one that the refused objects keep
	for _, call := range []string{"cuDevicePrimaryCtxRelease_v2", "cuMemFree_v2", "cuStreamDestroy_v2", "cuEventDestroy_v2", "cuMemFreeHost"} {
		p := r.platform()
		before := p.Counts()
		m, err := p.Allocate(r.Ordinals[0], 1000)
		r.must(err)
		h, _ := r.pinnedOwner(p, 1000)
		r.fail(Failure{Call: call, Result: cuda.Unknown, Maybe: true})
		r.kept = true
		err = errors.Join(m.Drop(), h.Free())
		var refusal *cuda.RetainedError
		if !errors.Is(err, cuda.ErrRetained) || !errors.As(err, &refusal) || refusal.Call != call {
			r.Errorf("%s is refused: %v", call, err)
		}
		after := p.Counts()
		if after.Retained != before.Retained+1 || after.Contexts != contexts {
			r.Errorf("%s is refused: %+v before, %+v after", call, before, after)
		}
		list := p.Retained()
		if last := list[len(list)-1]; !errors.Is(last.Reason, cuda.ErrRetained) || last.Object == "" || last.Kind == 0 {
			r.Errorf("%s is refused: %+v", call, last)
		}
		contexts = 2
	}
}

// ownUnquiesced: a copy in doubt whose stream cannot be drained keeps stream, event, memory and pinned memory.
func ownUnquiesced(r *rig) {
	r.canFail()
	p := r.platform()
	m, err := p.Allocate(r.Ordinals[0], 1000)
	r.must(err)
	h, _ := r.pinnedOwner(p, 1000)
	r.fail(Failure{Call: "cuMemcpyAsync", Index: 1, Result: cuda.Unknown, Maybe: true})
	r.fail(Failure{Call: "cuStreamSynchronize", Result: cuda.Unknown, Maybe: true})
	r.kept = true
	copies := []cuda.Copy{
		{To: m.Pointer(), From: cuda.Pointer(h.Address()), Bytes: 500}, {To: m.Pointer() + 500, From: cuda.Pointer(h.Address()) + 500, Bytes: 500},
	}
	pending, err := m.Start(copies, h, nil)
	var failure *cuda.CopyError
	if !pending.Started() || !errors.As(err, &failure) || !failure.Undrained || failure.Taken != 1 || failure.Asked != 2 {
		r.Fatalf("%v, %v", pending.Started(), err)
	}
	if _, err := m.Start(copies[:1], h, nil); !errors.Is(err, cuda.ErrFenced) {
		r.Errorf("a copy beside one in doubt: %v", err)
	}
	if err := pending.Drain(); !errors.Is(err, cuda.ErrUnquiesced) {
		r.Errorf("%v", err)
	}
	kinds := map[cuda.Kind]int{}
	for _, k := range p.Retained() {
		kinds[k.Kind]++
		if !errors.Is(k.Reason, cuda.ErrUnquiesced) {
			r.Errorf("%+v", k)
		}
	}
	if want := (map[cuda.Kind]int{cuda.KindAllocation: 1, cuda.KindStream: 1, cuda.KindEvent: 1, cuda.KindPinned: 1}); fmt.Sprint(kinds) != fmt.Sprint(want) {
		r.Errorf("retained are %v, want %v", kinds, want)
	}
	for what, err := range map[string]error{"memory": m.Drop(), "again": m.Drop(), "pinned": h.Free(), "pinned again": h.Free()} {
		if !errors.Is(err, cuda.ErrUnquiesced) {
			r.Errorf("end of retained %s: %v", what, err)
		}
	}
	if _, err := m.Start(copies[:1], h, nil); !errors.Is(err, cuda.ErrUnquiesced) {
		r.Errorf("a copy of retained memory: %v", err)
	}
	if _, err := p.Adopt(cuda.AnyOrdinal, m.Pointer(), 10, nil); !errors.Is(err, cuda.ErrUnquiesced) {
		r.Errorf("adoption of retained memory: %v", err)
	}
}
