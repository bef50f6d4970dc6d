package epoll

import (
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/reactor/socket"
)

// idle is what the thread in Idle or Rest uses, while another one may be in any other method.
type idle struct {
	waker   *socket.Waker // nil: no guests
	alarm   int           // a timerfd
	waits   atomic.Uint64
	poll    [2]unix.PollFd
	timeout unix.Timespec
}

// Guests is Options.Guests.
func (k *Kernel) Guests() bool { return k.options.Guests }

// Settled says that no operation is queued for a try.
func (k *Kernel) Settled() bool { return k.operations.Queued() == 0 }

// Idle waits until the epoll descriptor itself is readable (epoll(7)); see reactor.GuestKernel. Events that another
// thread took in the meantime no longer make it so.
func (k *Kernel) Idle(until reactor.Instant) {
	var timeout *unix.Timespec
	if left := k.remaining(until); left >= 0 {
		k.idle.timeout = unix.NsecToTimespec(int64(left))
		timeout = &k.idle.timeout
	}
	k.wait(k.descriptor, timeout)
}

// Rest waits for Rouse and for the alarm only; see reactor.GuestKernel.
func (k *Kernel) Rest() { k.wait(k.idle.alarm, nil) }

// wait is ppoll(2) of the waker and one more descriptor. A pending Rouse ends it at once. Whatever ended it, the caller
// looks again.
func (k *Kernel) wait(descriptor int, timeout *unix.Timespec) {
	i := &k.idle
	if i.waker.Take() {
		return
	}
	if i.waker.Sleep() {
		i.waits.Add(1)
		i.poll = [...]unix.PollFd{
			{Fd: int32(i.waker.Descriptor()), Events: unix.POLLIN}, {Fd: int32(descriptor), Events: unix.POLLIN},
		}
		switch _, err := unix.Ppoll(i.poll[:], timeout, nil); {
		case (i.poll[0].Revents|i.poll[1].Revents)&unix.POLLNVAL != 0:
			panic("epoll: idling on descriptors " + k.state() + " failed: one of them is closed")
		case err != nil && err != unix.EINTR:
			pause(timeout)
		}
		if i.poll[0].Revents != 0 {
			i.waker.Drain() // a signal that comes only now ends the next wait
		}
	}
	i.waker.Risen()
	i.waker.Take()
}

// pauseMost is how long a host that is not let wait sleeps before it looks again.
const pauseMost = time.Millisecond

// pause is what is left where the system refuses ppoll: to a filter's taste, or since RLIMIT_NOFILE is below 2, as programs
// set it that want no further descriptors. To return at once would make the host look, and be refused, without end.
func pause(timeout *unix.Timespec) {
	left := pauseMost
	if timeout != nil {
		left = min(left, time.Duration(timeout.Nano()))
	}
	time.Sleep(left)
}

// Rouse ends the current or next Idle or Rest.
func (k *Kernel) Rouse() { k.idle.waker.Wake() }

// Alarm sets the timer that ends Rest (timerfd_settime(2)); an instant that has passed ends it at once.
func (k *Kernel) Alarm(at reactor.Instant) {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(int64(at), 1))}
	_ = unix.TimerfdSettime(k.idle.alarm, unix.TFD_TIMER_ABSTIME, &spec, nil) // cannot fail with these arguments
}

// open makes room for guests.
func (i *idle) open() (err error) {
	if i.alarm, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return &socket.CallError{Call: "timerfd_create", Object: "kernel", Errno: err.(syscall.Errno), Remedy: "see RLIMIT_NOFILE"}
	}
	if i.waker, err = socket.NewWaker(); err != nil {
		_ = unix.Close(i.alarm)
	}
	return err
}

// close ends what open made.
func (i *idle) close() error {
	if i.waker == nil {
		return nil
	}
	err := i.waker.Close()
	if e := unix.Close(i.alarm); err == nil {
		err = e
	}
	return err
}
