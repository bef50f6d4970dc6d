// Package tcp moves payload between registered ranges over a peer's stream: operations 1 (READ) and
// 2 (WRITE), at the requester (Transfer) and at the source (Service).
//
// A Transfer and a handler own a staging buffer, or with direct placement a range lease, from their
// first step until the stream has finished with it; the requester's registration is borrowed by the
// Transfer's owner, the source's by the handler. Each gives back in one place (end, release), after the
// kernel has.
//
// It imports lanes, lanes/control, netproto, reactor and segments. The machines decide and do nothing
// else; the drives act.
//
//	READ:  request ▶ reply ▶ payload ▶ commit ▶ done        source: snapshot ▶ sending ▶ done
//	WRITE: request ▶ ready ▶ payload ▶ receipt ▶ done       source: readying ▶ receiving ▶ commit ▶ acking ▶ done
//
// It relies on SPEC T-1, T-2, T-9 to T-11, W-14, M-9.
package tcp
