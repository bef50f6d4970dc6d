// Package simverbs is the twin of libibverbs and of the devices behind it: a fabric of hosts, devices and ports in one
// address space, with a virtual clock and a seed, behind verbs.Calls. It really moves bytes between the registered
// addresses of its processes, refuses what devices and the kernel refuse, and takes fault plans.
//
// A Fabric owns hosts, the packets under way and the events that lie ahead. A Process owns the objects that it made
// through its calls; they end by their own destroy calls, or all at once in Kill. Fabric.Live lists what is left. The
// fabric never owns the memory that is registered: a region that is registered must stay mapped.
//
// It may import verbs and the standard library. It reads no real clock and starts no goroutine: the clock, timers and
// descriptors come from Options. One gate lets callers in one after another, so every call may come from any goroutine.
//
// A queue pair, and one piece of send work:
//
//	Reset ─▶ Init ─▶ ReadyToReceive ─▶ ReadyToSend ─▶ Error ─flush─▶ (empty)
//	  ▲___________________________________________________│
//
//	posted ─▶ started (key checked, PSNs given) ─▶ packets out ─▶ acknowledged ─▶ retired in order ─▶ completion
//	    └──────────────┴── fence, READ credit, RNR, retry ──┘└─▶ failed ─▶ pair to Error
//
// It imitates the InfiniBand Architecture Specification volume 1 (chapters 9 to 11), the ibv_*(3) manual pages, mlx5
// (personality Hardware) and rdma_rxe of Linux 6.12 (SoftRoCE) as MEASURED.md lists it.
package simverbs
