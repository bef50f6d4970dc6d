//go:build !cgo

package libibverbs

import (
	"errors"
	"strings"
	"testing"
)

func TestLoadInABuildWithoutCgo(t *testing.T) {
	for _, load := range []func() error{
		func() error { _, err := Load(); return err },
		func() error { _, err := LoadPath("/some/libibverbs.so.1"); return err },
	} {
		err := load()
		var missing *NoCgo
		if !errors.Is(err, ErrNoCgo) || !errors.As(err, &missing) || !strings.Contains(err.Error(), "CGO_ENABLED=1") {
			t.Errorf("got %v", err)
		}
	}
}
