package staging

// span decides which bytes of a flow the next chunk gets. The three marks never pass one another, and each ends at
// length.
//
//	0 ──── settled ──── asked ──── length
//	 done          under way      to come
type span struct {
	length  uint64
	chunk   uint64 // bytes of one chunk, at least 1
	asked   uint64 // bytes that have had a chunk
	settled uint64 // bytes whose chunk is through: on the wire (Out), or in the device for certain (In, Across)
}

// next is the part that the next chunk gets; n is 0 when there is nothing to come.
func (s *span) next() (offset, n uint64) { return s.asked, min(s.length-s.asked, s.chunk) }

// left is true exactly when bytes have not had a chunk yet.
func (s *span) left() bool { return s.asked < s.length }

// whole is true exactly when every byte is through.
func (s *span) whole() bool { return s.settled == s.length }
