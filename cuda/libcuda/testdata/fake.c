// A stand-in for libcuda.so.1 that the tests build and load. Streams run in order, each on a thread of its own, with the
// delays that the control page asks for. Device memory is a reservation that nobody may touch; its bytes are elsewhere.
// Each call that needs a current context looks for one on the calling thread, and a call without it is a violation, as is
// any call from a host callback. What it refuses, and with which result, follows the driver API's documentation.
//
// Read at each use: FAKE_CUDA_VERSION=12040, FAKE_CUDA_INIT=R (cuInit's result), FAKE_CUDA_DEVICES=2,
// FAKE_CUDA_BLOCK=F:FD (function F reads from descriptor FD first), FAKE_CUDA_OLD=1 (attributes of CUDA 11.7 and newer
// are unknown).
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../driver.h"
#include "fake.h"

enum { DEVICES = 16, STACK = 16 };
static const uint64_t device_bytes = UINT64_C(1) << 30;

struct orb_cu_ctx_st {
	uint32_t ordinal, users;
};

struct block {
	struct block *next;
	uint64_t start, bytes; // as asked for
	uint8_t *real;         // device memory: where its bytes are
	size_t mapped;
	int file;
	orb_cu_context context;
	uint32_t type, managed, unextended, sync;
	uint64_t id;
};

struct orb_cu_event_st {
	struct orb_cu_event_st *next;
	orb_cu_context context;
	uint64_t recorded, complete;
	int dead;
};

enum { COPY, FILL, RECORD, CALL };

struct step {
	struct step *next;
	int what;
	uint64_t to, from, bytes, count;
	uint8_t value;
	orb_cu_event event;
	orb_cu_host_function function;
	void *argument;
};

struct orb_cu_stream_st {
	struct orb_cu_stream_st *next;
	orb_cu_context context;
	struct step *first, **last;
	int busy, dead;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static struct orb_cu_ctx_st contexts[DEVICES];
static struct block *blocks;
static struct orb_cu_stream_st *streams;
static struct orb_cu_event_st *events;
static int initialised;
static uint64_t ids;

static __thread struct {
	orb_cu_context stack[STACK];
	int depth, ours; // ours of them were pushed
	int callback;
	uint32_t after;
} thread;

static struct fake_control nobody;
static struct fake_control *page = &nobody;

static void map_page(void)
{
	const char *path = getenv("FAKE_CUDA_CONTROL");
	int file = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;
	if (file < 0)
		return;
	void *at = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	if (at != MAP_FAILED)
		page = at;
}

static int number(const char *name, int otherwise)
{
	const char *text = getenv(name);
	return text != NULL ? atoi(text) : otherwise;
}

static void violation(const char *call, const char *what)
{
	if (page->violations++ == 0)
		snprintf(page->violation, sizeof page->violation, "%s: %s", call, what);
}

static void block_call(const char *call)
{
	const char *text = getenv("FAKE_CUDA_BLOCK");
	size_t n = strlen(call);
	char c;
	if (text != NULL && strncmp(text, call, n) == 0 && text[n] == ':')
		while (read(atoi(text + n + 1), &c, 1) < 0 && errno == EINTR) {
		}
}

static uint32_t fault(const char *call)
{
	for (size_t i = 0; i < sizeof page->rules / sizeof page->rules[0]; i++) {
		struct fake_rule *r = &page->rules[i];
		if (r->nth == 0 || strcmp(r->name, call) != 0 || --r->nth != 0)
			continue;
		if (r->count > 0) {
			r->nth = 1;
			r->count -= r->count != UINT32_MAX;
		}
		if (!r->after)
			return r->result;
		thread.after = r->result;
	}
	return 0;
}

static orb_cu_context current(void) { return thread.depth > 0 ? thread.stack[thread.depth - 1] : NULL; }

enum { FREE, INITIALISED, CURRENT };

// begin is what every call does first; it leaves the lock held.
static uint32_t begin(const char *call, int needs)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, map_page);
	block_call(call);
	pthread_mutex_lock(&lock);
	page->calls++;
	thread.after = 0;
	if (thread.callback)
		violation(call, "called from a host callback");
	uint32_t result = fault(call);
	if (result == 0 && needs >= INITIALISED && !initialised)
		result = ORB_CUDA_ERROR_NOT_INITIALIZED;
	if (result == 0 && needs == CURRENT && current() == NULL) {
		violation(call, "the calling thread has no current context");
		result = ORB_CUDA_ERROR_INVALID_CONTEXT;
	}
	if (result == 0 && needs == CURRENT && page->sticky != 0)
		result = page->sticky;
	return result;
}

static orb_cu_result end(uint32_t result)
{
	if (result == 0)
		result = thread.after;
	pthread_mutex_unlock(&lock);
	return (orb_cu_result)result;
}

#define BEGIN(call, needs) do { uint32_t r_ = begin(#call, needs); if (r_ != 0) return end(r_); } while (0)

// ---- start

orb_cu_result cuDriverGetVersion(int *version)
{
	BEGIN(cuDriverGetVersion, FREE);
	*version = number("FAKE_CUDA_VERSION", 12040);
	return end(*version == 0 ? ORB_CUDA_ERROR_STUB_LIBRARY : 0);
}

orb_cu_result cuGetErrorName(orb_cu_result error, const char **name)
{
	static const struct { uint32_t result; const char *name; } all[] = {
		{ 0, "CUDA_SUCCESS" }, { 1, "CUDA_ERROR_INVALID_VALUE" }, { 2, "CUDA_ERROR_OUT_OF_MEMORY" }, { 3, "CUDA_ERROR_NOT_INITIALIZED" },
		{ 100, "CUDA_ERROR_NO_DEVICE" }, { 101, "CUDA_ERROR_INVALID_DEVICE" }, { 201, "CUDA_ERROR_INVALID_CONTEXT" },
		{ 214, "CUDA_ERROR_ECC_UNCORRECTABLE" }, { 400, "CUDA_ERROR_INVALID_HANDLE" }, { 600, "CUDA_ERROR_NOT_READY" },
		{ 700, "CUDA_ERROR_ILLEGAL_ADDRESS" }, { 719, "CUDA_ERROR_LAUNCH_FAILED" }, { 800, "CUDA_ERROR_NOT_PERMITTED" },
		{ 801, "CUDA_ERROR_NOT_SUPPORTED" }, { 802, "CUDA_ERROR_SYSTEM_NOT_READY" }, { 803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" },
		{ 804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE" }, { 999, "CUDA_ERROR_UNKNOWN" },
	};
	*name = NULL;
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		if (all[i].result == (uint32_t)error)
			*name = all[i].name;
	return *name != NULL ? 0 : ORB_CUDA_ERROR_INVALID_VALUE;
}

orb_cu_result cuInit(unsigned int flags)
{
	BEGIN(cuInit, FREE);
	int result = flags == 0 ? number("FAKE_CUDA_INIT", 0) : ORB_CUDA_ERROR_INVALID_VALUE;
	initialised |= result == 0;
	return end(result);
}

// ---- devices

static int devices(void)
{
	int n = number("FAKE_CUDA_DEVICES", 2);
	return n < DEVICES ? n : DEVICES;
}

orb_cu_result cuDeviceGetCount(int *count)
{
	BEGIN(cuDeviceGetCount, INITIALISED);
	*count = devices();
	return end(0);
}

orb_cu_result cuDeviceGet(orb_cu_device *device, int ordinal)
{
	BEGIN(cuDeviceGet, INITIALISED);
	if (ordinal < 0 || ordinal >= devices())
		return end(ORB_CUDA_ERROR_INVALID_DEVICE);
	*device = ordinal + 100; // a handle is no ordinal
	return end(0);
}

#define DEVICE(device, call) \
	BEGIN(call, INITIALISED); \
	int ordinal = (device) - 100; \
	if (ordinal < 0 || ordinal >= devices()) \
		return end(ORB_CUDA_ERROR_INVALID_DEVICE)

orb_cu_result cuDeviceGetName(char *name, int length, orb_cu_device device)
{
	DEVICE(device, cuDeviceGetName);
	snprintf(name, length, "Fake GPU %d", ordinal);
	return end(0);
}

static orb_cu_result uuid(orb_cu_uuid *uuid, int ordinal, int version)
{
	for (int i = 0; i < 16; i++)
		uuid->bytes[i] = (char)(16 * version + i);
	uuid->bytes[15] = (char)ordinal;
	return end(0);
}

orb_cu_result cuDeviceGetUuid(orb_cu_uuid *out, orb_cu_device device)
{
	DEVICE(device, cuDeviceGetUuid);
	return uuid(out, ordinal, 1);
}

orb_cu_result cuDeviceGetUuid_v2(orb_cu_uuid *out, orb_cu_device device)
{
	DEVICE(device, cuDeviceGetUuid_v2);
	return uuid(out, ordinal, 2);
}

orb_cu_result cuDeviceTotalMem_v2(size_t *bytes, orb_cu_device device)
{
	DEVICE(device, cuDeviceTotalMem_v2);
	*bytes = device_bytes;
	return end(0);
}

orb_cu_result cuDeviceGetPCIBusId(char *id, int length, orb_cu_device device)
{
	DEVICE(device, cuDeviceGetPCIBusId);
	snprintf(id, length, ordinal == 0 ? "0000:1B:00.0" : "00000000:%02X:00.0", 0x1b + ordinal);
	return end(0);
}

// The first device can everything, the others little.
orb_cu_result cuDeviceGetAttribute(int *value, orb_cu_attribute attribute, orb_cu_device device)
{
	DEVICE(device, cuDeviceGetAttribute);
	switch (attribute) {
	case ORB_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		*value = 9;
		return end(0);
	case ORB_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
		*value = ordinal;
		return end(0);
	case ORB_CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
		*value = 1;
		return end(0);
	case ORB_CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
		*value = ordinal == 2 ? ORB_CU_COMPUTEMODE_PROHIBITED : 0;
		return end(0);
	case ORB_CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
		*value = 3;
		return end(0);
	case ORB_CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS:
		*value = ordinal == 0 ? 3 : 2;
		return end(0);
	case ORB_CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING:
		*value = ordinal == 0 ? 200 : ordinal == 1 ? 100 : 0;
		return end(0);
	case ORB_CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
		if (number("FAKE_CUDA_OLD", 0))
			return end(ORB_CUDA_ERROR_INVALID_VALUE);
		// fall through
	case ORB_CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
	case ORB_CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
	case ORB_CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
		*value = ordinal == 0;
		return end(0);
	}
	return end(ORB_CUDA_ERROR_INVALID_VALUE);
}

// ---- contexts

static int idle(orb_cu_context context)
{
	for (struct orb_cu_stream_st *s = streams; s != NULL; s = s->next)
		if ((context == NULL || s->context == context) && (s->busy || s->first != NULL))
			return 0;
	return 1;
}

static void settle(orb_cu_context context)
{
	while (!idle(context))
		pthread_cond_wait(&moved, &lock);
}

static void drop(struct block **at)
{
	struct block *b = *at;
	*at = b->next;
	munmap(orbcu_object(b->start), b->mapped);
	if (b->real != NULL) {
		munmap(b->real, b->mapped);
		close(b->file);
		page->allocations--;
	} else {
		page->pinned--;
	}
	free(b);
}

orb_cu_result cuDevicePrimaryCtxRetain(orb_cu_context *context, orb_cu_device device)
{
	DEVICE(device, cuDevicePrimaryCtxRetain);
	if (ordinal == 2)
		return end(46); // CUDA_ERROR_DEVICE_UNAVAILABLE
	contexts[ordinal].ordinal = ordinal;
	page->contexts += contexts[ordinal].users++ == 0;
	*context = &contexts[ordinal];
	return end(0);
}

// The last user's release ends everything in the context.
orb_cu_result cuDevicePrimaryCtxRelease_v2(orb_cu_device device)
{
	DEVICE(device, cuDevicePrimaryCtxRelease_v2);
	orb_cu_context c = &contexts[ordinal];
	if (c->users == 0)
		return end(ORB_CUDA_ERROR_INVALID_CONTEXT);
	if (--c->users != 0)
		return end(0);
	settle(c);
	for (struct block **at = &blocks; *at != NULL;)
		if ((*at)->context == c)
			drop(at);
		else
			at = &(*at)->next;
	for (struct orb_cu_stream_st *s = streams; s != NULL; s = s->next)
		if (s->context == c && !s->dead) {
			s->dead = 1;
			page->streams--;
		}
	for (struct orb_cu_event_st *e = events; e != NULL; e = e->next)
		if (e->context == c && !e->dead) {
			e->dead = 1;
			page->events--;
		}
	pthread_cond_broadcast(&moved);
	page->contexts--;
	return end(0);
}

orb_cu_result cuDevicePrimaryCtxGetState(orb_cu_device device, unsigned int *flags, int *active)
{
	DEVICE(device, cuDevicePrimaryCtxGetState);
	*flags = 0;
	*active = contexts[ordinal].users > 0;
	return end(0);
}

orb_cu_result cuCtxGetCurrent(orb_cu_context *context)
{
	BEGIN(cuCtxGetCurrent, INITIALISED);
	if (thread.ours == 0 && page->preset == 0)
		thread.depth = 0; // what an earlier preset left
	if (thread.depth == 0 && page->preset > 0 && page->preset <= DEVICES)
		thread.stack[thread.depth++] = &contexts[page->preset - 1];
	if (thread.ours > 0)
		violation("cuCtxGetCurrent", "a method begins on a thread on which another left a context");
	*context = current();
	return end(0);
}

orb_cu_result cuCtxPushCurrent_v2(orb_cu_context context)
{
	BEGIN(cuCtxPushCurrent_v2, INITIALISED);
	if (context < contexts || context >= contexts + DEVICES || context->users == 0)
		return end(ORB_CUDA_ERROR_INVALID_CONTEXT);
	if (thread.depth == STACK)
		return end(ORB_CUDA_ERROR_OUT_OF_MEMORY);
	thread.stack[thread.depth++] = context;
	thread.ours++;
	page->pushes++;
	page->depth++;
	if ((uint32_t)thread.depth > page->max_depth)
		page->max_depth = thread.depth;
	return end(0);
}

orb_cu_result cuCtxPopCurrent_v2(orb_cu_context *context)
{
	BEGIN(cuCtxPopCurrent_v2, INITIALISED);
	if (thread.ours == 0) {
		violation("cuCtxPopCurrent_v2", "nothing was pushed on this thread");
		return end(ORB_CUDA_ERROR_INVALID_CONTEXT);
	}
	*context = current();
	if (page->pop_other > 0) {
		page->pop_other--;
		*context = NULL;
	}
	thread.depth--;
	thread.ours--;
	page->pops++;
	page->depth--;
	return end(0);
}

// ---- memory

static struct block **owner(uint64_t address)
{
	struct block **at = &blocks;
	while (*at != NULL && (address < (*at)->start || address >= (*at)->start + (*at)->bytes))
		at = &(*at)->next;
	return at;
}

static size_t pages(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

static struct block *add(uint64_t start, size_t bytes, uint32_t type)
{
	struct block *b = calloc(1, sizeof *b);
	*b = (struct block){ .next = blocks, .start = start, .bytes = bytes, .mapped = pages(bytes), .file = -1,
		.context = current(), .type = type, .id = ++ids };
	blocks = b;
	return b;
}

orb_cu_result cuMemAlloc_v2(orb_cu_pointer *pointer, size_t bytes)
{
	BEGIN(cuMemAlloc_v2, CURRENT);
	if (bytes == 0)
		return end(ORB_CUDA_ERROR_INVALID_VALUE);
	if (bytes > device_bytes)
		return end(ORB_CUDA_ERROR_OUT_OF_MEMORY);
	int file = memfd_create("device", MFD_CLOEXEC);
	void *at = mmap(NULL, pages(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	void *real = MAP_FAILED;
	if (file >= 0 && ftruncate(file, pages(bytes)) == 0)
		real = mmap(NULL, pages(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (at == MAP_FAILED || real == MAP_FAILED)
		return end(ORB_CUDA_ERROR_OUT_OF_MEMORY);
	if (bytes <= 1 << 20)
		memset(real, 0xa5, bytes); // undefined
	struct block *b = add(orbcu_handle(at), bytes, page->kind == 3 ? ORB_CU_MEMORYTYPE_HOST : ORB_CU_MEMORYTYPE_DEVICE);
	b->real = real;
	b->file = file;
	b->managed = page->kind == 1;
	b->unextended = page->kind == 4;
	if (page->kind == 2)
		b->context = NULL;
	page->kind = 0;
	page->allocations++;
	*pointer = b->start;
	return end(0);
}

orb_cu_result cuMemFree_v2(orb_cu_pointer pointer)
{
	BEGIN(cuMemFree_v2, CURRENT);
	struct block **at = owner(pointer);
	if (*at == NULL || (*at)->start != pointer || (*at)->real == NULL)
		return end(ORB_CUDA_ERROR_INVALID_VALUE);
	settle((*at)->context);
	drop(owner(pointer));
	return end(0);
}

orb_cu_result cuMemHostAlloc(void **address, size_t bytes, unsigned int flags)
{
	BEGIN(cuMemHostAlloc, CURRENT);
	if (bytes == 0 || flags != ORB_CU_MEMHOSTALLOC_PORTABLE)
		return end(ORB_CUDA_ERROR_INVALID_VALUE);
	void *at = bytes > device_bytes ? MAP_FAILED : mmap(NULL, pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return end(ORB_CUDA_ERROR_OUT_OF_MEMORY);
	if (bytes <= 1 << 20)
		memset(at, 0x5a, bytes);
	add(orbcu_handle(at), bytes, ORB_CU_MEMORYTYPE_HOST);
	page->pinned++;
	*address = at;
	return end(0);
}

orb_cu_result cuMemFreeHost(void *address)
{
	BEGIN(cuMemFreeHost, CURRENT);
	struct block **at = owner(orbcu_handle(address));
	if (*at == NULL || (*at)->start != orbcu_handle(address) || (*at)->real != NULL)
		return end(ORB_CUDA_ERROR_INVALID_VALUE);
	settle(NULL);
	drop(owner(orbcu_handle(address)));
	return end(0);
}

static uint32_t describe(const struct block *b, uint32_t attribute, void *data)
{
	static const struct block unknown;
	if (b == NULL)
		b = &unknown;
	switch (attribute) {
	case ORB_CU_POINTER_ATTRIBUTE_CONTEXT:
		*(orb_cu_context *)data = b->context;
		return 0;
	case ORB_CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(uint32_t *)data = b->type;
		return 0;
	case ORB_CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		*(uint32_t *)data = b->sync;
		return 0;
	case ORB_CU_POINTER_ATTRIBUTE_BUFFER_ID:
		*(unsigned long long *)data = b->id;
		return 0;
	case ORB_CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(uint8_t *)data = b->managed != 0;
		return 0;
	case ORB_CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)data = b->context != NULL ? (int)b->context->ordinal : b->type != 0 ? 0 : -2;
		return 0;
	case ORB_CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(orb_cu_pointer *)data = b->unextended ? 0 : b->start;
		return 0;
	case ORB_CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(size_t *)data = b->unextended ? 0 : b->bytes;
		return 0;
	case ORB_CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
		*(uint8_t *)data = b->type == ORB_CU_MEMORYTYPE_DEVICE && !b->managed && b->context != NULL;
		return 0;
	}
	return ORB_CUDA_ERROR_INVALID_VALUE;
}

orb_cu_result cuPointerGetAttribute(void *data, orb_cu_pointer_attribute attribute, orb_cu_pointer pointer)
{
	BEGIN(cuPointerGetAttribute, INITIALISED);
	struct block *b = *owner(pointer);
	return end(b == NULL ? ORB_CUDA_ERROR_INVALID_VALUE : describe(b, attribute, data));
}

orb_cu_result cuPointerGetAttributes(unsigned int count, orb_cu_pointer_attribute *attributes, void **data, orb_cu_pointer pointer)
{
	BEGIN(cuPointerGetAttributes, INITIALISED);
	uint32_t result = 0;
	for (unsigned int i = 0; i < count && result == 0; i++)
		result = attributes[i] == ORB_CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE ? ORB_CUDA_ERROR_INVALID_VALUE
			: describe(*owner(pointer), attributes[i], data[i]);
	return end(result);
}

orb_cu_result cuPointerSetAttribute(const void *value, orb_cu_pointer_attribute attribute, orb_cu_pointer pointer)
{
	BEGIN(cuPointerSetAttribute, INITIALISED);
	struct block *b = *owner(pointer);
	if (b == NULL || b->type != ORB_CU_MEMORYTYPE_DEVICE || attribute != ORB_CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
		return end(ORB_CUDA_ERROR_INVALID_VALUE);
	b->sync |= *(const uint32_t *)value;
	return end(0);
}

orb_cu_result cuMemGetAddressRange_v2(orb_cu_pointer *base, size_t *bytes, orb_cu_pointer pointer)
{
	BEGIN(cuMemGetAddressRange_v2, CURRENT);
	struct block *b = *owner(pointer);
	if (b == NULL)
		return end(ORB_CUDA_ERROR_NOT_FOUND);
	*base = b->start;
	*bytes = b->bytes;
	return end(0);
}

orb_cu_result cuFlushGPUDirectRDMAWrites(orb_cu_flush_target target, orb_cu_flush_scope scope)
{
	BEGIN(cuFlushGPUDirectRDMAWrites, CURRENT);
	if (target != 0 || (scope != 100 && scope != 200))
		return end(ORB_CUDA_ERROR_INVALID_VALUE);
	return end(current()->ordinal == 0 ? 0 : ORB_CUDA_ERROR_NOT_SUPPORTED);
}

orb_cu_result cuMemGetHandleForAddressRange(void *handle, orb_cu_pointer pointer, size_t bytes, orb_cu_range_handle type, unsigned long long flags)
{
	BEGIN(cuMemGetHandleForAddressRange, CURRENT);
	struct block *b = *owner(pointer);
	if (b == NULL || b->real == NULL || type != 1 || flags != 0 || bytes == 0 || pointer % 4096 != 0 || bytes % 4096 != 0 ||
		pointer - b->start + bytes > b->mapped)
		return end(ORB_CUDA_ERROR_INVALID_VALUE);
	if (current()->ordinal != 0)
		return end(ORB_CUDA_ERROR_NOT_SUPPORTED);
	*(int *)handle = dup(b->file);
	return end(*(int *)handle < 0 ? 304 : 0); // CUDA_ERROR_OPERATING_SYSTEM
}

// ---- work

// place is where the bytes of a range are; NULL: it leaves its allocation. Memory that nobody allocated is the program's.
static void *place(uint64_t address, uint64_t bytes)
{
	struct block *b = *owner(address);
	if (b == NULL)
		return orbcu_object(address);
	if (bytes > b->bytes - (address - b->start))
		return NULL;
	return b->real != NULL ? (void *)(b->real + (address - b->start)) : orbcu_object(address);
}

static void carry_out(struct step *s)
{
	void *to = place(s->to, s->bytes), *from = place(s->from, s->bytes);
	switch (s->what) {
	case COPY:
		if (to == NULL || from == NULL) {
			violation("a copy", "its memory ended before it ran");
			return;
		}
		memmove(to, from, s->bytes);
		page->copies++;
		return;
	case FILL:
		if (to == NULL) {
			violation("a fill", "its memory ended before it ran");
			return;
		}
		memset(to, s->value, s->bytes);
		return;
	case RECORD:
		if (s->event->complete < s->count)
			s->event->complete = s->count;
		return;
	}
	if (page->lose > 0) {
		page->lose--;
		return;
	}
	uint32_t delay = page->callback_delay;
	pthread_mutex_unlock(&lock);
	if (delay != 0)
		usleep(delay);
	thread.callback = 1;
	s->function(s->argument);
	thread.callback = 0;
	pthread_mutex_lock(&lock);
	page->callbacks++;
}

static void *run(void *argument)
{
	struct orb_cu_stream_st *s = argument;
	pthread_mutex_lock(&lock);
	for (;;) {
		while (s->first == NULL && !s->dead)
			pthread_cond_wait(&moved, &lock);
		if (s->first == NULL)
			break;
		struct step *now = s->first;
		s->busy = 1;
		uint32_t delay = page->delay;
		do {
			pthread_mutex_unlock(&lock);
			usleep(page->hold ? 100 : delay);
			pthread_mutex_lock(&lock);
		} while (page->hold);
		if (page->sticky == 0)
			carry_out(now);
		s->first = now->next;
		if (s->first == NULL)
			s->last = &s->first;
		s->busy = 0;
		free(now);
		pthread_cond_broadcast(&moved);
	}
	pthread_mutex_unlock(&lock);
	return NULL;
}

orb_cu_result cuStreamCreate(orb_cu_stream *stream, unsigned int flags)
{
	BEGIN(cuStreamCreate, CURRENT);
	if (flags != ORB_CU_STREAM_NON_BLOCKING)
		return end(ORB_CUDA_ERROR_INVALID_VALUE);
	struct orb_cu_stream_st *s = calloc(1, sizeof *s);
	s->context = current();
	s->last = &s->first;
	pthread_t worker;
	pthread_attr_t detached;
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&detached, 64 << 10);
	if (pthread_create(&worker, &detached, run, s) != 0) {
		free(s);
		return end(ORB_CUDA_ERROR_OUT_OF_MEMORY);
	}
	s->next = streams;
	streams = s;
	page->streams++;
	*stream = s;
	return end(0);
}

static int known_stream(orb_cu_stream stream)
{
	for (struct orb_cu_stream_st *s = streams; s != NULL; s = s->next)
		if (s == stream)
			return !s->dead;
	return 0;
}

static int known_event(orb_cu_event event)
{
	for (struct orb_cu_event_st *e = events; e != NULL; e = e->next)
		if (e == event)
			return !e->dead;
	return 0;
}

#define STREAM(stream, call) \
	BEGIN(call, CURRENT); \
	if (!known_stream(stream) || (stream)->context != current()) \
		return end(ORB_CUDA_ERROR_INVALID_HANDLE)

#define EVENT(event, call) \
	BEGIN(call, CURRENT); \
	if (!known_event(event)) \
		return end(ORB_CUDA_ERROR_INVALID_HANDLE)

// It returns at once; what is on the stream goes on.
orb_cu_result cuStreamDestroy_v2(orb_cu_stream stream)
{
	STREAM(stream, cuStreamDestroy_v2);
	stream->dead = 1;
	page->streams--;
	pthread_cond_broadcast(&moved);
	return end(0);
}

orb_cu_result cuStreamSynchronize(orb_cu_stream stream)
{
	STREAM(stream, cuStreamSynchronize);
	while (stream->busy || stream->first != NULL)
		pthread_cond_wait(&moved, &lock);
	return end(page->sticky);
}

orb_cu_result cuEventCreate(orb_cu_event *event, unsigned int flags)
{
	BEGIN(cuEventCreate, CURRENT);
	if (flags != ORB_CU_EVENT_DISABLE_TIMING)
		return end(ORB_CUDA_ERROR_INVALID_VALUE);
	struct orb_cu_event_st *e = calloc(1, sizeof *e);
	e->context = current();
	e->next = events;
	events = e;
	page->events++;
	*event = e;
	return end(0);
}

orb_cu_result cuEventDestroy_v2(orb_cu_event event)
{
	EVENT(event, cuEventDestroy_v2);
	event->dead = 1;
	page->events--;
	return end(0);
}

orb_cu_result cuEventQuery(orb_cu_event event)
{
	EVENT(event, cuEventQuery);
	return end(event->complete < event->recorded ? ORB_CUDA_ERROR_NOT_READY : 0);
}

static orb_cu_result put(orb_cu_stream stream, struct step step)
{
	struct step *s = malloc(sizeof *s);
	*s = step;
	*stream->last = s;
	stream->last = &s->next;
	pthread_cond_broadcast(&moved);
	return end(0);
}

orb_cu_result cuEventRecord(orb_cu_event event, orb_cu_stream stream)
{
	STREAM(stream, cuEventRecord);
	if (!known_event(event) || event->context != stream->context)
		return end(ORB_CUDA_ERROR_INVALID_HANDLE);
	return put(stream, (struct step){ .what = RECORD, .event = event, .count = ++event->recorded });
}

orb_cu_result cuMemcpyAsync(orb_cu_pointer to, orb_cu_pointer from, size_t bytes, orb_cu_stream stream)
{
	STREAM(stream, cuMemcpyAsync);
	if (bytes == 0)
		return end(0);
	if (place(to, bytes) == NULL || place(from, bytes) == NULL)
		return end(ORB_CUDA_ERROR_INVALID_VALUE);
	return put(stream, (struct step){ .what = COPY, .to = to, .from = from, .bytes = bytes });
}

orb_cu_result cuMemsetD8Async(orb_cu_pointer to, unsigned char value, size_t bytes, orb_cu_stream stream)
{
	STREAM(stream, cuMemsetD8Async);
	struct block *b = *owner(to);
	if (b == NULL || place(to, bytes) == NULL)
		return end(ORB_CUDA_ERROR_INVALID_VALUE);
	return put(stream, (struct step){ .what = FILL, .to = to, .bytes = bytes, .value = value });
}

orb_cu_result cuLaunchHostFunc(orb_cu_stream stream, orb_cu_host_function function, void *argument)
{
	STREAM(stream, cuLaunchHostFunc);
	if (function == NULL)
		return end(ORB_CUDA_ERROR_INVALID_VALUE);
	return put(stream, (struct step){ .what = CALL, .function = function, .argument = argument });
}

// Each function here has the type by which the package calls it.
#define SAME(f) _Static_assert(__builtin_types_compatible_p(__typeof__(&f), __typeof__(((struct orbcu_driver *)0)->f)), #f);
ORBCU_CALLS(SAME, SAME)
