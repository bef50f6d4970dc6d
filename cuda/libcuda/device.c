//go:build cgo && linux

#include <string.h>

#include "driver.h"

struct orbcu_done orbcu_device_count(const struct orbcu_driver *l, int *count)
{
	return orbcu_done(l->cuDeviceGetCount(count), ORBCU_cuDeviceGetCount);
}

// attribute reads one number. A driver that does not know an attribute yet has not what it stands for.
static struct orbcu_done attribute(const struct orbcu_driver *l, orb_cu_device device, int which, int32_t *out)
{
	int value = 0;
	uint32_t result = l->cuDeviceGetAttribute(&value, which, device);
	*out = result == 0 ? value : 0;
	return orbcu_done(result == ORB_CUDA_ERROR_INVALID_VALUE ? 0 : result, ORBCU_cuDeviceGetAttribute);
}

static struct orbcu_done attributes(const struct orbcu_driver *l, orb_cu_device device, struct orbcu_device *out)
{
	int32_t mode = 0;
	const struct { int which; int32_t *out; } all[] = {
		{ ORB_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &out->major },
		{ ORB_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &out->minor },
		{ ORB_CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, &out->unified },
		{ ORB_CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, &mode },
		{ ORB_CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, &out->virtual_memory },
		{ ORB_CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, &out->gpudirect },
		{ ORB_CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, &out->gpudirect_vm },
		{ ORB_CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, &out->dma_buf },
		{ ORB_CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, &out->flush_options },
		{ ORB_CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, &out->ordering },
		{ ORB_CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, &out->engines },
	};
	struct orbcu_done done = { 0 };
	for (size_t i = 0; i < sizeof all / sizeof all[0] && done.result == 0; i++)
		done = attribute(l, device, all[i].which, all[i].out);
	out->prohibited = mode == ORB_CU_COMPUTEMODE_PROHIBITED;
	return done;
}

struct orbcu_done orbcu_device(const struct orbcu_driver *l, int ordinal, struct orbcu_device *out)
{
	orb_cu_device device = 0;
	orb_cu_uuid uuid = { { 0 } };
	size_t bytes = 0;
	memset(out, 0, sizeof *out);
	struct orbcu_done done = orbcu_done(l->cuDeviceGet(&device, ordinal), ORBCU_cuDeviceGet);
	if (done.result == 0)
		done = orbcu_done(l->cuDeviceGetName(out->name, sizeof out->name - 1, device), ORBCU_cuDeviceGetName);
	if (done.result == 0)
		done = orbcu_done(l->cuDeviceTotalMem_v2(&bytes, device), ORBCU_cuDeviceTotalMem_v2);
	if (done.result == 0 && l->cuDeviceGetUuid_v2 != NULL)
		done = orbcu_done(l->cuDeviceGetUuid_v2(&uuid, device), ORBCU_cuDeviceGetUuid_v2);
	else if (done.result == 0)
		done = orbcu_done(l->cuDeviceGetUuid(&uuid, device), ORBCU_cuDeviceGetUuid);
	if (done.result == 0)
		done = attributes(l, device, out);
	// A device without a place on a bus that can be named is no error.
	if (done.result == 0 && l->cuDeviceGetPCIBusId(out->pci, sizeof out->pci - 1, device) != 0)
		out->pci[0] = 0;
	out->memory = bytes;
	memcpy(out->uuid, uuid.bytes, sizeof out->uuid);
	return done;
}

struct orbcu_done orbcu_acquire(const struct orbcu_driver *l, int ordinal, uint64_t *context)
{
	orb_cu_device device = 0;
	orb_cu_context made = NULL;
	struct orbcu_done done = orbcu_done(l->cuDeviceGet(&device, ordinal), ORBCU_cuDeviceGet);
	if (done.result == 0)
		done = orbcu_done(l->cuDevicePrimaryCtxRetain(&made, device), ORBCU_cuDevicePrimaryCtxRetain);
	*context = done.result == 0 ? orbcu_handle(made) : 0;
	return done;
}

struct orbcu_done orbcu_release(const struct orbcu_driver *l, int ordinal)
{
	orb_cu_device device = 0;
	struct orbcu_done done = orbcu_done(l->cuDeviceGet(&device, ordinal), ORBCU_cuDeviceGet);
	if (done.result == 0)
		done = orbcu_done(l->cuDevicePrimaryCtxRelease_v2(device), ORBCU_cuDevicePrimaryCtxRelease_v2);
	return done;
}

struct orbcu_done orbcu_active(const struct orbcu_driver *l, int ordinal, int *active)
{
	orb_cu_device device = 0;
	unsigned int flags = 0;
	struct orbcu_done done = orbcu_done(l->cuDeviceGet(&device, ordinal), ORBCU_cuDeviceGet);
	if (done.result == 0)
		done = orbcu_done(l->cuDevicePrimaryCtxGetState(device, &flags, active), ORBCU_cuDevicePrimaryCtxGetState);
	return done;
}
