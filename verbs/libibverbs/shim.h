// The C side of this package: what Go calls, and the records that cross. Handles are the library's pointers as
// numbers. A function that returns int returns 0 or an errno, whatever the library's own way of saying it.
#ifndef ORBITTE_SHIM_H
#define ORBITTE_SHIM_H

#include <stdint.h>

struct orb_library; // the opened library and its functions

// Why orb_load failed: symbol is empty when the library itself could not be opened.
struct orb_load_failure {
	char text[512];
	char symbol[64];
	char version[32];
};

// orb_load opens a library and finds its functions; NULL: failure says why.
struct orb_library *orb_load(const char *path, struct orb_load_failure *failure);
// orb_path is the file that the loader took.
const char *orb_path(const struct orb_library *l);
// orb_has says which optional functions exist: 1 ibv_reg_mr_iova2, 2 _ibv_query_gid_table, 4 ibv_reg_dmabuf_mr.
int orb_has(const struct orb_library *l);

// ---- devices

struct orb_device_record {
	uint64_t guid; // host byte order
	char name[64];
	char node[64];
	char sysfs[256];
};

// orb_devices writes at most room records and sets count to how many devices there are.
int orb_devices(const struct orb_library *l, struct orb_device_record *out, int room, int *count);
// orb_open opens the device of that name; ENODEV: there is none.
int orb_open(const struct orb_library *l, const char *name, uint64_t *device);
// orb_device_name is the name of an opened device.
const char *orb_device_name(uint64_t device);
const char *orb_device_sysfs(uint64_t device);

struct orb_limits {
	uint64_t region_bytes;
	int32_t pairs, pair_work, sge, queues, queue_depth, regions, windows, domains, read_atomic, ports, type_2b;
	char firmware[64];
};
int orb_query_device(const struct orb_library *l, uint64_t device, struct orb_limits *out);

struct orb_port {
	uint32_t max_message;
	int32_t state, mtu, gids, ethernet, width, speed;
	uint16_t lid;
};
int orb_query_port(const struct orb_library *l, uint64_t device, uint8_t port, struct orb_port *out);

struct orb_gid {
	uint8_t gid[16];
	int32_t index, kind;
	char network[16]; // the network interface
};
// orb_gids writes a port's entries, at most room, and sets count; total is the size of all ports' tables together.
int orb_gids(const struct orb_library *l, uint64_t device, uint8_t port, int total, struct orb_gid *out, int room, int *count);

int orb_async_descriptor(uint64_t device);

struct orb_async {
	int32_t code; // 0; EAGAIN: there is none; or why it failed
	int32_t kind, port;
	uint64_t queue, pair;
};
struct orb_async orb_next_async(const struct orb_library *l, uint64_t device);

// ---- objects

// orb_end ends an object; what is one of these.
enum { ORB_END_DEVICE, ORB_END_DOMAIN, ORB_END_CHANNEL, ORB_END_QUEUE, ORB_END_PAIR, ORB_END_REGION, ORB_END_WINDOW };
int orb_end(const struct orb_library *l, int what, uint64_t handle);

int orb_alloc_domain(const struct orb_library *l, uint64_t device, uint64_t *domain);
int orb_create_channel(const struct orb_library *l, uint64_t device, uint64_t *channel);
int orb_channel_descriptor(uint64_t channel);
// orb_create_queue: vector is taken modulo the device's completion vectors.
int orb_create_queue(const struct orb_library *l, uint64_t device, int entries, uint64_t channel, uint32_t vector, uint64_t *queue);

struct orb_pair_options {
	uint64_t sends, receives;
	uint32_t send_depth, receive_depth, inlined;
};
int orb_create_pair(const struct orb_library *l, uint64_t domain, const struct orb_pair_options *o, uint64_t *pair, uint32_t *number);

struct orb_transition {
	uint32_t to, access, remote, receive_start, mtu, source_gid, send_start;
	uint16_t remote_lid;
	uint8_t port, hop_limit, traffic_class, service_level, reads_answered, receiver_not_ready;
	uint8_t timeout, retries, not_ready_retries, reads_asked;
	uint8_t remote_gid[16];
};
int orb_modify_pair(const struct orb_library *l, uint64_t pair, const struct orb_transition *t);
int orb_query_pair(const struct orb_library *l, uint64_t pair, uint32_t *state);

struct orb_region {
	uint64_t handle;
	uint32_t local, remote;
};
int orb_register(const struct orb_library *l, uint64_t domain, uint64_t address, uint64_t length, uint32_t access, struct orb_region *out);
int orb_register_descriptor(const struct orb_library *l, uint64_t domain, uint64_t offset, uint64_t length, uint64_t address,
	int descriptor, uint32_t access, struct orb_region *out);
int orb_alloc_window(uint64_t domain, uint64_t *window, uint32_t *key);

// ---- work: the hot calls

// verbs.SendWork
struct orb_send_work {
	uint64_t id, address, remote, span, window, region;
	uint32_t operation, flags, length, local_key, remote_key, access;
};
enum { ORB_WRITE = 1, ORB_READ, ORB_SEND, ORB_SEND_WITH_INVALIDATE, ORB_BIND_WINDOW, ORB_LOCAL_INVALIDATE };

// verbs.ReceiveWork
struct orb_receive_work {
	uint64_t id, address;
	uint32_t length, local_key;
};

// verbs.Completion
struct orb_completion {
	uint64_t id;
	uint32_t status, operation, vendor, length, invalidated, pair, flags, unused;
};

struct orb_posted {
	int32_t accepted; // -1: unknown
	int32_t code;
};
struct orb_posted orb_post_send(uint64_t pair, const struct orb_send_work *work, int32_t count);
struct orb_posted orb_post_receive(uint64_t pair, const struct orb_receive_work *work, int32_t count);

struct orb_polled {
	int32_t sent, received;
	int32_t failed; // 0; 1: the queue of sends; 2: the queue of receives
	int32_t result; // what the library returned when it failed
};
struct orb_polled orb_poll(uint64_t sends, uint64_t receives, struct orb_completion *out, int32_t room);

int orb_arm(uint64_t queue);

struct orb_event {
	uint64_t queue;
	int32_t code; // 0; EAGAIN: there is none; or why it failed
};
struct orb_event orb_next_event(const struct orb_library *l, uint64_t channel);

#endif
