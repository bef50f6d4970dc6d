// What this package reads and writes of libibverbs' binary interface, declared here so that building needs no headers.
// struct orb_x is the library's struct ibv_x and ORB_X its IBV_X; a comment behind a field is its path there when that
// is another. Fields called unused are only room. test/abi reads this file and compares every size, offset, width
// and value with the installed headers, so keep one declaration on a line. All of it is for 64-bit Linux.
#ifndef ORBITTE_ABI_H
#define ORBITTE_ABI_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct orb_context;
struct orb_pd;
struct orb_cq;
struct orb_qp;
struct orb_mw;

enum {
	ORB_QPT_RC = 2,
	ORB_MW_TYPE_2 = 2,
	ORB_ACCESS_OPTIONAL_RANGE = 0x3ff00000,
	ORB_DEVICE_MEM_WINDOW_TYPE_2B = 1 << 24,
	ORB_LINK_LAYER_ETHERNET = 2,

	ORB_QP_STATE = 1 << 0,
	ORB_QP_ACCESS_FLAGS = 1 << 3,
	ORB_QP_PKEY_INDEX = 1 << 4,
	ORB_QP_PORT = 1 << 5,
	ORB_QP_AV = 1 << 7,
	ORB_QP_PATH_MTU = 1 << 8,
	ORB_QP_TIMEOUT = 1 << 9,
	ORB_QP_RETRY_CNT = 1 << 10,
	ORB_QP_RNR_RETRY = 1 << 11,
	ORB_QP_RQ_PSN = 1 << 12,
	ORB_QP_MAX_QP_RD_ATOMIC = 1 << 13,
	ORB_QP_MIN_RNR_TIMER = 1 << 15,
	ORB_QP_SQ_PSN = 1 << 16,
	ORB_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
	ORB_QP_DEST_QPN = 1 << 20,

	ORB_QPS_INIT = 1,
	ORB_QPS_RTR = 2,
	ORB_QPS_RTS = 3,

	ORB_MTU_256 = 1,
	ORB_MTU_512 = 2,
	ORB_MTU_1024 = 3,
	ORB_MTU_2048 = 4,
	ORB_MTU_4096 = 5,

	ORB_WR_RDMA_WRITE = 0,
	ORB_WR_SEND = 2,
	ORB_WR_RDMA_READ = 4,
	ORB_WR_LOCAL_INV = 7,
	ORB_WR_BIND_MW = 8,
	ORB_WR_SEND_WITH_INV = 9,

	ORB_EVENT_CQ_ERR = 0,
	ORB_EVENT_QP_FATAL = 1,
	ORB_EVENT_PATH_MIG_ERR = 7,
	ORB_EVENT_PORT_ACTIVE = 9,
	ORB_EVENT_SM_CHANGE = 13,
	ORB_EVENT_QP_LAST_WQE_REACHED = 16,
	ORB_EVENT_CLIENT_REREGISTER = 17,
	ORB_EVENT_GID_CHANGE = 18,
};

struct orb_device {
	void *unused_ops[2];
	int node_type;
	int transport_type;
	char name[64];
	char dev_name[64];
	char dev_path[256];
	char ibdev_path[256];
};

struct orb_device_attr {
	char fw_ver[64];
	uint64_t node_guid;
	uint64_t sys_image_guid;
	uint64_t max_mr_size;
	uint64_t page_size_cap;
	uint32_t vendor_id;
	uint32_t vendor_part_id;
	uint32_t hw_ver;
	int max_qp;
	int max_qp_wr;
	unsigned int device_cap_flags;
	int max_sge;
	int max_sge_rd;
	int max_cq;
	int max_cqe;
	int max_mr;
	int max_pd;
	int max_qp_rd_atom;
	int max_ee_rd_atom;
	int max_res_rd_atom;
	int max_qp_init_rd_atom;
	int unused_atomic[4];
	int max_mw;
	int unused_groups[11];
	uint16_t max_pkeys;
	uint8_t local_ca_ack_delay;
	uint8_t phys_port_cnt;
};

struct orb_port_attr {
	int state;
	int max_mtu;
	int active_mtu;
	int gid_tbl_len;
	uint32_t port_cap_flags;
	uint32_t max_msg_sz;
	uint32_t bad_pkey_cntr;
	uint32_t qkey_viol_cntr;
	uint16_t pkey_tbl_len;
	uint16_t lid;
	uint16_t sm_lid;
	uint8_t lmc;
	uint8_t max_vl_num;
	uint8_t sm_sl;
	uint8_t subnet_timeout;
	uint8_t init_type_reply;
	uint8_t active_width;
	uint8_t active_speed;
	uint8_t phys_state;
	uint8_t link_layer;
	uint8_t flags;
	uint16_t port_cap_flags2;
};

struct orb_gid_entry {
	_Alignas(8) uint8_t raw[16]; // gid.raw
	uint32_t gid_index;
	uint32_t port_num;
	uint32_t gid_type;
	uint32_t ndev_ifindex;
};

struct orb_async_event {
	union { void *pointer; int port_num; } element;
	int event_type;
};

struct orb_wc {
	uint64_t wr_id;
	uint32_t status;
	uint32_t opcode;
	uint32_t vendor_err;
	uint32_t byte_len;
	uint32_t invalidated_rkey;
	uint32_t qp_num;
	uint32_t src_qp;
	unsigned int wc_flags;
	uint16_t pkey_index;
	uint16_t slid;
	uint8_t sl;
	uint8_t dlid_path_bits;
};

struct orb_sge {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

struct orb_send_wr {
	uint64_t wr_id;
	struct orb_send_wr *next;
	struct orb_sge *sg_list;
	int num_sge;
	int opcode;
	unsigned int send_flags;
	uint32_t invalidate_rkey;
	uint64_t remote_addr; // wr.rdma.remote_addr
	uint32_t rkey; // wr.rdma.rkey
	uint32_t unused_atomic[5];
	uint32_t unused_qp_type[2];
	struct orb_mw *mw; // bind_mw.mw
	uint32_t bind_rkey; // bind_mw.rkey
	struct orb_mr *mr; // bind_mw.bind_info.mr
	uint64_t addr; // bind_mw.bind_info.addr
	uint64_t length; // bind_mw.bind_info.length
	unsigned int mw_access_flags; // bind_mw.bind_info.mw_access_flags
};

struct orb_recv_wr {
	uint64_t wr_id;
	struct orb_recv_wr *next;
	struct orb_sge *sg_list;
	int num_sge;
};

struct orb_context_ops {
	void *unused_first[7];
	struct orb_mw *(*alloc_mw)(struct orb_pd *pd, int type);
	void *unused_bind_mw;
	int (*dealloc_mw)(struct orb_mw *mw);
	void *unused_create_cq;
	int (*poll_cq)(struct orb_cq *cq, int num_entries, struct orb_wc *wc);
	int (*req_notify_cq)(struct orb_cq *cq, int solicited_only);
	void *unused_middle[12];
	int (*post_send)(struct orb_qp *qp, struct orb_send_wr *wr, struct orb_send_wr **bad_wr);
	int (*post_recv)(struct orb_qp *qp, struct orb_recv_wr *wr, struct orb_recv_wr **bad_wr);
	void *unused_last[5];
};

struct orb_context {
	struct orb_device *device;
	struct orb_context_ops ops;
	int cmd_fd;
	int async_fd;
	int num_comp_vectors;
	pthread_mutex_t mutex;
	void *abi_compat;
};

// struct verbs_context stands around a context whose abi_compat is all ones. It grows at its front, so its fields are
// found from its end: sz says how much of it there is.
struct orb_verbs_context {
	int (*query_port)(struct orb_context *context, uint8_t port_num, struct orb_port_attr *attr, size_t attr_len);
	void *unused_calls[37];
	uint64_t unused_placeholder;
	size_t sz;
	struct orb_context context;
};

struct orb_pd {
	struct orb_context *context;
	uint32_t handle;
};

struct orb_comp_channel {
	struct orb_context *context;
	int fd;
	int refcnt;
};

struct orb_cq {
	struct orb_context *context;
	struct orb_comp_channel *channel;
	void *cq_context;
	uint32_t handle;
	int cqe;
};

struct orb_qp {
	struct orb_context *context;
	void *qp_context;
	struct orb_pd *pd;
	struct orb_cq *send_cq;
	struct orb_cq *recv_cq;
	void *srq;
	uint32_t handle;
	uint32_t qp_num;
	int state;
	int qp_type;
};

struct orb_mr {
	struct orb_context *context;
	struct orb_pd *pd;
	void *addr;
	size_t length;
	uint32_t handle;
	uint32_t lkey;
	uint32_t rkey;
};

struct orb_mw {
	struct orb_context *context;
	struct orb_pd *pd;
	uint32_t rkey;
	uint32_t handle;
	int type;
};

struct orb_qp_cap {
	uint32_t max_send_wr;
	uint32_t max_recv_wr;
	uint32_t max_send_sge;
	uint32_t max_recv_sge;
	uint32_t max_inline_data;
};

struct orb_qp_init_attr {
	void *qp_context;
	struct orb_cq *send_cq;
	struct orb_cq *recv_cq;
	void *srq;
	struct orb_qp_cap cap;
	int qp_type;
	int sq_sig_all;
};

struct orb_global_route {
	_Alignas(8) uint8_t dgid[16]; // dgid.raw
	uint32_t flow_label;
	uint8_t sgid_index;
	uint8_t hop_limit;
	uint8_t traffic_class;
};

struct orb_ah_attr {
	struct orb_global_route grh;
	uint16_t dlid;
	uint8_t sl;
	uint8_t src_path_bits;
	uint8_t static_rate;
	uint8_t is_global;
	uint8_t port_num;
};

struct orb_qp_attr {
	int qp_state;
	int cur_qp_state;
	int path_mtu;
	int path_mig_state;
	uint32_t qkey;
	uint32_t rq_psn;
	uint32_t sq_psn;
	uint32_t dest_qp_num;
	unsigned int qp_access_flags;
	struct orb_qp_cap cap;
	struct orb_ah_attr ah_attr;
	struct orb_ah_attr alt_ah_attr;
	uint16_t pkey_index;
	uint16_t alt_pkey_index;
	uint8_t en_sqd_async_notify;
	uint8_t sq_draining;
	uint8_t max_rd_atomic;
	uint8_t max_dest_rd_atomic;
	uint8_t min_rnr_timer;
	uint8_t port_num;
	uint8_t timeout;
	uint8_t retry_cnt;
	uint8_t rnr_retry;
	uint8_t alt_port_num;
	uint8_t alt_timeout;
	uint32_t rate_limit;
};

#endif
