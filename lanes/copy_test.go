package lanes

import (
	"bytes"
	"fmt"
	"testing"
)

// pattern is n bytes that differ from their neighbours.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

func TestCopyCopiesEveryByteAndNoOther(t *testing.T) {
	for _, n := range []int{0, 1, warmBytes - 1, warmBytes, warmBytes + 1, 3*warmBytes + 5} {
		from, to := pattern(n + 1)[:n], make([]byte, n+1)
		to[n] = 99
		if got := Copy(to, from); got != n || !bytes.Equal(to[:n], from) || to[n] != 99 {
			t.Fatalf("%d bytes: copied %d", n, got)
		}
		if got := Copy(to[:n/2], from); got != n/2 {
			t.Fatalf("%d bytes into %d: copied %d", n, n/2, got)
		}
	}
}

func TestSlicesCoverEveryByteOnceAndInOrder(t *testing.T) {
	for name, slice := range map[string]func(to, from []byte, done int) int{"CopySlice": CopySlice, "CommitSlice": CommitSlice} {
		for _, n := range []int{0, 1, warmBytes + 1, SliceBytes - 1, SliceBytes, 2*SliceBytes + warmBytes + 3} {
			t.Run(fmt.Sprint(name, " ", n), func(t *testing.T) {
				from, to := pattern(n), make([]byte, n)
				for done := 0; done < n; {
					before := done
					if done = slice(to, from, done); done != min(before+SliceBytes, n) {
						t.Fatalf("%d bytes are copied after %d", done, before)
					}
					if !bytes.Equal(to[:done], from[:done]) || bytes.Count(to[done:], []byte{0}) != n-done {
						t.Fatalf("after %d bytes others than the first %d are there", done, done)
					}
				}
				if slice(to, from, n) != n {
					t.Fatal("more was copied than there is")
				}
			})
		}
	}
}
