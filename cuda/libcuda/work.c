//go:build cgo && linux

#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "driver.h"

// The hot calls. They allocate nothing and take no lock of ours.

#define AT(type, field, offset) _Static_assert(offsetof(struct type, field) == offset, #type "." #field " and Go's")

_Static_assert(sizeof(struct orbcu_copy) == 24, "cuda.Copy");
AT(orbcu_copy, to, 0);
AT(orbcu_copy, from, 8);
AT(orbcu_copy, bytes, 16);

// A signal is an eventfd and its owners: whoever opened it, and each host callback that was accepted and has not run.
// The last of them closes it.
struct orbcu_signal {
	int descriptor;
	_Atomic uint64_t state; // callbacks owed, and SIGNAL_CLOSED
};

#define SIGNAL_CLOSED (UINT64_C(1) << 63)

static void signal_end(struct orbcu_signal *s)
{
	close(s->descriptor);
	free(s);
}

// signal_repay gives back one callback's share.
static void signal_repay(struct orbcu_signal *s)
{
	if (atomic_fetch_sub_explicit(&s->state, 1, memory_order_acq_rel) == (SIGNAL_CLOSED | 1))
		signal_end(s);
}

// signal_ring runs on a thread of the driver, where no driver call is allowed. A full counter (EAGAIN) is readable
// already.
static void signal_ring(void *argument)
{
	struct orbcu_signal *s = argument;
	const uint64_t one = 1;
	int saved = errno;
	while (write(s->descriptor, &one, sizeof one) < 0 && errno == EINTR) {
	}
	signal_repay(s);
	errno = saved;
}

int orbcu_open_signal(uint64_t *signal)
{
	struct orbcu_signal *s = calloc(1, sizeof *s);
	if (s == NULL)
		return ENOMEM;
	s->descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (s->descriptor < 0) {
		int code = errno;
		free(s);
		return code;
	}
	*signal = orbcu_handle(s);
	return 0;
}

int orbcu_signal_descriptor(uint64_t signal)
{
	const struct orbcu_signal *s = orbcu_object(signal);
	return s->descriptor;
}

int orbcu_take_signal(uint64_t signal, uint64_t *callbacks)
{
	const struct orbcu_signal *s = orbcu_object(signal);
	ssize_t n;
	*callbacks = 0;
	while ((n = read(s->descriptor, callbacks, sizeof *callbacks)) < 0 && errno == EINTR) {
	}
	return n < 0 && errno != EAGAIN ? errno : 0;
}

int64_t orbcu_close_signal(uint64_t signal)
{
	struct orbcu_signal *s = orbcu_object(signal);
	uint64_t owed = atomic_fetch_or_explicit(&s->state, SIGNAL_CLOSED, memory_order_acq_rel);
	if (owed == 0)
		signal_end(s);
	return (int64_t)(owed & ~SIGNAL_CLOSED);
}

// launch asks for the callback. The share is taken first: the callback may run before the call returns. Where nobody
// knows whether it will run, the share stays.
static struct orbcu_done launch(const struct orbcu_driver *l, orb_cu_stream stream, struct orbcu_signal *s)
{
	atomic_fetch_add_explicit(&s->state, 1, memory_order_relaxed);
	struct orbcu_done done = orbcu_done(l->cuLaunchHostFunc(stream, signal_ring, s), ORBCU_cuLaunchHostFunc);
	if (done.result != 0 && done.effect == ORBCU_NONE)
		signal_repay(s);
	return done;
}

static void submit(const struct orbcu_driver *l, orb_cu_stream stream, const struct orbcu_copy *copies, int32_t count,
	uint64_t event, uint64_t signal, struct orbcu_submitted *out)
{
	for (; out->copies < count; out->copies++) {
		const struct orbcu_copy *c = &copies[out->copies];
		out->done = orbcu_done(l->cuMemcpyAsync(c->to, c->from, c->bytes, stream), ORBCU_cuMemcpyAsync);
		if (out->done.result == ORB_CUDA_ERROR_OUT_OF_MEMORY)
			out->done.effect = ORBCU_MAYBE; // a part may be on its way
		if (out->done.result != 0) {
			out->unknown = out->done.effect != ORBCU_NONE;
			return;
		}
	}
	out->done = orbcu_done(l->cuEventRecord(orbcu_object(event), stream), ORBCU_cuEventRecord);
	if (out->done.result != 0) {
		out->unknown = out->done.effect != ORBCU_NONE;
		return;
	}
	out->recorded = 1;
	if (signal == 0)
		return;
	out->done = launch(l, stream, orbcu_object(signal));
	out->signaled = out->done.result == 0;
}

struct orbcu_submitted orbcu_submit(const struct orbcu_driver *l, uint64_t context, uint64_t stream, const struct orbcu_copy *copies,
	int32_t count, uint64_t event, uint64_t signal)
{
	struct orbcu_submitted out = { .copies = 0 };
	struct orbcu_frame frame;
	out.done = orbcu_enter(&frame, l, context);
	if (out.done.result != 0)
		return out;
	submit(l, orbcu_object(stream), copies, count, event, signal, &out);
	out.done = orbcu_leave(&frame, out.done);
	return out;
}

// asked is for calls that change nothing, whatever their result.
static struct orbcu_done asked(struct orbcu_done done)
{
	if (done.effect == ORBCU_MAYBE)
		done.effect = ORBCU_NONE;
	return done;
}

struct orbcu_done orbcu_query(const struct orbcu_driver *l, uint64_t context, uint64_t event)
{
	return asked(ORBCU_IN(l, context, cuEventQuery, orbcu_object(event)));
}

struct orbcu_done orbcu_synchronize(const struct orbcu_driver *l, uint64_t context, uint64_t stream)
{
	return asked(ORBCU_IN(l, context, cuStreamSynchronize, orbcu_object(stream)));
}

struct orbcu_done orbcu_zero(const struct orbcu_driver *l, uint64_t context, uint64_t stream, uint64_t pointer, uint64_t bytes)
{
	return ORBCU_IN(l, context, cuMemsetD8Async, pointer, 0, bytes, orbcu_object(stream));
}
