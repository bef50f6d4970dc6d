// Package tcp moves payload between registered ranges over a peer's stream: operations 1 (READ) and
// 2 (WRITE), at the requester (Transfer) and at the source (Service).
//
// A Transfer and a handler own a staging buffer, or with direct placement a range lease, from their
// first step until the stream has finished with it; the requester's registration is borrowed by the
// Transfer's owner, the source's by the handler. Each gives back in one place (end, release), after the
// kernel has.
//
// The sender's owned buffer is the socket's, as far as that has room: a payload of 64 KiB or more goes from the leased range
// into the socket in sends that never wait for the peer (reactor.Operation.AtOnce). What they do not take is copied into the
// staging buffer under the same lease, so that the payload is one snapshot, and is sent from there. So no lease waits for a
// peer, and a peer that keeps up costs no copy. The staging buffer is there before anything is promised to the peer. Smaller
// payloads are copied first.
//
// A range in device memory has the lease of direct placement and a flow of pinned chunks between it and the socket
// (staging.Flow), which both end behind the stream: a transfer or a handler has ended when no copy is under way any
// more, or says that this is unproven. It is placed chunk by chunk, since to keep a whole payload back would need all of
// it pinned: a failed READ may leave part of a local device range changed, and says so (EffectPartial); a failed WRITE's
// effect is unknown, as always. A requester takes its first chunk when the source has answered, a source before it
// answers, so that no two engines wait for each other's chunks.
//
// One WRITE after the other costs each end one receive and one send between two payloads: the next request goes out with the
// end of the payload before it, and is read with it; the receipt goes out with the answer to that request, after the commit.
// On the wire it is the same bytes in the same order, and a peer that sends or answers them one by one is served as well.
//
// It imports lanes, lanes/control, lanes/staging, netproto, reactor and segments. The machines decide and do
// nothing else; the drives act.
//
//	READ:  request ▶ reply ▶ payload ▶ commit ▶ done        source: snapshot ▶ sending (short: ▶ keeping ▶ sending) ▶ done
//	WRITE: request ▶ ready ▶ payload ▶ receipt ▶ done       source: readying ▶ receiving ▶ commit ▶ acking ▶ done
//	device: … ▶ flow running ▶ flow ended ▶ done            and Failed, Lost ▶ flow ending ▶ done
//
// It relies on SPEC T-1, T-2, T-9 to T-11, W-14, M-9, C-3 to C-5, G-8, G-9.
package tcp
