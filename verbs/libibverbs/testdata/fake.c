// A stand-in for libibverbs.so.1 that the tests build and load. It has no network: posted work completes at once,
// and its completion shows what the library was given. What goes wrong is told by the environment for slow calls and by
// the work itself for hot ones:
//
//	FAKE_DEVICES=N        devices fake0, fake1, … (2); -N: the list is NULL with errno N
//	FAKE_SYSFS=DIR        where their sysfs folders are
//	FAKE_FAIL=F:R:E,...   function F fails: errno becomes E, and it returns R, or NULL
//	FAKE_BLOCK=F:FD       function F reads from descriptor FD first
//	FAKE_PLAIN=1          contexts are not extended
//
// A work's ID says how posting fails when its upper half is one of these; the lower half is the errno.
//
//	0xBAD0 here, with bad_wr   0xBAD1 bad_wr left alone   0xBAD2 bad_wr inside this element   0xBAD3 before the list
//	0xBAD4 behind it   0xBAD5 as 0xBAD0, but -1 and errno
//	0xBAD8 posted, and the poll that meets it returns minus the lower half   0xBAD9 the poll returns one too many
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../abi.h"

enum { RING = 4096 };

struct fake_cq {
	struct orb_cq cq;
	struct orb_wc ring[RING];
	unsigned head, tail;
	int armed, unacknowledged;
};

struct fake_channel {
	struct orb_comp_channel channel;
	int in;
};

struct fake_context {
	struct orb_verbs_context v;
	int in;
	int unacknowledged;
};

static void block(const char *function)
{
	const char *text = getenv("FAKE_BLOCK");
	size_t n = strlen(function);
	char c;
	if (text != NULL && strncmp(text, function, n) == 0 && text[n] == ':')
		while (read(atoi(text + n + 1), &c, 1) < 0 && errno == EINTR) {
		}
}

// fails says whether a function is to fail, and how.
static int fails(const char *function, int *result)
{
	block(function);
	const char *at = getenv("FAKE_FAIL");
	size_t n = strlen(function);
	for (; at != NULL && *at != 0; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
		int r, e;
		if (strncmp(at, function, n) != 0 || at[n] != ':' || sscanf(at + n, ":%d:%d", &r, &e) != 2)
			continue;
		errno = e;
		*result = r;
		return 1;
	}
	return 0;
}

#define FAIL_INT(function) do { int r_; if (fails(function, &r_)) return r_; } while (0)
#define FAIL_NULL(function) do { int r_; if (fails(function, &r_)) return NULL; } while (0)

static struct fake_context *around(struct orb_context *c) { return (void *)((char *)c - offsetof(struct fake_context, v.context)); }

// ---- devices

static struct orb_device devices[64];

struct orb_device **ibv_get_device_list(int *count)
{
	FAIL_NULL("ibv_get_device_list");
	const char *text = getenv("FAKE_DEVICES"), *sysfs = getenv("FAKE_SYSFS");
	int n = text != NULL ? atoi(text) : 2;
	if (n < 0) {
		errno = -n;
		return NULL;
	}
	struct orb_device **list = calloc(n + 1, sizeof *list);
	for (int i = 0; i < n; i++) {
		list[i] = &devices[i];
		snprintf(devices[i].name, sizeof devices[i].name, "fake%d", i);
		snprintf(devices[i].dev_name, sizeof devices[i].dev_name, "uverbs%d", i);
		snprintf(devices[i].ibdev_path, sizeof devices[i].ibdev_path, "%s/fake%d", sysfs != NULL ? sysfs : "/nowhere", i);
	}
	if (count != NULL)
		*count = n;
	return list;
}

void ibv_free_device_list(struct orb_device **list) { free(list); }

uint64_t ibv_get_device_guid(struct orb_device *device)
{
	uint8_t raw[8] = { 1, 2, 3, 4, 5, 6, 7, (uint8_t)(device - devices) };
	uint64_t big;
	memcpy(&big, raw, sizeof big);
	return big;
}

static int poll_cq(struct orb_cq *cq, int count, struct orb_wc *wc);
static int req_notify_cq(struct orb_cq *cq, int solicited_only);
static int post_send(struct orb_qp *qp, struct orb_send_wr *wr, struct orb_send_wr **bad);
static int post_recv(struct orb_qp *qp, struct orb_recv_wr *wr, struct orb_recv_wr **bad);
static struct orb_mw *alloc_mw(struct orb_pd *pd, int type);
static int dealloc_mw(struct orb_mw *mw);

static int port(uint8_t number, struct orb_port_attr *attr, size_t length)
{
	struct orb_port_attr full = { .state = 4, .max_mtu = 5, .active_mtu = 3, .gid_tbl_len = 8, .max_msg_sz = 1u << 30,
		.lid = 7, .active_width = 2, .active_speed = 32, .link_layer = 2 };
	if (number < 1 || number > 2)
		return EINVAL;
	memcpy(attr, &full, length < sizeof full ? length : sizeof full);
	return 0;
}

static int query_port(struct orb_context *context, uint8_t number, struct orb_port_attr *attr, size_t length)
{
	(void)context;
	FAIL_INT("query_port");
	return port(number, attr, length);
}

int ibv_query_port(struct orb_context *context, uint8_t number, struct orb_port_attr *attr)
{
	(void)context;
	FAIL_INT("ibv_query_port");
	return port(number, attr, offsetof(struct orb_port_attr, flags));
}

struct orb_context *ibv_open_device(struct orb_device *device)
{
	FAIL_NULL("ibv_open_device");
	struct fake_context *f = calloc(1, sizeof *f);
	int pipes[2];
	if (pipe(pipes) != 0)
		return NULL;
	f->in = pipes[1];
	f->v.query_port = query_port;
	f->v.sz = sizeof f->v;
	f->v.context.device = device;
	f->v.context.async_fd = pipes[0];
	f->v.context.num_comp_vectors = 3;
	f->v.context.abi_compat = getenv("FAKE_PLAIN") == NULL ? (void *)UINTPTR_MAX : NULL;
	f->v.context.ops = (struct orb_context_ops){ .poll_cq = poll_cq, .req_notify_cq = req_notify_cq, .post_send = post_send,
		.post_recv = post_recv, .alloc_mw = alloc_mw, .dealloc_mw = dealloc_mw };
	return &f->v.context;
}

int ibv_close_device(struct orb_context *context)
{
	FAIL_INT("ibv_close_device");
	struct fake_context *f = around(context);
	if (f->unacknowledged != 0)
		return EBUSY;
	close(context->async_fd);
	close(f->in);
	free(f);
	return 0;
}

int ibv_query_device(struct orb_context *context, struct orb_device_attr *attr)
{
	(void)context;
	FAIL_INT("ibv_query_device");
	*attr = (struct orb_device_attr){ .fw_ver = "1.2.3", .max_mr_size = 1ull << 40, .max_qp = 11, .max_qp_wr = 12, .max_sge = 13,
		.max_cq = 14, .max_cqe = 15, .max_mr = 16, .max_mw = 17, .max_pd = 18, .max_qp_rd_atom = 20, .max_qp_init_rd_atom = 19,
		.phys_port_cnt = 2, .device_cap_flags = 1u << 24 };
	return 0;
}

#ifndef OLD
int64_t _ibv_query_gid_table(struct orb_context *context, struct orb_gid_entry *entries, size_t max, uint32_t flags, size_t size)
{
	(void)context, (void)flags;
	FAIL_INT("_ibv_query_gid_table");
	if (size != sizeof *entries || max < 4)
		return -EINVAL;
	memset(entries, 0, 4 * sizeof *entries);
	for (int i = 0; i < 4; i++) {
		entries[i].port_num = i < 3 ? 1 : 2;
		entries[i].gid_index = (uint32_t)(i == 2 ? 5 : i);
		entries[i].gid_type = (uint32_t)i % 3;
		entries[i].ndev_ifindex = 1; // lo
		if (i != 1)
			entries[i].raw[15] = (uint8_t)(i + 1);
	}
	return 4;
}
#endif

int ibv_get_async_event(struct orb_context *context, struct orb_async_event *event)
{
	FAIL_INT("ibv_get_async_event");
	if (read(context->async_fd, event, sizeof *event) != sizeof *event)
		return -1;
	around(context)->unacknowledged++;
	return 0;
}

static struct fake_context *last_async;

void ibv_ack_async_event(struct orb_async_event *event)
{
	(void)event;
	last_async->unacknowledged--;
}

// ---- objects

struct orb_pd *ibv_alloc_pd(struct orb_context *context)
{
	FAIL_NULL("ibv_alloc_pd");
	struct orb_pd *pd = calloc(1, sizeof *pd);
	pd->context = context;
	return pd;
}

int ibv_dealloc_pd(struct orb_pd *pd)
{
	FAIL_INT("ibv_dealloc_pd");
	free(pd);
	return 0;
}

struct orb_comp_channel *ibv_create_comp_channel(struct orb_context *context)
{
	FAIL_NULL("ibv_create_comp_channel");
	struct fake_channel *c = calloc(1, sizeof *c);
	int pipes[2];
	if (pipe(pipes) != 0)
		return NULL;
	c->channel.context = context;
	c->channel.fd = pipes[0];
	c->in = pipes[1];
	return &c->channel;
}

int ibv_destroy_comp_channel(struct orb_comp_channel *channel)
{
	FAIL_INT("ibv_destroy_comp_channel");
	close(channel->fd);
	close(((struct fake_channel *)channel)->in);
	free(channel);
	return 0;
}

// The queue's handle shows the vector it was made for.
struct orb_cq *ibv_create_cq(struct orb_context *context, int cqe, void *cq_context, struct orb_comp_channel *channel, int vector)
{
	FAIL_NULL("ibv_create_cq");
	if (cqe < 1 || cqe > RING || vector < 0 || vector >= context->num_comp_vectors) {
		errno = EINVAL;
		return NULL;
	}
	struct fake_cq *f = calloc(1, sizeof *f);
	f->cq = (struct orb_cq){ .context = context, .channel = channel, .cq_context = cq_context, .cqe = cqe };
	return &f->cq;
}

int ibv_destroy_cq(struct orb_cq *cq)
{
	FAIL_INT("ibv_destroy_cq");
	if (((struct fake_cq *)cq)->unacknowledged != 0)
		return EBUSY; // the real one would wait
	free(cq);
	return 0;
}

int ibv_get_cq_event(struct orb_comp_channel *channel, struct orb_cq **cq, void **cq_context)
{
	FAIL_INT("ibv_get_cq_event");
	if (read(channel->fd, cq, sizeof *cq) != sizeof *cq)
		return -1;
	*cq_context = (*cq)->cq_context;
	((struct fake_cq *)*cq)->unacknowledged++;
	return 0;
}

void ibv_ack_cq_events(struct orb_cq *cq, unsigned int count) { ((struct fake_cq *)cq)->unacknowledged -= (int)count; }

struct orb_qp *ibv_create_qp(struct orb_pd *pd, struct orb_qp_init_attr *attr)
{
	FAIL_NULL("ibv_create_qp");
	if (attr->qp_type != 2 || attr->sq_sig_all != 0 || attr->cap.max_send_sge != 1 || attr->cap.max_recv_sge != 1) {
		errno = EINVAL;
		return NULL;
	}
	struct orb_qp *qp = calloc(1, sizeof *qp);
	*qp = (struct orb_qp){ .context = pd->context, .pd = pd, .send_cq = attr->send_cq, .recv_cq = attr->recv_cq,
		.qp_num = attr->cap.max_send_wr << 16 | attr->cap.max_recv_wr << 8 | attr->cap.max_inline_data };
	return qp;
}

// modify_qp keeps the attributes that its state needs and nothing else: each must arrive.
int ibv_modify_qp(struct orb_qp *qp, struct orb_qp_attr *attr, int mask)
{
	FAIL_INT("ibv_modify_qp");
	const int needs[8] = { 1, 1 | 1 << 3 | 1 << 4 | 1 << 5, 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20,
		1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16, 1, 1, 1 };
	if (attr->qp_state < 0 || attr->qp_state > 6 || mask != needs[attr->qp_state])
		return EINVAL;
	int sound = 1;
	if (attr->qp_state == 1)
		sound = attr->port_num == 3 && attr->qp_access_flags == 6 && attr->pkey_index == 0;
	if (attr->qp_state == 2)
		sound = attr->dest_qp_num == 0xabcdef && attr->rq_psn == 0x123456 && attr->path_mtu == 4 && attr->max_dest_rd_atomic == 8 &&
			attr->min_rnr_timer == 12 && attr->ah_attr.port_num == 3 && attr->ah_attr.dlid == 77 && attr->ah_attr.sl == 2 &&
			attr->ah_attr.is_global == 1 && attr->ah_attr.grh.dgid[0] == 0xfd && attr->ah_attr.grh.dgid[15] == 9 &&
			attr->ah_attr.grh.sgid_index == 5 && attr->ah_attr.grh.hop_limit == 64 && attr->ah_attr.grh.traffic_class == 104;
	if (attr->qp_state == 3)
		sound = attr->sq_psn == 0x654321 && attr->timeout == 14 && attr->retry_cnt == 6 && attr->rnr_retry == 5 && attr->max_rd_atomic == 7;
	qp->state = attr->qp_state;
	return sound ? 0 : EDOM;
}

int ibv_query_qp(struct orb_qp *qp, struct orb_qp_attr *attr, int mask, struct orb_qp_init_attr *init)
{
	FAIL_INT("ibv_query_qp");
	(void)mask;
	memset(init, 0, sizeof *init);
	attr->qp_state = qp->state;
	return 0;
}

int ibv_destroy_qp(struct orb_qp *qp)
{
	FAIL_INT("ibv_destroy_qp");
	free(qp);
	return 0;
}

// A region's local key shows the access it was made with, its remote key the function.
static struct orb_mr *region(struct orb_pd *pd, void *address, size_t length, uint32_t access, uint32_t function)
{
	struct orb_mr *mr = calloc(1, sizeof *mr);
	*mr = (struct orb_mr){ .context = pd->context, .pd = pd, .addr = address, .length = length, .lkey = access, .rkey = function };
	return mr;
}

struct orb_mr *ibv_reg_mr(struct orb_pd *pd, void *address, size_t length, int access)
{
	FAIL_NULL("ibv_reg_mr");
	return region(pd, address, length, (uint32_t)access, 1);
}

#ifndef OLD
struct orb_mr *ibv_reg_mr_iova2(struct orb_pd *pd, void *address, size_t length, uint64_t iova, unsigned int access)
{
	FAIL_NULL("ibv_reg_mr_iova2");
	return region(pd, address, length, access, iova == (uintptr_t)address ? 2 : 0);
}

struct orb_mr *ibv_reg_dmabuf_mr(struct orb_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	FAIL_NULL("ibv_reg_dmabuf_mr");
	return region(pd, (void *)(uintptr_t)iova, length, (uint32_t)access, (uint32_t)(offset << 8) + (uint32_t)fd);
}
#endif

int ibv_dereg_mr(struct orb_mr *mr)
{
	FAIL_INT("ibv_dereg_mr");
	free(mr);
	return 0;
}

static struct orb_mw *alloc_mw(struct orb_pd *pd, int type)
{
	FAIL_NULL("alloc_mw");
	struct orb_mw *mw = calloc(1, sizeof *mw);
	*mw = (struct orb_mw){ .context = pd->context, .pd = pd, .rkey = 0x100, .type = type };
	return mw;
}

static int dealloc_mw(struct orb_mw *mw)
{
	FAIL_INT("dealloc_mw");
	free(mw);
	return 0;
}

// ---- work

static void complete(struct orb_cq *cq, struct orb_wc wc)
{
	struct fake_cq *f = (struct fake_cq *)cq;
	f->ring[f->tail++ % RING] = wc;
	if (f->armed && cq->channel != NULL) {
		f->armed = 0;
		if (write(((struct fake_channel *)cq->channel)->in, &cq, sizeof cq) < 0)
			abort();
	}
}

static int req_notify_cq(struct orb_cq *cq, int solicited_only)
{
	FAIL_INT("req_notify_cq");
	((struct fake_cq *)cq)->armed = !solicited_only;
	return 0;
}

static int poll_cq(struct orb_cq *cq, int count, struct orb_wc *wc)
{
	struct fake_cq *f = (struct fake_cq *)cq;
	int n = 0;
	while (n < count && f->head != f->tail) {
		struct orb_wc *next = &f->ring[f->head % RING];
		uint32_t mark = (uint32_t)(next->wr_id >> 32);
		if ((mark == 0xBAD8 || mark == 0xBAD9) && n > 0)
			break;
		f->head++;
		if (mark == 0xBAD8)
			return -(int)(uint32_t)next->wr_id;
		if (mark == 0xBAD9)
			return count + 1;
		uint32_t stale = wc[n].invalidated_rkey; // as mlx5 leaves it for a message without immediate data or invalidation
		wc[n] = *next;
		if (next->opcode == 128 && next->wc_flags == 0)
			wc[n].invalidated_rkey = stale;
		n++;
	}
	return n;
}

// refuse fails a post at an element as its ID says; 0: it does not.
static int refuse(uint64_t id, void *first, void *here, size_t size, void **bad)
{
	switch (id >> 32) {
	case 0xBAD0:
	case 0xBAD5:
		*bad = here;
		break;
	case 0xBAD1:
		break;
	case 0xBAD2:
		*bad = (char *)here + 8;
		break;
	case 0xBAD3:
		*bad = (char *)first - size;
		break;
	case 0xBAD4:
		*bad = (char *)first + 1000 * size;
		break;
	default:
		return 0;
	}
	errno = (int)(uint32_t)id;
	return id >> 32 == 0xBAD5 ? -1 : errno;
}

static void asynchronous(struct orb_qp *qp, int kind)
{
	struct fake_context *f = around(qp->context);
	struct orb_async_event event;
	memset(&event, 0, sizeof event);
	event.event_type = kind;
	if (kind == 0)
		event.element.pointer = qp->send_cq;
	else if (kind < 8 || kind == 16)
		event.element.pointer = qp;
	else
		event.element.port_num = 2;
	last_async = f;
	if (write(f->in, &event, sizeof event) < 0)
		abort();
}

static int post_send(struct orb_qp *qp, struct orb_send_wr *wr, struct orb_send_wr **bad)
{
	struct orb_send_wr *first = wr;
	for (; wr != NULL; wr = wr->next) {
		int code = refuse(wr->wr_id, first, wr, sizeof *wr, (void **)bad);
		if (code != 0)
			return code;
		struct orb_wc wc = { .wr_id = wr->wr_id, .opcode = (uint32_t)wr->opcode, .qp_num = qp->qp_num, .vendor_err = (uint32_t)wr->num_sge,
			.wc_flags = wr->send_flags, .invalidated_rkey = wr->invalidate_rkey };
		if (wr->num_sge == 1)
			wc.byte_len = wr->sg_list[0].length + wr->sg_list[0].lkey + (uint32_t)wr->sg_list[0].addr;
		if (wr->opcode == 0 || wr->opcode == 4)
			wc.invalidated_rkey = wr->rkey + (uint32_t)wr->remote_addr;
		if (wr->opcode == 8) {
			wc.vendor_err = wr->mw->rkey;
			wc.invalidated_rkey = wr->bind_rkey;
			wc.byte_len = (uint32_t)wr->length + (uint32_t)wr->addr + wr->mw_access_flags + wr->mr->lkey;
		}
		if (wr->opcode == 7 && wr->invalidate_rkey >> 24 == 0xa5)
			asynchronous(qp, (int)(wr->invalidate_rkey & 0xff));
		if ((wr->send_flags & 2) != 0)
			complete(qp->send_cq, wc);
	}
	return 0;
}

static int post_recv(struct orb_qp *qp, struct orb_recv_wr *wr, struct orb_recv_wr **bad)
{
	struct orb_recv_wr *first = wr;
	for (; wr != NULL; wr = wr->next) {
		int code = refuse(wr->wr_id, first, wr, sizeof *wr, (void **)bad);
		if (code != 0)
			return code;
		struct orb_wc wc = { .wr_id = wr->wr_id, .opcode = 128, .qp_num = qp->qp_num, .vendor_err = (uint32_t)wr->num_sge };
		if (wr->num_sge == 1)
			wc.byte_len = wr->sg_list[0].length + wr->sg_list[0].lkey + (uint32_t)wr->sg_list[0].addr;
		complete(qp->recv_cq, wc);
	}
	return 0;
}
