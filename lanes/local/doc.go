// Package local carries out a request of an engine to itself: one copy under the same checks and
// leases as any other request, through neither socket nor NIC (field case F-71).
//
// A Transfer owns two leases and one loan while it copies, and gives them back in end.
//
// It imports lanes, lanes/staging, netproto, reactor and segments.
//
//	start ──admitted──▶ leasing ──both leases──▶ copying, slice by slice ──▶ done
//	  └─refused─▶ done       └─deadline, cancel─▶ done  └─a device failed─▶ done, in part
//
// Device memory is copied by its device: to and from host memory through pinned chunks, slice by slice as well; from
// device to device, and when the host memory is pinned, in one copy.
//
// It relies on SPEC M-8, M-9 and T-1; a copy that has begun is completed, so that no range is left half
// changed.
package local
