package cudatest

import (
	"github.com/orbitte/orbitte/cuda"
)

var eventCases = []conformance{
	{"AnEventThatWasNeverRecordedIsComplete", neverRecorded},
	{"AnEventProvesWhatIsBeforeIt", proves},
	{"TheLastRecordCounts", lastRecord},
	{"SynchronizeProvesTheStream", synchronizes},
}

// neverRecorded: cuEventQuery: CUDA_SUCCESS if cuEventRecord was not called.
func neverRecorded(r *rig) {
	s := r.site(r.Ordinals[0])
	if done, err := r.Query(s.context, s.event); err != nil || !done {
		r.Errorf("%t, %v", done, err)
	}
}

// proves: once the event is complete, the copies before it are, however large.
func proves(r *rig) {
	s := r.site(r.Ordinals[0])
	const size = 24<<20 + 1
	p, h, back := s.allocate(size), s.pinned(size), s.pinned(size)
	counting(h.bytes, 7)
	clear(back.bytes)
	s.do(cuda.Copy{To: p, From: h.at(0), Bytes: size})
	done, err := r.Submit(s.context, s.stream, []cuda.Copy{{To: back.at(0), From: p, Bytes: size}}, s.event, 0)
	r.must(err)
	if !done.Recorded {
		r.Fatalf("%+v", done)
	}
	s.await(s.event)
	r.same("bytes behind the event", back.bytes, h.bytes)
}

// lastRecord: cuEventRecord: an event that is recorded anew speaks for the newest place.
func lastRecord(r *rig) {
	s := r.site(r.Ordinals[0])
	const size = 4 << 20
	p, h, back := s.allocate(size), s.pinned(size), s.pinned(size)
	counting(h.bytes, 7)
	for range 3 {
		_, err := r.Submit(s.context, s.stream, []cuda.Copy{{To: p, From: h.at(0), Bytes: size}}, s.event, 0)
		r.must(err)
	}
	clear(back.bytes)
	_, err := r.Submit(s.context, s.stream, []cuda.Copy{{To: back.at(0), From: p, Bytes: size}}, s.event, 0)
	r.must(err)
	s.await(s.event)
	r.same("bytes behind the last record", back.bytes, h.bytes)
}

// synchronizes: cuStreamSynchronize waits for all work; then events are complete without waiting.
func synchronizes(r *rig) {
	s := r.site(r.Ordinals[0])
	const size = 8<<20 + 5
	p, h, back := s.allocate(size), s.pinned(size), s.pinned(size)
	counting(h.bytes, 2)
	_, err := r.Submit(s.context, s.stream, []cuda.Copy{
		{To: p, From: h.at(0), Bytes: size}, {To: back.at(0), From: p, Bytes: size},
	}, s.event, 0)
	r.must(err)
	r.must(r.Synchronize(s.context, s.stream))
	r.same("bytes after synchronising", back.bytes, h.bytes)
	if done, err := r.Query(s.context, s.event); err != nil || !done {
		r.Errorf("the event of an empty stream is complete %t, %v", done, err)
	}
	r.must(r.Synchronize(s.context, s.stream)) // an empty stream is at once
}
