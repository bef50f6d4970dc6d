// The driver's functions, found once by name, and the frame around each method: current context in, act, out.
#ifndef ORBITTE_CUDA_DRIVER_H
#define ORBITTE_CUDA_DRIVER_H

#include "abi.h"
#include "shim.h"

// Every function, needed or perhaps absent, with the first version of CUDA that has it in this form.
#define ORBCU_CALLS(NEED, MAY) \
	NEED(cuDriverGetVersion) NEED(cuGetErrorName) NEED(cuInit) NEED(cuDeviceGetCount) NEED(cuDeviceGet) NEED(cuDeviceGetName) \
	NEED(cuDeviceGetUuid) MAY(cuDeviceGetUuid_v2) NEED(cuDeviceTotalMem_v2) NEED(cuDeviceGetAttribute) NEED(cuDeviceGetPCIBusId) \
	NEED(cuDevicePrimaryCtxRetain) NEED(cuDevicePrimaryCtxRelease_v2) NEED(cuDevicePrimaryCtxGetState) \
	NEED(cuCtxGetCurrent) NEED(cuCtxPushCurrent_v2) NEED(cuCtxPopCurrent_v2) \
	NEED(cuMemAlloc_v2) NEED(cuMemFree_v2) NEED(cuMemHostAlloc) NEED(cuMemFreeHost) \
	NEED(cuPointerGetAttribute) NEED(cuPointerGetAttributes) NEED(cuPointerSetAttribute) NEED(cuMemGetAddressRange_v2) \
	NEED(cuStreamCreate) NEED(cuStreamDestroy_v2) NEED(cuStreamSynchronize) NEED(cuEventCreate) NEED(cuEventDestroy_v2) \
	NEED(cuEventRecord) NEED(cuEventQuery) NEED(cuMemcpyAsync) NEED(cuMemsetD8Async) NEED(cuLaunchHostFunc) \
	NEED(cuFlushGPUDirectRDMAWrites) MAY(cuMemGetHandleForAddressRange)

#define ORBCU_NAME(function) ORBCU_##function,
enum { ORBCU_CALLS(ORBCU_NAME, ORBCU_NAME) ORBCU_CALLS_COUNT };
#undef ORBCU_NAME

struct orbcu_driver {
	orb_cu_result (*cuDriverGetVersion)(int *version);
	orb_cu_result (*cuGetErrorName)(orb_cu_result error, const char **name);
	orb_cu_result (*cuInit)(unsigned int flags);
	orb_cu_result (*cuDeviceGetCount)(int *count);
	orb_cu_result (*cuDeviceGet)(orb_cu_device *device, int ordinal);
	orb_cu_result (*cuDeviceGetName)(char *name, int length, orb_cu_device device);
	orb_cu_result (*cuDeviceGetUuid)(orb_cu_uuid *uuid, orb_cu_device device);
	orb_cu_result (*cuDeviceGetUuid_v2)(orb_cu_uuid *uuid, orb_cu_device device); // 11.4: that of a slice of a GPU
	orb_cu_result (*cuDeviceTotalMem_v2)(size_t *bytes, orb_cu_device device);
	orb_cu_result (*cuDeviceGetAttribute)(int *value, orb_cu_attribute attribute, orb_cu_device device);
	orb_cu_result (*cuDeviceGetPCIBusId)(char *id, int length, orb_cu_device device);
	orb_cu_result (*cuDevicePrimaryCtxRetain)(orb_cu_context *context, orb_cu_device device);
	orb_cu_result (*cuDevicePrimaryCtxRelease_v2)(orb_cu_device device);
	orb_cu_result (*cuDevicePrimaryCtxGetState)(orb_cu_device device, unsigned int *flags, int *active);
	orb_cu_result (*cuCtxGetCurrent)(orb_cu_context *context);
	orb_cu_result (*cuCtxPushCurrent_v2)(orb_cu_context context);
	orb_cu_result (*cuCtxPopCurrent_v2)(orb_cu_context *context);
	orb_cu_result (*cuMemAlloc_v2)(orb_cu_pointer *pointer, size_t bytes);
	orb_cu_result (*cuMemFree_v2)(orb_cu_pointer pointer);
	orb_cu_result (*cuMemHostAlloc)(void **address, size_t bytes, unsigned int flags);
	orb_cu_result (*cuMemFreeHost)(void *address);
	orb_cu_result (*cuPointerGetAttribute)(void *data, orb_cu_pointer_attribute attribute, orb_cu_pointer pointer);
	orb_cu_result (*cuPointerGetAttributes)(unsigned int count, orb_cu_pointer_attribute *attributes, void **data, orb_cu_pointer pointer);
	orb_cu_result (*cuPointerSetAttribute)(const void *value, orb_cu_pointer_attribute attribute, orb_cu_pointer pointer);
	orb_cu_result (*cuMemGetAddressRange_v2)(orb_cu_pointer *base, size_t *bytes, orb_cu_pointer pointer);
	orb_cu_result (*cuStreamCreate)(orb_cu_stream *stream, unsigned int flags);
	orb_cu_result (*cuStreamDestroy_v2)(orb_cu_stream stream);
	orb_cu_result (*cuStreamSynchronize)(orb_cu_stream stream);
	orb_cu_result (*cuEventCreate)(orb_cu_event *event, unsigned int flags);
	orb_cu_result (*cuEventDestroy_v2)(orb_cu_event event);
	orb_cu_result (*cuEventRecord)(orb_cu_event event, orb_cu_stream stream);
	orb_cu_result (*cuEventQuery)(orb_cu_event event);
	orb_cu_result (*cuMemcpyAsync)(orb_cu_pointer to, orb_cu_pointer from, size_t bytes, orb_cu_stream stream);
	orb_cu_result (*cuMemsetD8Async)(orb_cu_pointer to, unsigned char value, size_t bytes, orb_cu_stream stream);
	orb_cu_result (*cuLaunchHostFunc)(orb_cu_stream stream, orb_cu_host_function function, void *argument);
	orb_cu_result (*cuFlushGPUDirectRDMAWrites)(orb_cu_flush_target target, orb_cu_flush_scope scope);
	orb_cu_result (*cuMemGetHandleForAddressRange)(void *handle, orb_cu_pointer pointer, size_t bytes, orb_cu_range_handle type, unsigned long long flags); // 11.7
	struct orbcu_driver *next;
	void *library; // of dlopen
	char path[512];
	int version;
};

// orbcu_object is the object behind a handle.
static inline void *orbcu_object(uint64_t handle) { return (void *)(uintptr_t)handle; }
static inline uint64_t orbcu_handle(const void *object) { return (uint64_t)(uintptr_t)object; }

// orbcu_effect says what a refused call may have done. These results are about the call itself; any other may be the
// late news of earlier work, and then nobody says what became of this call.
static inline uint16_t orbcu_effect(uint32_t result)
{
	switch (result) {
	case ORB_CUDA_SUCCESS:
	case ORB_CUDA_ERROR_INVALID_VALUE:
	case ORB_CUDA_ERROR_OUT_OF_MEMORY:
	case ORB_CUDA_ERROR_NOT_INITIALIZED:
	case ORB_CUDA_ERROR_DEINITIALIZED:
	case ORB_CUDA_ERROR_NO_DEVICE:
	case ORB_CUDA_ERROR_INVALID_DEVICE:
	case ORB_CUDA_ERROR_INVALID_CONTEXT:
	case ORB_CUDA_ERROR_INVALID_HANDLE:
	case ORB_CUDA_ERROR_NOT_FOUND:
	case ORB_CUDA_ERROR_NOT_PERMITTED:
	case ORB_CUDA_ERROR_NOT_SUPPORTED:
		return ORBCU_NONE;
	}
	return ORBCU_MAYBE;
}

static inline struct orbcu_done orbcu_done(uint32_t result, int call)
{
	return (struct orbcu_done){ .result = result, .call = (uint16_t)call, .effect = orbcu_effect(result) };
}

// A frame is one method on one thread.
struct orbcu_frame {
	const struct orbcu_driver *l;
	orb_cu_context context;
	int pushed; // whether the method made it current, and so has to put the old one back
};

// orbcu_enter makes a context current, unless it is.
static inline struct orbcu_done orbcu_enter(struct orbcu_frame *f, const struct orbcu_driver *l, uint64_t context)
{
	orb_cu_context now = NULL;
	*f = (struct orbcu_frame){ .l = l, .context = orbcu_object(context) };
	struct orbcu_done done = orbcu_done(l->cuCtxGetCurrent(&now), ORBCU_cuCtxGetCurrent);
	if (done.result == 0 && context == 0)
		done = orbcu_done(ORB_CUDA_ERROR_INVALID_CONTEXT, ORBCU_cuCtxPushCurrent_v2);
	else if (done.result == 0 && now != f->context) {
		done = orbcu_done(l->cuCtxPushCurrent_v2(f->context), ORBCU_cuCtxPushCurrent_v2);
		f->pushed = done.result == 0;
	}
	done.effect = ORBCU_NONE;
	return done;
}

// orbcu_leave puts the old context back. What failed first is what is told; "not ready" is no failure.
static inline struct orbcu_done orbcu_leave(struct orbcu_frame *f, struct orbcu_done done)
{
	orb_cu_context now = NULL;
	if (!f->pushed)
		return done;
	uint32_t result = f->l->cuCtxPopCurrent_v2(&now);
	if (result == 0 && now != f->context)
		result = ORB_CUDA_ERROR_INVALID_CONTEXT;
	if (result != 0 && (done.result == 0 || done.result == ORB_CUDA_ERROR_NOT_READY))
		done = (struct orbcu_done){ .result = result, .call = ORBCU_cuCtxPopCurrent_v2, .effect = ORBCU_DONE };
	return done;
}

// ORBCU_IN is one driver call in a context.
#define ORBCU_IN(l, context, function, ...) ({ \
	struct orbcu_frame frame_; \
	struct orbcu_done done_ = orbcu_enter(&frame_, l, context); \
	if (done_.result == 0) \
		done_ = orbcu_leave(&frame_, orbcu_done((l)->function(__VA_ARGS__), ORBCU_##function)); \
	done_; })

#endif
