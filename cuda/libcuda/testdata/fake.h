// The page that the tests and the stand-in driver share: what is to go wrong, and what was seen. The tests map the file
// named by FAKE_CUDA_CONTROL; control_test.go has the same layout. Without the variable nothing goes wrong unasked.
#ifndef ORBITTE_FAKE_CUDA_H
#define ORBITTE_FAKE_CUDA_H

#include <stdint.h>

struct fake_rule {
	char name[48];   // of a function
	uint32_t nth;    // its n-th call from now fails; 0: the rule is spent or empty
	uint32_t count;  // and so many after it; all ones: all
	uint32_t result; // with this
	uint32_t after;  // 1: after it has done its work
};

struct fake_control {
	// Told by the tests.
	uint32_t delay;          // microseconds before each step of a stream
	uint32_t callback_delay; // and before each host callback
	uint32_t lose;           // so many callbacks are lost
	uint32_t kind;           // of the next allocation: 1 managed, 2 made by the virtual-memory API, 3 host memory's type, 4 no extent in its attributes
	uint32_t sticky;         // contexts answer everything with this result
	uint32_t preset;         // 1 + ordinal: a thread without a context has this primary context as its own
	uint32_t hold;           // streams take no further step
	uint32_t pop_other;      // so many pops tell another context than they take off
	struct fake_rule rules[8];
	// Seen.
	uint32_t violations;
	uint32_t max_depth; // of any thread's stack
	int64_t depth;      // of all threads' stacks together, presets left out
	uint64_t pushes, pops, calls, callbacks, copies;
	int64_t contexts, allocations, pinned, streams, events; // there are
	char violation[256];                                    // the first
};

#endif
