package lanes

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

// CopyBack copies at most most bytes of from to the same place in to, where done bytes at the end are copied already, and
// returns how many are now. Who has just received a payload has its end in the caches and not its beginning.
func CopyBack(to, from []byte, done, most int) int {
	end := len(from) - done
	for begin := max(end-most, 0); end > begin; {
		piece := max(end-warmBytes, begin)
		copy(to[piece:end], from[piece:end])
		end = piece
	}
	return len(from) - end
}
