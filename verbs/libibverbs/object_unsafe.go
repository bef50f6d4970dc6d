//go:build linux

package libibverbs

// #include "shim.h"
// #cgo nocallback orb_end
// #cgo noescape orb_alloc_domain
// #cgo nocallback orb_alloc_domain
// #cgo noescape orb_create_channel
// #cgo nocallback orb_create_channel
// #cgo noescape orb_create_queue
// #cgo nocallback orb_create_queue
// #cgo noescape orb_create_pair
// #cgo nocallback orb_create_pair
// #cgo noescape orb_modify_pair
// #cgo nocallback orb_modify_pair
// #cgo noescape orb_query_pair
// #cgo nocallback orb_query_pair
// #cgo noescape orb_register
// #cgo nocallback orb_register
// #cgo noescape orb_register_descriptor
// #cgo nocallback orb_register_descriptor
// #cgo noescape orb_alloc_window
// #cgo nocallback orb_alloc_window
import "C"

import (
	"errors"
	"syscall"

	"github.com/orbitte/orbitte/verbs"
)

// end ends an object. It always waits for its place: a refused end would leave the object for good.
func (l *library) end(call string, what C.int, handle uint64, kind string) error {
	_ = l.ends.enter(call, true)
	code := C.orb_end(l.c, what, C.uint64_t(handle))
	l.ends.leave()
	if code != 0 {
		return fail(call, name(kind, handle), code)
	}
	return nil
}

// change makes or changes an object behind the gate.
func (l *library) change(call, kind string, handle uint64, native func() C.int) error {
	if err := l.opens.enter(call, false); err != nil {
		return err
	}
	code := native()
	l.opens.leave()
	if code != 0 {
		return fail(call, name(kind, handle), code)
	}
	return nil
}

func (l *library) AllocateDomain(d verbs.DeviceHandle) (verbs.DomainHandle, error) {
	var out C.uint64_t
	err := l.change("ibv_alloc_pd", "device "+device(d), uint64(d), func() C.int {
		return C.orb_alloc_domain(l.c, C.uint64_t(d), &out)
	})
	return verbs.DomainHandle(out), err
}

func (l *library) FreeDomain(h verbs.DomainHandle) error {
	return l.end("ibv_dealloc_pd", C.ORB_END_DOMAIN, uint64(h), "domain")
}

func (l *library) CreateChannel(d verbs.DeviceHandle) (verbs.ChannelHandle, error) {
	var out C.uint64_t
	err := l.change("ibv_create_comp_channel", "device "+device(d), uint64(d), func() C.int {
		return C.orb_create_channel(l.c, C.uint64_t(d), &out)
	})
	return verbs.ChannelHandle(out), err
}

func (l *library) DestroyChannel(h verbs.ChannelHandle) error {
	return l.end("ibv_destroy_comp_channel", C.ORB_END_CHANNEL, uint64(h), "channel")
}

func (l *library) ChannelDescriptor(h verbs.ChannelHandle) int {
	return int(C.orb_channel_descriptor(C.uint64_t(h)))
}

// CreateQueue spreads queues over the device's completion vectors.
func (l *library) CreateQueue(d verbs.DeviceHandle, entries int, c verbs.ChannelHandle) (verbs.QueueHandle, error) {
	var out C.uint64_t
	vector := l.vector.Add(1) - 1
	err := l.change("ibv_create_cq", "device "+device(d), uint64(d), func() C.int {
		return C.orb_create_queue(l.c, C.uint64_t(d), C.int(entries), C.uint64_t(c), C.uint32_t(vector), &out)
	})
	return verbs.QueueHandle(out), err
}

func (l *library) DestroyQueue(h verbs.QueueHandle) error {
	return l.end("ibv_destroy_cq", C.ORB_END_QUEUE, uint64(h), "queue")
}

func (l *library) CreatePair(d verbs.DomainHandle, o verbs.PairOptions) (verbs.PairHandle, verbs.PairNumber, error) {
	c := C.struct_orb_pair_options{
		sends: C.uint64_t(o.Sends), receives: C.uint64_t(o.Receives),
		send_depth: C.uint32_t(o.SendDepth), receive_depth: C.uint32_t(o.ReceiveDepth), inlined: C.uint32_t(o.Inline),
	}
	var out C.uint64_t
	var number C.uint32_t
	err := l.change("ibv_create_qp", "domain", uint64(d), func() C.int {
		return C.orb_create_pair(l.c, C.uint64_t(d), &c, &out, &number)
	})
	return verbs.PairHandle(out), verbs.PairNumber(number), err
}

func (l *library) ModifyPair(h verbs.PairHandle, t verbs.Transition) error {
	c := C.struct_orb_transition{
		to: C.uint32_t(t.To), access: C.uint32_t(t.Access), remote: C.uint32_t(t.Remote), receive_start: C.uint32_t(t.ReceiveStart),
		mtu: C.uint32_t(t.MTU), source_gid: C.uint32_t(t.SourceGID), send_start: C.uint32_t(t.SendStart),
		remote_lid: C.uint16_t(t.RemoteLID), port: C.uint8_t(t.Port), hop_limit: C.uint8_t(t.HopLimit),
		traffic_class: C.uint8_t(t.TrafficClass), service_level: C.uint8_t(t.ServiceLevel),
		reads_answered: C.uint8_t(t.ReadsAnswered), receiver_not_ready: C.uint8_t(t.ReceiverNotReady),
		timeout: C.uint8_t(t.Timeout), retries: C.uint8_t(t.Retries), not_ready_retries: C.uint8_t(t.NotReadyRetries),
		reads_asked: C.uint8_t(t.ReadsAsked),
	}
	for i, b := range t.RemoteGID {
		c.remote_gid[i] = C.uint8_t(b)
	}
	return l.change("ibv_modify_qp", "pair", uint64(h), func() C.int {
		return C.orb_modify_pair(l.c, C.uint64_t(h), &c)
	})
}

func (l *library) QueryPair(h verbs.PairHandle) (verbs.PairState, error) {
	var state C.uint32_t
	err := l.change("ibv_query_qp", "pair", uint64(h), func() C.int {
		return C.orb_query_pair(l.c, C.uint64_t(h), &state)
	})
	return verbs.PairState(state), err
}

func (l *library) DestroyPair(h verbs.PairHandle) error {
	return l.end("ibv_destroy_qp", C.ORB_END_PAIR, uint64(h), "pair")
}

// Register adds to ENOMEM what this process may lock, when that is too little (*verbs.MemlockError).
func (l *library) Register(d verbs.DomainHandle, address, length uint64, a verbs.Access) (verbs.RegionHandle, verbs.LocalKey, verbs.RemoteKey, error) {
	var c C.struct_orb_region
	err := l.change("ibv_reg_mr", "domain", uint64(d), func() C.int {
		return C.orb_register(l.c, C.uint64_t(d), C.uint64_t(address), C.uint64_t(length), C.uint32_t(a), &c)
	})
	if errors.Is(err, syscall.ENOMEM) {
		err = explain(err, length)
	}
	return verbs.RegionHandle(c.handle), verbs.LocalKey(c.local), verbs.RemoteKey(c.remote), err
}

func (l *library) RegisterDescriptor(d verbs.DomainHandle, offset, length, address uint64, descriptor int, a verbs.Access) (verbs.RegionHandle, verbs.LocalKey, verbs.RemoteKey, error) {
	var c C.struct_orb_region
	err := l.change("ibv_reg_dmabuf_mr", "domain", uint64(d), func() C.int {
		return C.orb_register_descriptor(l.c, C.uint64_t(d), C.uint64_t(offset), C.uint64_t(length), C.uint64_t(address), C.int(descriptor), C.uint32_t(a), &c)
	})
	return verbs.RegionHandle(c.handle), verbs.LocalKey(c.local), verbs.RemoteKey(c.remote), err
}

func (l *library) Deregister(h verbs.RegionHandle) error {
	return l.end("ibv_dereg_mr", C.ORB_END_REGION, uint64(h), "region")
}

func (l *library) AllocateWindow(d verbs.DomainHandle) (verbs.WindowHandle, verbs.RemoteKey, error) {
	var out C.uint64_t
	var key C.uint32_t
	err := l.change("ibv_alloc_mw", "domain", uint64(d), func() C.int {
		return C.orb_alloc_window(C.uint64_t(d), &out, &key)
	})
	return verbs.WindowHandle(out), verbs.RemoteKey(key), err
}

func (l *library) FreeWindow(h verbs.WindowHandle) error {
	return l.end("ibv_dealloc_mw", C.ORB_END_WINDOW, uint64(h), "window")
}
