// Package orbitte moves registered memory ranges between processes and hosts: KV caches between
// prefill and decode, weights to new replicas, activations between stages. It is the only stable API of
// the module.
//
// An Engine owns lanes (locked threads with one progress loop each), its registrations, its peers'
// streams, its RDMA devices, its share of a CUDA driver and its budgets; Close ends them in order, and says ErrUnquiesced while something
// is not proven ended. Memory, Registration, Segment and Batch belong to the caller and end with Close,
// Unregister, CloseSegment and Free; they outlive the engine.
//
// It may import the packages below this one: lanes and its transports, segments, reactor and its kernels, netproto,
// verbs, cuda, budgets, and zerolog for the caller's logger. It imports no native library: those arrive as values.
//
//	Engine:  open ──CloseSource / CloseRequester──▶ half closed ──Close──▶ closing ──▶ closed
//	Batch:   running ──▶ done ──Free──▶ gone;  running ──Free──▶ detached ──▶ gone
//	Memory on devices: live ──registration ended, or Close──▶ retiring ──deregistered──▶ gone;  retiring ──refused──▶ kept
//	Memory of a CUDA driver: held ──last registration ended, and closed──▶ freed;  ──refused──▶ kept (RetainedByCUDA)
//	Request: queued ──▶ running ──▶ succeeded, failed;  queued, posted ahead ──▶ skipped
//
// Outside it relies on Linux (sockets, io_uring or epoll, cgroup v1 or v2 for the CPU quota) and on
// SPEC M, W, T, H, G, B, N, R, C, U and L.
package orbitte
