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

func TestCopyBackGoesFromTheEndPieceByPiece(t *testing.T) {
	for _, n := range []int{0, 1, warmBytes, 2*warmBytes + 3, 5*warmBytes - 1} {
		for _, most := range []int{1 + n/3, warmBytes + 7, n + 1} {
			t.Run(fmt.Sprint(n, " by ", most), func(t *testing.T) {
				from, to := pattern(n), make([]byte, n)
				for done := 0; done < n; {
					before := done
					if done = CopyBack(to, from, done, most); done != min(before+most, n) {
						t.Fatalf("%d bytes are copied after %d, at most %d more", done, before, most)
					}
					if !bytes.Equal(to[n-done:], from[n-done:]) || bytes.Count(to[:n-done], []byte{0}) != n-done {
						t.Fatalf("after %d bytes others than the last %d are there", done, done)
					}
				}
				if CopyBack(to, from, n, most) != n {
					t.Fatal("more was copied than there is")
				}
			})
		}
	}
}
