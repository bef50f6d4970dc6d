//go:build !cgo

package libcuda

import (
	"errors"
	"strings"
	"testing"
)

// proves C-1
func TestLoadInABuildWithoutCgo(t *testing.T) {
	for _, load := range []func() error{
		func() error { _, err := Load(); return err },
		func() error { _, err := LoadPath("/some/libcuda.so.1"); return err },
	} {
		err := load()
		var missing *NoCgo
		if !errors.Is(err, ErrNoCgo) || !errors.As(err, &missing) || !strings.Contains(err.Error(), "CGO_ENABLED=1") {
			t.Errorf("got %v", err)
		}
	}
}
