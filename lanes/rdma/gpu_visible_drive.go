package rdma

import (
	"github.com/orbitte/orbitte/lanes"
)

// mustFlush is true exactly when devices wrote to the local range on a GPU, and nobody has made that visible to it yet.
func (t *Transfer) mustFlush() bool {
	return t.Direction == lanes.Read && t.machine.touched && !t.flushed && t.registered != nil && flushes(t.registered.gpu) && !t.machine.kept()
}

// flush makes the writes visible, before the range is given back (SPEC C-7); settle follows. Without that proof the range
// stays the transfer's for good.
func (t *Transfer) flush() {
	if t.machine.stage == transferFlushing {
		return
	}
	t.machine.stage = transferFlushing
	t.rails.flush(t.registered.gpu, t.by, func(err error) {
		t.flushed = true
		if err != nil {
			t.machine.unproven = true
			t.machine.fail(fault(lanes.DeviceFailed, "", err))
		}
		t.settle()
	})
}
