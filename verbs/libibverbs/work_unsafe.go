//go:build linux

package libibverbs

// #include "shim.h"
// #cgo noescape orb_post_send
// #cgo nocallback orb_post_send
// #cgo noescape orb_post_receive
// #cgo nocallback orb_post_receive
// #cgo noescape orb_poll
// #cgo nocallback orb_poll
// #cgo nocallback orb_arm
// #cgo nocallback orb_next_event
import "C"

import (
	"fmt"
	"syscall"
	"unsafe"

	"github.com/orbitte/orbitte/verbs"
)

// Lists cross as they lie: each difference of two layouts would make one of these arrays' lengths something else than
// 0, and the package would not build. work.c holds the C side against numbers, layout_test.go the Go side.
var (
	_ [0]struct{} = [unsafe.Sizeof(verbs.SendWork{}) - C.sizeof_struct_orb_send_work]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(verbs.SendWork{}.Access) - unsafe.Offsetof(C.struct_orb_send_work{}.access)]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(verbs.ReceiveWork{}) - C.sizeof_struct_orb_receive_work]struct{}{}
	_ [0]struct{} = [unsafe.Sizeof(verbs.Completion{}) - C.sizeof_struct_orb_completion]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(verbs.Completion{}.Flags) - unsafe.Offsetof(C.struct_orb_completion{}.flags)]struct{}{}

	_ [0]struct{} = [verbs.Write - C.ORB_WRITE]struct{}{}
	_ [0]struct{} = [verbs.Read - C.ORB_READ]struct{}{}
	_ [0]struct{} = [verbs.Send - C.ORB_SEND]struct{}{}
	_ [0]struct{} = [verbs.SendWithInvalidate - C.ORB_SEND_WITH_INVALIDATE]struct{}{}
	_ [0]struct{} = [verbs.BindWindow - C.ORB_BIND_WINDOW]struct{}{}
	_ [0]struct{} = [verbs.LocalInvalidate - C.ORB_LOCAL_INVALIDATE]struct{}{}
)

// PostSend posts a list in one crossing; the device sees it in lists of at most 32.
func (l *library) PostSend(h verbs.PairHandle, work []verbs.SendWork) (int, error) {
	if len(work) == 0 {
		return 0, nil
	}
	p := C.orb_post_send(C.uint64_t(h), (*C.struct_orb_send_work)(unsafe.Pointer(unsafe.SliceData(work))), C.int32_t(len(work)))
	if p.code != 0 {
		return int(p.accepted), fail("ibv_post_send", name("pair", h), C.int(p.code))
	}
	return int(p.accepted), nil
}

// PostReceive posts a list in one crossing; the device sees it in lists of at most 64.
func (l *library) PostReceive(h verbs.PairHandle, work []verbs.ReceiveWork) (int, error) {
	if len(work) == 0 {
		return 0, nil
	}
	p := C.orb_post_receive(C.uint64_t(h), (*C.struct_orb_receive_work)(unsafe.Pointer(unsafe.SliceData(work))), C.int32_t(len(work)))
	if p.code != 0 {
		return int(p.accepted), fail("ibv_post_recv", name("pair", h), C.int(p.code))
	}
	return int(p.accepted), nil
}

func (l *library) Poll(sends, receives verbs.QueueHandle, out []verbs.Completion) (sent, received int, err error) {
	if len(out) == 0 {
		return 0, 0, nil
	}
	p := C.orb_poll(C.uint64_t(sends), C.uint64_t(receives), (*C.struct_orb_completion)(unsafe.Pointer(unsafe.SliceData(out))), C.int32_t(len(out)))
	if p.failed != 0 {
		err = pollError(sends, receives, int(p.failed), int(p.result))
	}
	return int(p.sent), int(p.received), err
}

// pollError names the queue. ibv_poll_cq has no errno: any negative number says failure, and each provider has its own.
func pollError(sends, receives verbs.QueueHandle, failed, result int) error {
	which := name("queue of sends", sends)
	if failed == 2 {
		which = name("queue of receives", receives)
	}
	return &verbs.CallError{Call: "ibv_poll_cq", Object: fmt.Sprintf("%s (it returned %d)", which, result), Errno: syscall.EIO}
}

func (l *library) Arm(h verbs.QueueHandle) error {
	if code := C.orb_arm(C.uint64_t(h)); code != 0 {
		return fail("ibv_req_notify_cq", name("queue", h), code)
	}
	return nil
}

func (l *library) NextEvent(h verbs.ChannelHandle) (verbs.QueueHandle, bool, error) {
	e := C.orb_next_event(l.c, C.uint64_t(h))
	switch {
	case e.code == 0:
		return verbs.QueueHandle(e.queue), true, nil
	case syscall.Errno(e.code) == syscall.EAGAIN:
		return 0, false, nil
	}
	return 0, false, fail("ibv_get_cq_event", name("channel", h), C.int(e.code))
}
