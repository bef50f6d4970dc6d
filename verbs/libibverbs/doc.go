// Package libibverbs is the native library libibverbs.so.1 behind verbs.Calls. Load opens it at run time, so a
// program that imports this package builds without RDMA headers and without the library, and one that does not
// import it links no C. Without cgo the package builds as well; Load then fails with *NoCgo.
//
// It owns the opened library, which stays loaded until the process ends: providers cannot be unloaded under open
// devices. Every native object belongs to the caller; its handle is the library's own pointer as a number, and using
// it after its end is the caller's mistake, which nothing here can notice. Device and channel descriptors belong to
// the library and are made non-blocking.
//
// It may import verbs, x/sys and the standard library. C is in *.c and *_unsafe.go: abi.h declares what is read of the
// library's structures (test/abi compares it with the installed headers), library.h its functions, shim.h what
// Go calls.
//
// It has no states of its own but the gate before slow calls. Hot calls (PostSend, PostReceive, Poll, Arm, NextEvent,
// NextAsync) never pass it, allocate nothing and cross once for a whole list:
//
//	call ─▶ refused (*Busy) when too many wait, unless it ends an object
//	  └──▶ waiting, a goroutine and no thread ─▶ inside, one thread each, callsMax at once ─▶ done
//
// Outside it relies on glibc's dlopen and dlvsym, on the library's versions IBVERBS_1.0 and 1.1 (rdma-core; 1.8, 1.11
// and 1.12 where there), on /sys/class/infiniband and on /proc. It does not call ibv_fork_init: programs started by
// os/exec share no page with their parent before exec, kernels since 5.12 copy pinned pages for a child, and the call
// would make every registration of the whole process slower and take its pages from children. A host program that
// forks without exec on an older kernel sets IBV_FORK_SAFE=1, which the library itself obeys.
package libibverbs
