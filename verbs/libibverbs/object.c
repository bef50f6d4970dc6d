//go:build cgo && linux

#include <string.h>

#include "library.h"

int orb_end(const struct orb_library *l, int what, uint64_t handle)
{
	void *p = orb_pointer(handle);
	if (p == NULL)
		return EINVAL;
	errno = 0;
	switch (what) {
	case ORB_END_DEVICE:
		return orb_code(l->close_device(p));
	case ORB_END_DOMAIN:
		return orb_code(l->dealloc_pd(p));
	case ORB_END_CHANNEL:
		return orb_code(l->destroy_comp_channel(p));
	case ORB_END_QUEUE:
		return orb_code(l->destroy_cq(p));
	case ORB_END_PAIR:
		return orb_code(l->destroy_qp(p));
	case ORB_END_REGION:
		return orb_code(l->dereg_mr(p));
	case ORB_END_WINDOW: {
		struct orb_mw *mw = p;
		return mw->context->ops.dealloc_mw != NULL ? orb_code(mw->context->ops.dealloc_mw(mw)) : EOPNOTSUPP;
	}
	}
	return EINVAL;
}

int orb_alloc_domain(const struct orb_library *l, uint64_t device, uint64_t *domain)
{
	*domain = 0;
	if (device == 0)
		return EINVAL;
	errno = 0;
	struct orb_pd *pd = l->alloc_pd(orb_pointer(device));
	*domain = orb_handle(pd);
	return pd != NULL ? 0 : orb_errno();
}

int orb_create_queue(const struct orb_library *l, uint64_t device, int entries, uint64_t channel, uint32_t vector, uint64_t *queue)
{
	*queue = 0;
	struct orb_context *context = orb_pointer(device);
	if (context == NULL)
		return EINVAL;
	int vectors = context->num_comp_vectors;
	errno = 0;
	struct orb_cq *cq = l->create_cq(context, entries, NULL, orb_pointer(channel), vectors > 0 ? (int)(vector % (uint32_t)vectors) : 0);
	*queue = orb_handle(cq);
	return cq != NULL ? 0 : orb_errno();
}

int orb_create_pair(const struct orb_library *l, uint64_t domain, const struct orb_pair_options *o, uint64_t *pair, uint32_t *number)
{
	*pair = 0;
	if (domain == 0 || o->sends == 0 || o->receives == 0)
		return EINVAL;
	struct orb_qp_init_attr attr;
	memset(&attr, 0, sizeof attr);
	attr.send_cq = orb_pointer(o->sends);
	attr.recv_cq = orb_pointer(o->receives);
	attr.cap.max_send_wr = o->send_depth;
	attr.cap.max_recv_wr = o->receive_depth;
	attr.cap.max_send_sge = 1;
	attr.cap.max_recv_sge = 1;
	attr.cap.max_inline_data = o->inlined;
	attr.qp_type = ORB_QPT_RC;
	errno = 0;
	struct orb_qp *qp = l->create_qp(orb_pointer(domain), &attr);
	if (qp == NULL)
		return orb_errno();
	*pair = orb_handle(qp);
	*number = qp->qp_num;
	return 0;
}

static int mtu(uint32_t bytes)
{
	switch (bytes) {
	case 256:
		return ORB_MTU_256;
	case 512:
		return ORB_MTU_512;
	case 1024:
		return ORB_MTU_1024;
	case 2048:
		return ORB_MTU_2048;
	case 4096:
		return ORB_MTU_4096;
	}
	return 0;
}

static int to_receive(struct orb_qp_attr *attr, const struct orb_transition *t)
{
	static const uint8_t zero[16];
	attr->path_mtu = mtu(t->mtu);
	if (attr->path_mtu == 0 || t->source_gid > UINT8_MAX)
		return 0;
	attr->dest_qp_num = t->remote;
	attr->rq_psn = t->receive_start;
	attr->max_dest_rd_atomic = t->reads_answered;
	attr->min_rnr_timer = t->receiver_not_ready;
	attr->ah_attr.dlid = t->remote_lid;
	attr->ah_attr.sl = t->service_level;
	attr->ah_attr.port_num = t->port;
	if (memcmp(t->remote_gid, zero, sizeof zero) != 0) { // always on Ethernet; InfiniBand needs none in one subnet
		attr->ah_attr.is_global = 1;
		memcpy(attr->ah_attr.grh.dgid, t->remote_gid, sizeof zero);
		attr->ah_attr.grh.sgid_index = (uint8_t)t->source_gid;
		attr->ah_attr.grh.hop_limit = t->hop_limit;
		attr->ah_attr.grh.traffic_class = t->traffic_class;
	}
	return ORB_QP_AV | ORB_QP_PATH_MTU | ORB_QP_DEST_QPN | ORB_QP_RQ_PSN | ORB_QP_MAX_DEST_RD_ATOMIC | ORB_QP_MIN_RNR_TIMER;
}

int orb_modify_pair(const struct orb_library *l, uint64_t pair, const struct orb_transition *t)
{
	if (pair == 0)
		return EINVAL;
	struct orb_qp_attr attr;
	memset(&attr, 0, sizeof attr);
	attr.qp_state = (int)t->to;
	int mask = ORB_QP_STATE;
	switch (t->to) {
	case ORB_QPS_INIT:
		attr.port_num = t->port;
		attr.qp_access_flags = t->access;
		mask |= ORB_QP_PKEY_INDEX | ORB_QP_PORT | ORB_QP_ACCESS_FLAGS;
		break;
	case ORB_QPS_RTR: {
		int more = to_receive(&attr, t);
		if (more == 0)
			return EINVAL;
		mask |= more;
		break;
	}
	case ORB_QPS_RTS:
		attr.sq_psn = t->send_start;
		attr.timeout = t->timeout;
		attr.retry_cnt = t->retries;
		attr.rnr_retry = t->not_ready_retries;
		attr.max_rd_atomic = t->reads_asked;
		mask |= ORB_QP_SQ_PSN | ORB_QP_TIMEOUT | ORB_QP_RETRY_CNT | ORB_QP_RNR_RETRY | ORB_QP_MAX_QP_RD_ATOMIC;
		break;
	}
	errno = 0;
	return orb_code(l->modify_qp(orb_pointer(pair), &attr, mask));
}

int orb_query_pair(const struct orb_library *l, uint64_t pair, uint32_t *state)
{
	if (pair == 0)
		return EINVAL;
	struct orb_qp_attr attr;
	struct orb_qp_init_attr init;
	memset(&attr, 0, sizeof attr);
	errno = 0;
	int code = orb_code(l->query_qp(orb_pointer(pair), &attr, ORB_QP_STATE, &init));
	*state = (uint32_t)attr.qp_state;
	return code;
}

static int registered(struct orb_mr *mr, struct orb_region *out)
{
	if (mr == NULL)
		return orb_errno();
	*out = (struct orb_region){ .handle = orb_handle(mr), .local = mr->lkey, .remote = mr->rkey };
	return 0;
}

int orb_register(const struct orb_library *l, uint64_t domain, uint64_t address, uint64_t length, uint32_t access, struct orb_region *out)
{
	if (domain == 0)
		return EINVAL;
	errno = 0;
	// The newer form drops optional flags that the kernel does not know; for an older library they are dropped here.
	if ((access & ORB_ACCESS_OPTIONAL_RANGE) != 0 && l->reg_mr_iova2 != NULL)
		return registered(l->reg_mr_iova2(orb_pointer(domain), orb_pointer(address), length, address, access), out);
	return registered(l->reg_mr(orb_pointer(domain), orb_pointer(address), length, (int)(access & ~(uint32_t)ORB_ACCESS_OPTIONAL_RANGE)), out);
}

int orb_register_descriptor(const struct orb_library *l, uint64_t domain, uint64_t offset, uint64_t length, uint64_t address,
	int descriptor, uint32_t access, struct orb_region *out)
{
	if (domain == 0)
		return EINVAL;
	if (l->reg_dmabuf_mr == NULL)
		return EOPNOTSUPP;
	errno = 0;
	return registered(l->reg_dmabuf_mr(orb_pointer(domain), offset, length, address, descriptor, (int)access), out);
}

int orb_alloc_window(uint64_t domain, uint64_t *window, uint32_t *key)
{
	*window = 0;
	struct orb_pd *pd = orb_pointer(domain);
	if (pd == NULL)
		return EINVAL;
	if (pd->context->ops.alloc_mw == NULL)
		return EOPNOTSUPP;
	errno = 0;
	struct orb_mw *mw = pd->context->ops.alloc_mw(pd, ORB_MW_TYPE_2);
	if (mw == NULL)
		return orb_errno();
	*window = orb_handle(mw);
	*key = mw->rkey;
	return 0;
}
