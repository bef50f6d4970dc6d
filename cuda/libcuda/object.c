//go:build cgo && linux

#define _GNU_SOURCE
#include <fcntl.h>

#include "driver.h"

// A result is passed on also when putting the old context back failed: the object exists.

struct orbcu_done orbcu_alloc(const struct orbcu_driver *l, uint64_t context, uint64_t bytes, uint64_t *pointer)
{
	orb_cu_pointer made = 0;
	struct orbcu_done done = ORBCU_IN(l, context, cuMemAlloc_v2, &made, bytes);
	*pointer = made;
	return done;
}

struct orbcu_done orbcu_alloc_host(const struct orbcu_driver *l, uint64_t context, uint64_t bytes, uint64_t *address)
{
	void *made = NULL;
	struct orbcu_done done = ORBCU_IN(l, context, cuMemHostAlloc, &made, bytes, ORB_CU_MEMHOSTALLOC_PORTABLE);
	*address = orbcu_handle(made);
	return done;
}

struct orbcu_done orbcu_create_stream(const struct orbcu_driver *l, uint64_t context, uint64_t *stream)
{
	orb_cu_stream made = NULL;
	struct orbcu_done done = ORBCU_IN(l, context, cuStreamCreate, &made, ORB_CU_STREAM_NON_BLOCKING);
	*stream = orbcu_handle(made);
	return done;
}

struct orbcu_done orbcu_create_event(const struct orbcu_driver *l, uint64_t context, uint64_t *event)
{
	orb_cu_event made = NULL;
	struct orbcu_done done = ORBCU_IN(l, context, cuEventCreate, &made, ORB_CU_EVENT_DISABLE_TIMING);
	*event = orbcu_handle(made);
	return done;
}

struct orbcu_done orbcu_end(const struct orbcu_driver *l, int what, uint64_t context, uint64_t object)
{
	switch (what) {
	case ORBCU_END_MEMORY:
		return ORBCU_IN(l, context, cuMemFree_v2, object);
	case ORBCU_END_HOST:
		return ORBCU_IN(l, context, cuMemFreeHost, orbcu_object(object));
	case ORBCU_END_STREAM:
		return ORBCU_IN(l, context, cuStreamDestroy_v2, orbcu_object(object));
	default:
		return ORBCU_IN(l, context, cuEventDestroy_v2, orbcu_object(object));
	}
}

// extent asks for the allocation's extent in its own context, where the attributes do not say it.
static struct orbcu_done extent(const struct orbcu_driver *l, uint64_t address, struct orbcu_pointer *out)
{
	orb_cu_pointer base = 0;
	size_t bytes = 0;
	struct orbcu_done done = ORBCU_IN(l, out->context, cuMemGetAddressRange_v2, &base, &bytes, address);
	if (done.result == 0 || done.effect == ORBCU_DONE) {
		out->start = base;
		out->bytes = bytes;
	}
	return done;
}

struct orbcu_done orbcu_attributes(const struct orbcu_driver *l, uint64_t address, struct orbcu_pointer *out)
{
	// Each answer has eight bytes that are zero before, since some are booleans of unsaid width.
	uint64_t context = 0, type = 0, sync = 0, buffer = 0, managed = 0, start = 0, bytes = 0, direct = 0;
	int64_t ordinal = -1;
	orb_cu_pointer_attribute which[] = {
		ORB_CU_POINTER_ATTRIBUTE_CONTEXT, ORB_CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ORB_CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
		ORB_CU_POINTER_ATTRIBUTE_BUFFER_ID, ORB_CU_POINTER_ATTRIBUTE_IS_MANAGED, ORB_CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
		ORB_CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, ORB_CU_POINTER_ATTRIBUTE_RANGE_SIZE,
	};
	void *data[] = { &context, &type, &sync, &buffer, &managed, &ordinal, &start, &bytes };
	*out = (struct orbcu_pointer){ .ordinal = -1 };
	uint32_t result = l->cuPointerGetAttributes(sizeof which / sizeof which[0], which, data, address);
	// Of memory that it does not know the driver says success and type 0, or one of these.
	if (result == ORB_CUDA_ERROR_INVALID_VALUE || result == ORB_CUDA_ERROR_INVALID_CONTEXT)
		return (struct orbcu_done){ 0 };
	struct orbcu_done done = orbcu_done(result, ORBCU_cuPointerGetAttributes);
	if (result != 0 || (uint32_t)type == 0)
		return done;
	// This one is not in the list above: the driver's manual leaves it out of what may be asked together.
	if (l->cuPointerGetAttribute(&direct, ORB_CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, address) != 0)
		direct = 0;
	*out = (struct orbcu_pointer){
		.context = context, .start = start, .bytes = bytes, .buffer = buffer, .type = (uint32_t)type,
		.ordinal = (int32_t)ordinal < 0 ? -1 : (int32_t)ordinal,
		.managed = (uint32_t)managed != 0, .gpudirect = (uint32_t)direct != 0, .sync = (uint32_t)sync != 0,
	};
	if (bytes == 0 && context != 0)
		done = extent(l, address, out);
	return done;
}

struct orbcu_done orbcu_sync_memops(const struct orbcu_driver *l, uint64_t context, uint64_t pointer)
{
	unsigned int on = 1;
	return ORBCU_IN(l, context, cuPointerSetAttribute, &on, ORB_CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, pointer);
}

struct orbcu_done orbcu_flush(const struct orbcu_driver *l, uint64_t context, int all)
{
	return ORBCU_IN(l, context, cuFlushGPUDirectRDMAWrites, ORB_CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
		all ? ORB_CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES : ORB_CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
}

int orbcu_can_export(const struct orbcu_driver *l) { return l->cuMemGetHandleForAddressRange != NULL; }

struct orbcu_done orbcu_export(const struct orbcu_driver *l, uint64_t context, uint64_t pointer, uint64_t bytes, int *descriptor)
{
	*descriptor = -1;
	if (l->cuMemGetHandleForAddressRange == NULL)
		return orbcu_done(ORB_CUDA_ERROR_NOT_SUPPORTED, ORBCU_cuMemGetHandleForAddressRange);
	struct orbcu_done done = ORBCU_IN(l, context, cuMemGetHandleForAddressRange, descriptor, pointer, bytes,
		ORB_CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
	if (*descriptor >= 0)
		fcntl(*descriptor, F_SETFD, FD_CLOEXEC); // no manual says that the driver does
	return done;
}
