//go:build cgo && linux

#include "library.h"

// The hot calls. They allocate nothing: lists are built on the stack, so many at a time, and the device sees the
// parts in order.
enum { CHUNK_SEND = 32, CHUNK_RECEIVE = 64, CHUNK_POLL = 32 };

#define AT(type, field, offset) _Static_assert(offsetof(struct type, field) == offset, #type "." #field " and Go's")

_Static_assert(sizeof(struct orb_send_work) == 72, "verbs.SendWork");
AT(orb_send_work, id, 0);
AT(orb_send_work, address, 8);
AT(orb_send_work, remote, 16);
AT(orb_send_work, span, 24);
AT(orb_send_work, window, 32);
AT(orb_send_work, region, 40);
AT(orb_send_work, operation, 48);
AT(orb_send_work, flags, 52);
AT(orb_send_work, length, 56);
AT(orb_send_work, local_key, 60);
AT(orb_send_work, remote_key, 64);
AT(orb_send_work, access, 68);
_Static_assert(sizeof(struct orb_receive_work) == 24, "verbs.ReceiveWork");
AT(orb_receive_work, id, 0);
AT(orb_receive_work, address, 8);
AT(orb_receive_work, length, 16);
AT(orb_receive_work, local_key, 20);
_Static_assert(sizeof(struct orb_completion) == 40, "verbs.Completion");
AT(orb_completion, id, 0);
AT(orb_completion, status, 8);
AT(orb_completion, operation, 12);
AT(orb_completion, vendor, 16);
AT(orb_completion, length, 20);
AT(orb_completion, invalidated, 24);
AT(orb_completion, pair, 28);
AT(orb_completion, flags, 32);

// build makes one work request; 0: it is none that a device could know.
static int build(struct orb_send_wr *wr, struct orb_sge *sge, const struct orb_send_work *w)
{
	*wr = (struct orb_send_wr){ .wr_id = w->id, .send_flags = w->flags };
	switch (w->operation) {
	case ORB_WRITE:
		wr->opcode = ORB_WR_RDMA_WRITE;
		break;
	case ORB_READ:
		wr->opcode = ORB_WR_RDMA_READ;
		break;
	case ORB_SEND:
		wr->opcode = ORB_WR_SEND;
		break;
	case ORB_SEND_WITH_INVALIDATE:
		wr->opcode = ORB_WR_SEND_WITH_INV;
		wr->invalidate_rkey = w->remote_key;
		break;
	case ORB_LOCAL_INVALIDATE:
		wr->opcode = ORB_WR_LOCAL_INV;
		wr->invalidate_rkey = w->remote_key;
		return 1;
	case ORB_BIND_WINDOW:
		if (w->window == 0 || w->region == 0)
			return 0;
		wr->opcode = ORB_WR_BIND_MW;
		wr->mw = orb_pointer(w->window);
		wr->bind_rkey = w->remote_key;
		wr->mr = orb_pointer(w->region);
		wr->addr = w->remote;
		wr->length = w->span;
		wr->mw_access_flags = w->access;
		return 1;
	default:
		return 0;
	}
	if (w->operation == ORB_WRITE || w->operation == ORB_READ) {
		wr->remote_addr = w->remote;
		wr->rkey = w->remote_key;
	}
	if (w->length != 0) { // some devices take an element of length 0 for 2 GiB
		*sge = (struct orb_sge){ .addr = w->address, .length = w->length, .lkey = w->local_key };
		wr->sg_list = sge;
		wr->num_sge = 1;
	}
	return 1;
}

// rebinds says whether a list binds this window already. Providers read the window's present key when they are
// given the list, so a second bind of it belongs into the next.
static int rebinds(const struct orb_send_wr *list, int count, const struct orb_send_wr *wr)
{
	for (int i = 0; wr->opcode == ORB_WR_BIND_MW && i < count; i++)
		if (list[i].opcode == ORB_WR_BIND_MW && list[i].mw == wr->mw)
			return 1;
	return 0;
}

// bound tells the library the keys that accepted binds give, as its users must: it names the window by its present
// key in the next bind.
static void bound(const struct orb_send_wr *list, int count)
{
	for (int i = 0; i < count; i++)
		if (list[i].opcode == ORB_WR_BIND_MW)
			list[i].mw->rkey = list[i].bind_rkey;
}

// accepted is what bad_wr proves: the index of the first that was refused, or -1.
static int accepted(const void *list, size_t size, int count, const void *bad)
{
	uintptr_t first = (uintptr_t)list, at = (uintptr_t)bad;
	if (at < first || at >= first + size * (size_t)count || (at - first) % size != 0)
		return -1;
	return (int)((at - first) / size);
}

struct orb_posted orb_post_send(uint64_t pair, const struct orb_send_work *work, int32_t count)
{
	struct orb_send_wr list[CHUNK_SEND];
	struct orb_sge sges[CHUNK_SEND];
	struct orb_qp *qp = orb_pointer(pair);
	int32_t done = 0;
	if (qp == NULL)
		return (struct orb_posted){ 0, EINVAL };
	while (done < count) {
		int n = 0, sound = 1;
		while (n < CHUNK_SEND && done + n < count) {
			sound = build(&list[n], &sges[n], &work[done + n]);
			if (!sound || rebinds(list, n, &list[n]))
				break;
			if (n > 0)
				list[n - 1].next = &list[n];
			n++;
		}
		if (n > 0) {
			struct orb_send_wr *bad = NULL;
			errno = 0;
			int code = orb_code(qp->context->ops.post_send(qp, list, &bad));
			int taken = code == 0 ? n : accepted(list, sizeof list[0], n, bad);
			bound(list, taken > 0 ? taken : 0);
			if (code != 0)
				return (struct orb_posted){ taken < 0 ? -1 : done + taken, code };
			done += n;
		}
		if (!sound)
			return (struct orb_posted){ done, EINVAL };
	}
	return (struct orb_posted){ done, 0 };
}

struct orb_posted orb_post_receive(uint64_t pair, const struct orb_receive_work *work, int32_t count)
{
	struct orb_recv_wr list[CHUNK_RECEIVE];
	struct orb_sge sges[CHUNK_RECEIVE];
	struct orb_qp *qp = orb_pointer(pair);
	int32_t done = 0;
	if (qp == NULL)
		return (struct orb_posted){ 0, EINVAL };
	while (done < count) {
		int n = 0;
		for (; n < CHUNK_RECEIVE && done + n < count; n++) {
			const struct orb_receive_work *w = &work[done + n];
			sges[n] = (struct orb_sge){ .addr = w->address, .length = w->length, .lkey = w->local_key };
			list[n] = (struct orb_recv_wr){ .wr_id = w->id, .sg_list = &sges[n], .num_sge = w->length != 0 };
			if (n > 0)
				list[n - 1].next = &list[n];
		}
		struct orb_recv_wr *bad = NULL;
		errno = 0;
		int code = orb_code(qp->context->ops.post_recv(qp, list, &bad));
		if (code != 0) {
			int taken = accepted(list, sizeof list[0], n, bad);
			return (struct orb_posted){ taken < 0 ? -1 : done + taken, code };
		}
		done += n;
	}
	return (struct orb_posted){ done, 0 };
}

// take polls one queue until it is empty or the room is used. It returns how many it took; result is 0, or what the
// library returned when it failed (a count above what was asked for is a failure too).
static int32_t take(uint64_t queue, struct orb_completion *out, int32_t room, int32_t *result)
{
	struct orb_wc wc[CHUNK_POLL];
	struct orb_cq *cq = orb_pointer(queue);
	int32_t taken = 0;
	while (taken < room) {
		int want = room - taken < CHUNK_POLL ? room - taken : CHUNK_POLL;
		for (int i = 0; i < want; i++) // libraries leave it as it is for a plain SEND: no key of an earlier poll may stand there
			wc[i].invalidated_rkey = 0;
		int got = cq->context->ops.poll_cq(cq, want, wc);
		if (got < 0 || got > want) {
			*result = got;
			return taken;
		}
		for (int i = 0; i < got; i++)
			out[taken + i] = (struct orb_completion){
				.id = wc[i].wr_id, .status = wc[i].status, .operation = wc[i].opcode, .vendor = wc[i].vendor_err,
				.length = wc[i].byte_len, .invalidated = wc[i].invalidated_rkey, .pair = wc[i].qp_num, .flags = wc[i].wc_flags,
			};
		taken += got;
		if (got < want)
			break;
	}
	return taken;
}

struct orb_polled orb_poll(uint64_t sends, uint64_t receives, struct orb_completion *out, int32_t room)
{
	struct orb_polled p = { 0 };
	if (sends != 0) {
		p.sent = take(sends, out, room, &p.result);
		if (p.result != 0) {
			p.failed = 1;
			return p;
		}
	}
	if (receives != 0) {
		p.received = take(receives, out + p.sent, room - p.sent, &p.result);
		if (p.result != 0)
			p.failed = 2;
	}
	return p;
}

int orb_arm(uint64_t queue)
{
	struct orb_cq *cq = orb_pointer(queue);
	if (cq == NULL)
		return EINVAL;
	errno = 0;
	return orb_code(cq->context->ops.req_notify_cq(cq, 0));
}
