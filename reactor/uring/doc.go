// Package uring is the kernel on io_uring: it tries an operation at once when few are pending, leaves what has to
// wait to the ring, and hands many small ones to the system in one call.
//
// It owns a ring (descriptor, two mappings, and a pipe by which its end is known), off-heap blocks for what the system
// reads later, and an eventfd; all end with Shutdown. Descriptors from Listen, Open and Accept belong to the caller, who ends them with Close. A
// buffer that the ring has is the ring's until its completion was read: nothing is reported before.
//
// It may import reactor and reactor/socket. The ring's method names follow liburing, so that a library with
// the same vocabulary could take its place.
//
// The states of an operation:
//
//	Submit ─▶ Queued ─▶ tried at once ─▶ done
//	            ▲           │ not yet, known to be blocked, or many are queued
//	            │           ▼
//	            └─ ready ─ Parked: an entry of the ring ─▶ its completion event ─▶ done
//	                        (Cancel adds a second entry that ends the first)
//
// A kernel whose ring may not be entered any more is lost: operations end with a LostError (lost.go).
//
// Outside it relies on Linux 5.11 (IORING_FEAT_EXT_ARG; io_uring_setup(2), io_uring_enter(2)) and uses what newer
// ones add: COOP_TASKRUN and POLL_FIRST (5.19), SINGLE_ISSUER (6.0), DEFER_TASKRUN (6.1), NO_SQARRAY (6.6).
package uring
