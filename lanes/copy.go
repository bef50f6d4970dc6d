package lanes

// SliceBytes is what one turn of a lane copies of one payload at most, so that a large or cold one does not keep the lane
// from the other peers (SPEC L-2; field case F-45).
const SliceBytes = 1 << 20

// warmBytes is how much Copy hands to the runtime at a time. From 1 MiB on the runtime's copy on amd64 writes around the
// caches (VMOVNTDQ, runtime/memmove_amd64.s), but what is copied here is sent, or read by its owner, in the next moment.
const warmBytes = 256 << 10

// Copy copies like the builtin and leaves what it wrote in the caches.
func Copy(to, from []byte) int {
	n := min(len(to), len(from))
	for done := 0; done < n; done += warmBytes {
		end := min(done+warmBytes, n)
		copy(to[done:end], from[done:end])
	}
	return n
}

// CopySlice copies the slice behind done and returns how many bytes are copied now.
func CopySlice(to, from []byte, done int) int {
	return done + Copy(to[done:min(done+SliceBytes, len(to))], from[done:])
}

// CommitSlice is CopySlice for a payload that was just received: it goes through the slice from its end, which is in the
// caches when its beginning is not any more. From is as long as to, or longer.
func CommitSlice(to, from []byte, done int) int {
	end := min(done+SliceBytes, len(to))
	for piece := end; piece > done; {
		next := max(piece-warmBytes, done)
		copy(to[next:piece], from[next:piece])
		piece = next
	}
	return end
}
