// The library's functions, found once by name and version.
#ifndef ORBITTE_LIBRARY_H
#define ORBITTE_LIBRARY_H

#include <errno.h>

#include "abi.h"
#include "shim.h"

struct orb_library {
	struct orb_device **(*get_device_list)(int *count);
	void (*free_device_list)(struct orb_device **list);
	uint64_t (*get_device_guid)(struct orb_device *device); // big endian
	struct orb_context *(*open_device)(struct orb_device *device);
	int (*close_device)(struct orb_context *context);
	int (*query_device)(struct orb_context *context, struct orb_device_attr *attr);
	int (*query_port)(struct orb_context *context, uint8_t port, struct orb_port_attr *attr); // up to link_layer
	int (*get_async_event)(struct orb_context *context, struct orb_async_event *event);
	void (*ack_async_event)(struct orb_async_event *event);
	struct orb_pd *(*alloc_pd)(struct orb_context *context);
	int (*dealloc_pd)(struct orb_pd *pd);
	struct orb_comp_channel *(*create_comp_channel)(struct orb_context *context);
	int (*destroy_comp_channel)(struct orb_comp_channel *channel);
	int (*get_cq_event)(struct orb_comp_channel *channel, struct orb_cq **cq, void **cq_context);
	void (*ack_cq_events)(struct orb_cq *cq, unsigned int count);
	struct orb_cq *(*create_cq)(struct orb_context *context, int cqe, void *cq_context, struct orb_comp_channel *channel, int vector);
	int (*destroy_cq)(struct orb_cq *cq);
	struct orb_qp *(*create_qp)(struct orb_pd *pd, struct orb_qp_init_attr *attr);
	int (*modify_qp)(struct orb_qp *qp, struct orb_qp_attr *attr, int mask);
	int (*query_qp)(struct orb_qp *qp, struct orb_qp_attr *attr, int mask, struct orb_qp_init_attr *init);
	int (*destroy_qp)(struct orb_qp *qp);
	struct orb_mr *(*reg_mr)(struct orb_pd *pd, void *address, size_t length, int access);
	int (*dereg_mr)(struct orb_mr *mr);
	// These three may be absent.
	struct orb_mr *(*reg_mr_iova2)(struct orb_pd *pd, void *address, size_t length, uint64_t iova, unsigned int access);
	struct orb_mr *(*reg_dmabuf_mr)(struct orb_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access);
	int64_t (*query_gid_table)(struct orb_context *context, struct orb_gid_entry *entries, size_t max, uint32_t flags, size_t entry_size);
	char path[512];
};

// orb_pointer is the object behind a handle.
static inline void *orb_pointer(uint64_t handle) { return (void *)(uintptr_t)handle; }
static inline uint64_t orb_handle(const void *pointer) { return (uint64_t)(uintptr_t)pointer; }

// orb_errno is why a function returned NULL. A library that left errno alone still failed.
static inline int orb_errno(void) { return errno != 0 ? errno : EIO; }

// orb_code makes one thing of the ways in which functions say that they failed: an errno, -1 with errno, or (as some
// providers do) a negative errno.
static inline int orb_code(int result)
{
	if (result == 0)
		return 0;
	if (result == -1)
		return orb_errno();
	return result > 0 ? result : -result;
}

#endif
