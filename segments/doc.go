// Package segments says who may touch which bytes: memory objects, the leases that arbitrate access to
// them, the registrations that make ranges visible, and the search that finds the region covering an
// address, here and at a peer (SPEC M-1 to M-9, and the resolution of G-2).
//
// It owns memory and promises about memory. A Backing is one memory object; it ends exactly once, when
// its last holder drops it: a mapping is unmapped, a slice unpinned, an owner let go. A Lease holds one
// exact range and ends with Return. A Registration holds its backing and two charges; it ends when it
// is retired and its last loan came back. Every live object stands in one table of the process until
// its end is proven, so that nothing a peer may still write is freed because a program lost it: a lost
// Backing is counted and reported (Lost, Residents), and its memory stays.
//
// It imports budgets and netproto, and golang.org/x/sys/unix for mmap, munmap and madvise.
//
// The states, of a registration (references r, loans l), and of a slot of a lease table:
//
//	Register       Register, same range       Unregister, r = 1          last Return
//	-------> visible -------> visible, r+1    -------> retired, l > 0 -------> ended
//	                                          -------> ended (l = 0)
//
//	free -> claiming -> held -> free          the scan met no conflict
//	        claiming -> free                  it met one, or an earlier claimant came: doomed -> free
//
// Outside it relies on Linux: mmap(2) MAP_PRIVATE|MAP_ANONYMOUS, madvise(2) MADV_HUGEPAGE (advice only)
// and MADV_POPULATE_WRITE (5.14; pages are touched one by one before that), and on runtime.Pinner. No
// memory is marked MADV_DONTFORK. The mark works on whole pages, so on adopted memory it would take away
// from a forked child its neighbours' bytes, the oldest bug of RDMA programs, and on owned memory it
// would make a child crash that merely reads what it inherited. It is not needed: mappings are private,
// so a child's writes and its end stay in the child; the kernel copies socket data through the parent's
// page tables; and since Linux 5.12 fork copies pinned pages for the child at once, so that a NIC goes
// on writing to the parent (field case F-64). A room for older kernels would have to mark what it pins.
package segments
