// The C side of this package: what Go calls, and the records that cross. Handles are the driver's pointers as numbers.
#ifndef ORBITTE_CUDA_SHIM_H
#define ORBITTE_CUDA_SHIM_H

#include <stdint.h>

struct orbcu_driver; // the opened driver and its functions

// cuda.Effect
enum { ORBCU_NONE, ORBCU_MAYBE, ORBCU_DONE };

// What became of a method: the first result that is not 0, of which call, and what that call may have done.
struct orbcu_done {
	uint32_t result;
	uint16_t call; // for orbcu_call_name
	uint16_t effect;
};

enum { ORBCU_LOADED, ORBCU_NO_LIBRARY, ORBCU_NO_SYMBOL, ORBCU_TOO_OLD, ORBCU_REFUSED };

// How orbcu_load failed.
struct orbcu_load_failure {
	int32_t what;
	int32_t version; // of the driver, when it said one
	struct orbcu_done done;
	char text[512]; // the loader's words
	char path[512]; // the file that the loader took, when it took one
	char symbol[64];
	char result[64]; // the driver's name of the result
};

// orbcu_load opens a driver, finds its functions, checks its version and initialises it; NULL: failure says why. The
// same driver is the same pointer.
struct orbcu_driver *orbcu_load(const char *path, int least, struct orbcu_load_failure *failure);
const char *orbcu_path(const struct orbcu_driver *l);
int orbcu_version(const struct orbcu_driver *l);
const char *orbcu_call_name(int call);
// orbcu_result_name is the driver's name of a result, or NULL.
const char *orbcu_result_name(const struct orbcu_driver *l, uint32_t result);

// ---- devices

struct orbcu_device {
	uint64_t memory;
	char name[128];
	char pci[32];
	uint8_t uuid[16];
	int32_t major, minor, unified, prohibited, virtual_memory, gpudirect, gpudirect_vm, dma_buf, flush_options, ordering, engines;
};

struct orbcu_done orbcu_device_count(const struct orbcu_driver *l, int *count);
struct orbcu_done orbcu_device(const struct orbcu_driver *l, int ordinal, struct orbcu_device *out);

struct orbcu_done orbcu_acquire(const struct orbcu_driver *l, int ordinal, uint64_t *context);
struct orbcu_done orbcu_release(const struct orbcu_driver *l, int ordinal);
struct orbcu_done orbcu_active(const struct orbcu_driver *l, int ordinal, int *active);

// ---- objects

struct orbcu_done orbcu_alloc(const struct orbcu_driver *l, uint64_t context, uint64_t bytes, uint64_t *pointer);
struct orbcu_done orbcu_alloc_host(const struct orbcu_driver *l, uint64_t context, uint64_t bytes, uint64_t *address);
struct orbcu_done orbcu_create_stream(const struct orbcu_driver *l, uint64_t context, uint64_t *stream);
struct orbcu_done orbcu_create_event(const struct orbcu_driver *l, uint64_t context, uint64_t *event);

// orbcu_end ends an object; what is one of these.
enum { ORBCU_END_MEMORY, ORBCU_END_HOST, ORBCU_END_STREAM, ORBCU_END_EVENT };
struct orbcu_done orbcu_end(const struct orbcu_driver *l, int what, uint64_t context, uint64_t object);

struct orbcu_pointer {
	uint64_t context, start, bytes, buffer;
	uint32_t type;
	int32_t ordinal;
	uint8_t managed, gpudirect, sync;
};
struct orbcu_done orbcu_attributes(const struct orbcu_driver *l, uint64_t address, struct orbcu_pointer *out);
struct orbcu_done orbcu_sync_memops(const struct orbcu_driver *l, uint64_t context, uint64_t pointer);

struct orbcu_done orbcu_flush(const struct orbcu_driver *l, uint64_t context, int all);
// orbcu_export: NOT_SUPPORTED with effect none also when the driver has no such function.
struct orbcu_done orbcu_export(const struct orbcu_driver *l, uint64_t context, uint64_t pointer, uint64_t bytes, int *descriptor);
int orbcu_can_export(const struct orbcu_driver *l);

// ---- work: the hot calls

// cuda.Copy
struct orbcu_copy {
	uint64_t to, from, bytes;
};

struct orbcu_submitted {
	struct orbcu_done done;
	int32_t copies;
	uint8_t unknown, recorded, signaled, unused;
};
struct orbcu_submitted orbcu_submit(const struct orbcu_driver *l, uint64_t context, uint64_t stream, const struct orbcu_copy *copies,
	int32_t count, uint64_t event, uint64_t signal);
struct orbcu_done orbcu_query(const struct orbcu_driver *l, uint64_t context, uint64_t event);
struct orbcu_done orbcu_synchronize(const struct orbcu_driver *l, uint64_t context, uint64_t stream);
struct orbcu_done orbcu_zero(const struct orbcu_driver *l, uint64_t context, uint64_t stream, uint64_t pointer, uint64_t bytes);

// orbcu_open_signal returns 0, or an errno.
int orbcu_open_signal(uint64_t *signal);
int orbcu_signal_descriptor(uint64_t signal);
// orbcu_take_signal empties the descriptor: callbacks is how many rang since it was emptied last. It returns 0 or an errno.
int orbcu_take_signal(uint64_t signal, uint64_t *callbacks);
// orbcu_close_signal returns how many callbacks are owed; the last of them closes the descriptor.
int64_t orbcu_close_signal(uint64_t signal);

#endif
