package staging

import "errors"

// PartsMax is how many parts of one flow the wire has at most at a time.
const PartsMax = flowChunksMax

// Part is bytes of a flow in one chunk, for a wire that works on several of them at a time, and that knows chunks by their
// numbers: a network device with which they are registered. The zero value is none.
//
//	Out: fetched ──Take──▶ with the wire ──Through──▶ next bytes, or back to the pool
//	In:  empty ──Take──▶ with the wire ──Through──▶ with the device ──event──▶ next bytes, or back to the pool
//	with the wire ──Lose──▶ kept
type Part struct{ chunk *chunk }

// Bytes is the part in the chunk.
func (p Part) Bytes() []byte { return p.chunk.part() }

// Address is where it begins, for the host and for every device.
func (p Part) Address() uint64 { return p.chunk.pinned.Address() }

// Offset is where it begins in the flow's range; Length is in bytes.
func (p Part) Offset() uint64 { return p.chunk.offset }

// Length is how many bytes it has.
func (p Part) Length() uint64 { return p.chunk.n }

// Chunk is the number of its chunk among those of its role (Stage.Pinned).
func (p Part) Chunk() int { return p.chunk.index }

// Tenant names whose bytes a chunk may have besides its flow's.
type Tenant [16]byte

// Clear takes out what others have left in the part, before a peer may change it in memory and say that it did: whatever
// the peer leaves as it is goes where the flow goes. What the same tenant left, and nobody used since, stays.
func (p Part) Clear(t Tenant) {
	c := p.chunk
	if c.tenant != t {
		c.tenant, c.clean = t, 0
	}
	if c.clean < c.n {
		clear(c.bytes[c.clean:c.n])
		c.clean = c.n
	}
	c.mine = true
}

// Take gives the wire the next part, in order: bytes (Out), or room for them (In). False: there is none now; Advanced
// follows when there may be one. A flow is used by Take and Through, or by Piece and Release, or Room and Filled.
func (f *Flow) Take() (Part, bool) {
	if f.state != flowRunning {
		return Part{}, false
	}
	if f.plan.Way == Out {
		f.more()
	}
	place := f.wired()
	if f.plan.Way == In && place == f.held && f.span.left() && f.held < flowChunksMax {
		if c := f.pool().take(); c != nil {
			f.hold(c)
		}
	}
	want := chunkReady
	if f.plan.Way == In {
		want = chunkRoom
	}
	if place == f.held || f.chunks[place].state != want {
		return Part{}, false
	}
	f.chunks[place].wired = true
	return Part{f.chunks[place]}, true
}

// wired is the place of the first chunk that the wire has not had. Copies out end in the order of their bytes, and room is
// given in it.
func (f *Flow) wired() int {
	place := 0
	for place < f.held && (f.chunks[place].wired || f.plan.Way == In && f.chunks[place].state != chunkRoom) {
		place++
	}
	return place
}

// Through says that the wire is through with a part, in whatever order (Out), or has filled it: its copy to the device
// starts (In).
func (f *Flow) Through(p Part) {
	c := p.chunk
	if c.flow != f || !c.wired {
		panic("staging: Through of a part that the wire does not have")
	}
	c.wired = false
	if f.plan.Way == In {
		f.fly(c)
		return
	}
	f.through(f.place(c))
}

// Lose keeps every chunk that the wire has, because nobody can prove that it is done with them; End follows, and is without
// proof then. It answers which they are.
func (f *Flow) Lose(why error) (chunks []int) {
	for _, c := range f.chunks[:f.held] {
		if c.wired {
			c.wired = false
			c.pinned.Retain(why)
			f.keep(c, why)
			chunks = append(chunks, c.index)
		}
	}
	return chunks
}

// errUnregistered says why a chunk stays that no flow has.
var errUnregistered = errors.New("staging: a network device may still reach a pinned chunk, since its registration could not be taken back")

// Chunks is how many chunks a lane has in a role, prepared or not.
func (s *Stage) Chunks(r Role) int { return s.config.chunks(r) }

// Pinned says where a chunk of a role is, for as long as the stage lives; false: nothing is prepared. Any goroutine.
func (s *Stage) Pinned(r Role, i int) (address, length uint64, ok bool) {
	made := s.supply.Load()
	if made == nil || made == sealed {
		return 0, 0, false
	}
	return made.chunks[r][i].pinned.Address(), s.config.ChunkBytes, true
}

// Strand keeps a chunk that a network device may still reach after all flows. On the lane, before Close.
func (s *Stage) Strand(r Role, i int, why error) {
	made := s.supply.Load()
	if made == nil || made == sealed || made.chunks[r][i].state == chunkKept {
		return
	}
	c := &made.chunks[r][i]
	c.pinned.Retain(errors.Join(errUnregistered, why))
	c.state = chunkKept
	s.pools[r].strand(c)
}
