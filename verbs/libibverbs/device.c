//go:build cgo && linux

#define _GNU_SOURCE
#include <endian.h>
#include <fcntl.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"

// unblock makes reads of a descriptor return at once.
static int unblock(int descriptor)
{
	int flags = fcntl(descriptor, F_GETFL);
	if (flags < 0 || fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) < 0)
		return orb_errno();
	return 0;
}

static void copy(char *to, size_t size, const char *from)
{
	size_t length = strnlen(from, size - 1);
	memcpy(to, from, length);
	to[length] = 0;
}

int orb_devices(const struct orb_library *l, struct orb_device_record *out, int room, int *count)
{
	errno = 0;
	*count = 0;
	struct orb_device **list = l->get_device_list(NULL);
	if (list == NULL)
		return errno == ENOSYS ? 0 : orb_errno(); // ENOSYS: this kernel has no RDMA, hence no devices
	for (int i = 0; list[i] != NULL; i++, (*count)++) {
		if (i >= room)
			continue;
		out[i].guid = be64toh(l->get_device_guid(list[i]));
		copy(out[i].name, sizeof out[i].name, list[i]->name);
		copy(out[i].node, sizeof out[i].node, list[i]->dev_name);
		copy(out[i].sysfs, sizeof out[i].sysfs, list[i]->ibdev_path);
	}
	l->free_device_list(list);
	return 0;
}

int orb_open(const struct orb_library *l, const char *name, uint64_t *device)
{
	errno = 0;
	struct orb_device **list = l->get_device_list(NULL);
	if (list == NULL)
		return errno == ENOSYS ? ENODEV : orb_errno();
	int code = ENODEV;
	struct orb_context *context = NULL;
	for (int i = 0; list[i] != NULL; i++) {
		if (strncmp(list[i]->name, name, sizeof list[i]->name) != 0)
			continue;
		errno = 0;
		context = l->open_device(list[i]);
		code = context != NULL ? 0 : orb_errno();
		break;
	}
	l->free_device_list(list); // an opened device stays
	if (code == 0 && (code = unblock(context->async_fd)) != 0)
		l->close_device(context);
	*device = code == 0 ? orb_handle(context) : 0;
	return code;
}

const char *orb_device_name(uint64_t device)
{
	struct orb_context *context = orb_pointer(device);
	return context != NULL ? context->device->name : "0";
}

const char *orb_device_sysfs(uint64_t device)
{
	struct orb_context *context = orb_pointer(device);
	return context != NULL ? context->device->ibdev_path : "";
}

int orb_query_device(const struct orb_library *l, uint64_t device, struct orb_limits *out)
{
	if (device == 0)
		return EINVAL;
	struct orb_device_attr attr;
	memset(&attr, 0, sizeof attr);
	errno = 0;
	int code = orb_code(l->query_device(orb_pointer(device), &attr));
	if (code != 0)
		return code;
	*out = (struct orb_limits){
		.region_bytes = attr.max_mr_size, .pairs = attr.max_qp, .pair_work = attr.max_qp_wr, .sge = attr.max_sge,
		.queues = attr.max_cq, .queue_depth = attr.max_cqe, .regions = attr.max_mr, .windows = attr.max_mw,
		.domains = attr.max_pd, .ports = attr.phys_port_cnt,
		// What one pair may ask and what it may answer; both ends need both.
		.read_atomic = attr.max_qp_rd_atom < attr.max_qp_init_rd_atom ? attr.max_qp_rd_atom : attr.max_qp_init_rd_atom,
		.type_2b = (attr.device_cap_flags & ORB_DEVICE_MEM_WINDOW_TYPE_2B) != 0,
	};
	copy(out->firmware, sizeof out->firmware, attr.fw_ver);
	return 0;
}

// extended is the structure around a context, if it reaches as far forward as query_port.
static struct orb_verbs_context *extended(struct orb_context *context)
{
	if (context->abi_compat != (void *)UINTPTR_MAX)
		return NULL;
	struct orb_verbs_context *v = (void *)((char *)context - offsetof(struct orb_verbs_context, context));
	// sz counts the whole structure; ours begins with query_port, so it must be at least that large.
	return v->sz >= sizeof *v && v->query_port != NULL ? v : NULL;
}

static int query_port(const struct orb_library *l, struct orb_context *context, uint8_t port, struct orb_port_attr *attr)
{
	memset(attr, 0, sizeof *attr);
	errno = 0;
	struct orb_verbs_context *v = extended(context);
	if (v != NULL)
		return orb_code(v->query_port(context, port, attr, sizeof *attr));
	return orb_code(l->query_port(context, port, attr));
}

int orb_query_port(const struct orb_library *l, uint64_t device, uint8_t port, struct orb_port *out)
{
	if (device == 0)
		return EINVAL;
	struct orb_port_attr attr;
	int code = query_port(l, orb_pointer(device), port, &attr);
	if (code != 0)
		return code;
	*out = (struct orb_port){
		.state = attr.state, .gids = attr.gid_tbl_len, .lid = attr.lid, .max_message = attr.max_msg_sz,
		.ethernet = attr.link_layer == ORB_LINK_LAYER_ETHERNET, .width = attr.active_width, .speed = attr.active_speed,
		.mtu = attr.active_mtu >= ORB_MTU_256 && attr.active_mtu <= ORB_MTU_4096 ? 128 << attr.active_mtu : 0,
	};
	return 0;
}

static int nothing(const uint8_t gid[16])
{
	static const uint8_t zero[16];
	return memcmp(gid, zero, 16) == 0;
}

int orb_gids(const struct orb_library *l, uint64_t device, uint8_t port, int total, struct orb_gid *out, int room, int *count)
{
	*count = 0;
	if (device == 0 || total <= 0)
		return device == 0 ? EINVAL : 0;
	if (l->query_gid_table == NULL)
		return EOPNOTSUPP;
	struct orb_gid_entry *entries = calloc(total, sizeof *entries);
	if (entries == NULL)
		return ENOMEM;
	errno = 0;
	int64_t found = l->query_gid_table(orb_pointer(device), entries, total, 0, sizeof *entries);
	int code = found < 0 ? orb_code((int)found) : found > total ? EOVERFLOW : 0;
	for (int64_t i = 0; code == 0 && i < found; i++) {
		struct orb_gid_entry *e = &entries[i];
		if (e->port_num != port || nothing(e->raw) || *count >= room)
			continue;
		struct orb_gid *g = &out[(*count)++];
		memset(g, 0, sizeof *g);
		memcpy(g->gid, e->raw, 16);
		g->index = e->gid_index;
		g->kind = e->gid_type;
		char name[IF_NAMESIZE];
		if (e->ndev_ifindex != 0 && if_indextoname(e->ndev_ifindex, name) != NULL)
			copy(g->network, sizeof g->network, name);
	}
	free(entries);
	return code;
}

int orb_async_descriptor(uint64_t device)
{
	return device != 0 ? ((struct orb_context *)orb_pointer(device))->async_fd : -1;
}

struct orb_async orb_next_async(const struct orb_library *l, uint64_t device)
{
	struct orb_async a = { 0 };
	struct orb_async_event event;
	if (device == 0) {
		a.code = EINVAL;
		return a;
	}
	memset(&event, 0, sizeof event);
	errno = 0;
	if (l->get_async_event(orb_pointer(device), &event) != 0) {
		a.code = orb_errno();
		return a;
	}
	a.kind = event.event_type;
	if (a.kind == ORB_EVENT_CQ_ERR)
		a.queue = orb_handle(event.element.pointer);
	else if ((a.kind >= ORB_EVENT_QP_FATAL && a.kind <= ORB_EVENT_PATH_MIG_ERR) || a.kind == ORB_EVENT_QP_LAST_WQE_REACHED)
		a.pair = orb_handle(event.element.pointer);
	else if ((a.kind >= ORB_EVENT_PORT_ACTIVE && a.kind <= ORB_EVENT_SM_CHANGE) || a.kind == ORB_EVENT_CLIENT_REREGISTER ||
		 a.kind == ORB_EVENT_GID_CHANGE)
		a.port = event.element.port_num;
	// At once: a destroy waits until its object's events are acknowledged.
	l->ack_async_event(&event);
	return a;
}

int orb_create_channel(const struct orb_library *l, uint64_t device, uint64_t *channel)
{
	*channel = 0;
	if (device == 0)
		return EINVAL;
	errno = 0;
	struct orb_comp_channel *c = l->create_comp_channel(orb_pointer(device));
	if (c == NULL)
		return orb_errno();
	int code = unblock(c->fd);
	if (code != 0)
		l->destroy_comp_channel(c);
	else
		*channel = orb_handle(c);
	return code;
}

int orb_channel_descriptor(uint64_t channel)
{
	return channel != 0 ? ((struct orb_comp_channel *)orb_pointer(channel))->fd : -1;
}

struct orb_event orb_next_event(const struct orb_library *l, uint64_t channel)
{
	struct orb_event e = { 0 };
	struct orb_cq *cq = NULL;
	void *context;
	if (channel == 0) {
		e.code = EINVAL;
		return e;
	}
	errno = 0;
	if (l->get_cq_event(orb_pointer(channel), &cq, &context) != 0) {
		e.code = orb_errno();
		return e;
	}
	l->ack_cq_events(cq, 1);
	e.queue = orb_handle(cq);
	return e;
}
