package libcuda

import (
	"testing"
	"unsafe"

	"github.com/orbitte/orbitte/cuda"
)

// work.c asserts the same numbers of the C side, which a build on any machine checks.
func TestLayoutsThatCrossAreWhatTheCSideAsserts(t *testing.T) {
	var c cuda.Copy
	for _, row := range []struct {
		what      string
		got, want uintptr
	}{
		{"Copy", unsafe.Sizeof(c), 24},
		{"Copy.To", unsafe.Offsetof(c.To), 0},
		{"Copy.From", unsafe.Offsetof(c.From), 8},
		{"Copy.Bytes", unsafe.Offsetof(c.Bytes), 16},
	} {
		if row.got != row.want {
			t.Errorf("%s: %d, the C side has %d", row.what, row.got, row.want)
		}
	}
}
