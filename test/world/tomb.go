package world

import (
	"slices"
	"syscall"

	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/verbs"
)

// tomb is the native library of a life. As long as the process lives it only remembers which work is with the devices.
// When the process was killed its kernel has ended every native object, and with them all work: from then on the library
// says so, whatever it is asked to end, and makes nothing new. So an engine that is buried can prove that its memory is
// quiet, and what it does not give back then is lost.
type tomb struct {
	verbs.Calls
	closed      bool // true exactly when the process was killed
	pairs       map[verbs.PairHandle]*mourned
	order       []verbs.PairHandle // of making
	descriptors map[any]int
	life        *life
	exposed     []exposure
}

// mourned is one queue pair and its work that has not completed, the oldest first.
type mourned struct {
	number          verbs.PairNumber
	sends, receives verbs.QueueHandle
	sent, posted    []uint64
}

func newTomb(l *life) *tomb {
	return &tomb{Calls: l.native, life: l, pairs: map[verbs.PairHandle]*mourned{}, descriptors: map[any]int{}}
}

// gone is the answer to whoever wants something new.
func gone(call string) error {
	return &verbs.CallError{Call: call, Object: "a device of a killed process", Errno: syscall.ENODEV}
}

func (t *tomb) CreatePair(d verbs.DomainHandle, o verbs.PairOptions) (verbs.PairHandle, verbs.PairNumber, error) {
	if t.closed {
		return 0, 0, gone("ibv_create_qp")
	}
	h, n, err := t.Calls.CreatePair(d, o)
	if err == nil {
		t.pairs[h] = &mourned{number: n, sends: o.Sends, receives: o.Receives}
		t.order = append(t.order, h)
	}
	return h, n, err
}

func (t *tomb) DestroyPair(h verbs.PairHandle) error {
	var err error
	if !t.closed {
		err = t.Calls.DestroyPair(h)
	}
	if err == nil {
		delete(t.pairs, h)
		t.order = slices.DeleteFunc(t.order, func(other verbs.PairHandle) bool { return other == h })
	}
	return err
}

func (t *tomb) PostSend(h verbs.PairHandle, list []verbs.SendWork) (int, error) {
	accepted, err := len(list), error(nil)
	if !t.closed {
		accepted, err = t.Calls.PostSend(h, list)
	}
	for _, w := range list[:taken(accepted, len(list))] {
		t.pairs[h].sent = append(t.pairs[h].sent, w.ID)
	}
	return accepted, err
}

func (t *tomb) PostReceive(h verbs.PairHandle, list []verbs.ReceiveWork) (int, error) {
	accepted, err := len(list), error(nil)
	if !t.closed {
		accepted, err = t.Calls.PostReceive(h, list)
	}
	for _, w := range list[:taken(accepted, len(list))] {
		t.pairs[h].posted = append(t.pairs[h].posted, w.ID)
	}
	return accepted, err
}

// taken is how much of a list may be with the device.
func taken(accepted, asked int) int {
	if accepted < 0 {
		return asked
	}
	return min(accepted, asked)
}

func (t *tomb) Poll(sends, receives verbs.QueueHandle, out []verbs.Completion) (sent, received int, err error) {
	if t.closed {
		sent = t.flush(sends, out)
		return sent, t.flush(receives, out[sent:]), nil
	}
	sent, received, err = t.Calls.Poll(sends, receives, out)
	for _, c := range out[:sent+received] {
		t.completed(c)
	}
	return sent, received, err
}

// completed forgets work that has ended.
func (t *tomb) completed(c verbs.Completion) {
	for _, h := range t.order {
		if m := t.pairs[h]; m.number == c.Pair {
			for _, list := range []*[]uint64{&m.sent, &m.posted} {
				if i := slices.Index(*list, c.ID); i >= 0 {
					*list = slices.Delete(*list, i, i+1)
				}
			}
		}
	}
}

// flush ends work that completes in a queue.
func (t *tomb) flush(q verbs.QueueHandle, out []verbs.Completion) (n int) {
	for _, h := range t.order {
		m := t.pairs[h]
		for _, list := range []struct {
			q   verbs.QueueHandle
			ids *[]uint64
		}{{m.sends, &m.sent}, {m.receives, &m.posted}} {
			for list.q == q && q != 0 && n < len(out) && len(*list.ids) > 0 {
				out[n] = verbs.Completion{ID: (*list.ids)[0], Status: verbs.WorkFlushed, Pair: m.number}
				*list.ids = (*list.ids)[1:]
				n++
			}
		}
	}
	return n
}

// end is what ends an object: the kernel has done so.
func (t *tomb) end(native func() error) error {
	if t.closed {
		return nil
	}
	return native()
}

func (t *tomb) ModifyPair(h verbs.PairHandle, m verbs.Transition) error {
	if t.closed && m.To != verbs.PairError {
		return gone("ibv_modify_qp")
	}
	return t.end(func() error { return t.Calls.ModifyPair(h, m) })
}

func (t *tomb) CloseDevice(h verbs.DeviceHandle) error {
	return t.end(func() error { return t.Calls.CloseDevice(h) })
}

func (t *tomb) FreeDomain(h verbs.DomainHandle) error {
	return t.end(func() error { return t.Calls.FreeDomain(h) })
}

func (t *tomb) DestroyChannel(h verbs.ChannelHandle) error {
	return t.end(func() error { return t.Calls.DestroyChannel(h) })
}

func (t *tomb) DestroyQueue(h verbs.QueueHandle) error {
	return t.end(func() error { return t.Calls.DestroyQueue(h) })
}

func (t *tomb) Arm(h verbs.QueueHandle) error {
	return t.end(func() error { return t.Calls.Arm(h) })
}

func (t *tomb) Deregister(h verbs.RegionHandle) error {
	err := t.end(func() error { return t.Calls.Deregister(h) })
	if err == nil {
		t.covered(h)
	}
	return err
}

func (t *tomb) FreeWindow(h verbs.WindowHandle) error {
	return t.end(func() error { return t.Calls.FreeWindow(h) })
}

func (t *tomb) Port(h verbs.DeviceHandle, port uint8) (verbs.PortInfo, error) {
	if t.closed {
		return verbs.PortInfo{}, gone("ibv_query_port")
	}
	return t.Calls.Port(h, port)
}

func (t *tomb) GIDs(h verbs.DeviceHandle, port uint8) ([]verbs.GIDEntry, error) {
	if t.closed {
		return nil, gone("ibv_query_gid_ex")
	}
	return t.Calls.GIDs(h, port)
}

func (t *tomb) CreateChannel(h verbs.DeviceHandle) (verbs.ChannelHandle, error) {
	if t.closed {
		return 0, gone("ibv_create_comp_channel")
	}
	return t.Calls.CreateChannel(h)
}

func (t *tomb) CreateQueue(h verbs.DeviceHandle, entries int, c verbs.ChannelHandle) (verbs.QueueHandle, error) {
	if t.closed {
		return 0, gone("ibv_create_cq")
	}
	return t.Calls.CreateQueue(h, entries, c)
}

func (t *tomb) Register(d verbs.DomainHandle, address, length uint64, a verbs.Access) (verbs.RegionHandle, verbs.LocalKey, verbs.RemoteKey, error) {
	if t.closed {
		return 0, 0, 0, gone("ibv_reg_mr")
	}
	h, local, remote, err := t.Calls.Register(d, address, length, a)
	t.expose(h, address, length, a, err)
	return h, local, remote, err
}

func (t *tomb) RegisterDescriptor(d verbs.DomainHandle, offset, length, address uint64, descriptor int, a verbs.Access) (verbs.RegionHandle, verbs.LocalKey, verbs.RemoteKey, error) {
	if t.closed {
		return 0, 0, 0, gone("ibv_reg_dmabuf_mr")
	}
	h, local, remote, err := t.Calls.RegisterDescriptor(d, offset, length, address, descriptor, a)
	t.expose(h, address, length, a, err)
	return h, local, remote, err
}

func (t *tomb) AllocateDomain(h verbs.DeviceHandle) (verbs.DomainHandle, error) {
	if t.closed {
		return 0, gone("ibv_alloc_pd")
	}
	return t.Calls.AllocateDomain(h)
}

func (t *tomb) AllocateWindow(d verbs.DomainHandle) (verbs.WindowHandle, verbs.RemoteKey, error) {
	if t.closed {
		return 0, 0, gone("ibv_alloc_mw")
	}
	return t.Calls.AllocateWindow(d)
}

func (t *tomb) NextEvent(h verbs.ChannelHandle) (verbs.QueueHandle, bool, error) {
	if t.closed {
		return 0, false, nil
	}
	return t.Calls.NextEvent(h)
}

func (t *tomb) NextAsync(h verbs.DeviceHandle) (verbs.AsyncEvent, bool, error) {
	if t.closed {
		return verbs.AsyncEvent{}, false, nil
	}
	return t.Calls.NextAsync(h)
}

// descriptor is known as long as anybody may watch it.
func (t *tomb) descriptor(object any, native func() int) int {
	if !t.closed {
		t.descriptors[object] = native()
	}
	return t.descriptors[object]
}

// watched is true exactly for a descriptor of a device, which nobody can watch any more.
func (t *tomb) watched(d reactor.Descriptor) bool {
	if t == nil {
		return false
	}
	for _, own := range t.descriptors {
		if own == int(d) {
			return true
		}
	}
	return false
}

func (t *tomb) AsyncDescriptor(h verbs.DeviceHandle) int {
	return t.descriptor(h, func() int { return t.Calls.AsyncDescriptor(h) })
}

func (t *tomb) ChannelDescriptor(h verbs.ChannelHandle) int {
	return t.descriptor(h, func() int { return t.Calls.ChannelDescriptor(h) })
}
