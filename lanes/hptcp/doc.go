// Package hptcp is the fast TCP data plane beside the control stream: a requester's Transfer moves any number of
// ranges over pipelined requests on streams of its own, straight from and into the registered ranges, and a
// source's Service answers (SPEC H-1 to H-9). It never stands in for another transport.
//
// A stream owns one descriptor, an inbox for frames, and a list of buffers that are with the kernel; it ends
// closed, after the kernel has given every operation back, or retained. A link (requester) and a session (source)
// own a place of their lane's budget from before the socket is theirs until its close is proven. A Transfer owns
// the lease of its local ranges, a request at the source (served) the lease of its part of the region, a loan of
// the registration and a count of the gate. A request holds its place in the stream's table and its credit until
// it is answered; memory is given back when, besides, no box and no receive has buffers in it.
//
// It imports lanes, netproto, reactor, segments and budgets; lanes/control deals accepted connections to it. The
// machine decides how many streams there are and does nothing else; the drives act.
//
//	Transfer: moving (leased with its first request) ▶ (Atomic READ: committing) ▶ done   failing ▶ done, when the kernel has let go
//	Link:     absent ▶ connecting ▶ greeting ▶ ready ▶ absent          retained, for good
//	Request:  queued ▶ posted ▶ chunks ▶ answered                      given up: its answer finds nobody (H-3)
//	Session:  hello ▶ frames, one after the other, answers in order ▶ closed
//
// Requests are chunks of transfers: at most ChunkBytes and 1,000 ranges, so that one is a send and a receive. The
// smallest go over a stream where no large one stands in front; the others over as many as pay (spread), also on
// other lanes: transfers there carry what they take from one Share. Credit bounds the bytes without an answer on each
// stream (H-7). Each request is leased by itself at the source: like a
// WRITE over many rails, a large one is no transaction, but an Atomic one (T-1). After a failure the report says
// which side's range may have changed; a stream with half a WRITE on it, or whose request ran out of time, is
// retired (T-5), and nothing is sent twice (T-10). It relies on SPEC H, T, W-15, M-9, L-2 and L-6, and on
// sendmsg(2) and recvmsg(2) with many buffers.
package hptcp
