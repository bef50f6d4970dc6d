package libibverbs

import (
	"testing"
	"unsafe"

	"github.com/orbitte/orbitte/verbs"
)

// work.c asserts the same numbers of the C side, which a build on any machine checks.
func TestLayoutsThatCrossAreWhatTheCSideAsserts(t *testing.T) {
	var s verbs.SendWork
	var r verbs.ReceiveWork
	var c verbs.Completion
	for _, row := range []struct {
		what      string
		got, want uintptr
	}{
		{"SendWork", unsafe.Sizeof(s), 72},
		{"SendWork.ID", unsafe.Offsetof(s.ID), 0},
		{"SendWork.Address", unsafe.Offsetof(s.Address), 8},
		{"SendWork.Remote", unsafe.Offsetof(s.Remote), 16},
		{"SendWork.Span", unsafe.Offsetof(s.Span), 24},
		{"SendWork.Window", unsafe.Offsetof(s.Window), 32},
		{"SendWork.Region", unsafe.Offsetof(s.Region), 40},
		{"SendWork.Operation", unsafe.Offsetof(s.Operation), 48},
		{"SendWork.Flags", unsafe.Offsetof(s.Flags), 52},
		{"SendWork.Length", unsafe.Offsetof(s.Length), 56},
		{"SendWork.LocalKey", unsafe.Offsetof(s.LocalKey), 60},
		{"SendWork.RemoteKey", unsafe.Offsetof(s.RemoteKey), 64},
		{"SendWork.Access", unsafe.Offsetof(s.Access), 68},
		{"ReceiveWork", unsafe.Sizeof(r), 24},
		{"ReceiveWork.ID", unsafe.Offsetof(r.ID), 0},
		{"ReceiveWork.Address", unsafe.Offsetof(r.Address), 8},
		{"ReceiveWork.Length", unsafe.Offsetof(r.Length), 16},
		{"ReceiveWork.LocalKey", unsafe.Offsetof(r.LocalKey), 20},
		{"Completion", unsafe.Sizeof(c), 40},
		{"Completion.ID", unsafe.Offsetof(c.ID), 0},
		{"Completion.Status", unsafe.Offsetof(c.Status), 8},
		{"Completion.Operation", unsafe.Offsetof(c.Operation), 12},
		{"Completion.Vendor", unsafe.Offsetof(c.Vendor), 16},
		{"Completion.Length", unsafe.Offsetof(c.Length), 20},
		{"Completion.Invalidated", unsafe.Offsetof(c.Invalidated), 24},
		{"Completion.Pair", unsafe.Offsetof(c.Pair), 28},
		{"Completion.Flags", unsafe.Offsetof(c.Flags), 32},
	} {
		if row.got != row.want {
			t.Errorf("%s: %d, the C side has %d", row.what, row.got, row.want)
		}
	}
}
