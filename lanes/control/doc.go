// Package control carries the frames of the control protocol: the listener and the sessions of a
// source, the channel per peer of a requester, and the machines for describe and notify. TCP payload
// rides on the same streams; lanes/tcp decides about it.
//
// A Stream owns one descriptor: it ends when it is closed, after the kernel has given back every
// operation on it, or retained, when the system refuses to close it. What a Lender lends to a Send is the stream's only for
// operations that do not wait for the peer. A Channel owns a slot of its
// lane's Streams budget while it has a stream; a Session owns a slot of Sessions, and, while its
// frame is served, one handler of the engine's Admission. A Slip is the answer that a Session owes for a frame which was
// taken off the stream; the handler is its own. A channel with a convoy, and a session that has owed, hold a buffer for what
// travels together, until their stream is gone. An Inbox owns the messages in it.
//
// It imports lanes, netproto, reactor, segments and budgets.
//
//	Channel: absent ──slot──▶ connecting ──▶ ready ⇄ busy ──loss──▶ absent      (retained: for good)
//	Session: idle ──frame──▶ waiting ──handler──▶ serving ──reply sent──▶ idle
//	                            └─full─▶ closed      ├─refusal─▶ replying ──▶ idle or closed
//	                                                 └─Detach─▶ idle, a slip is owed (four at most: full)
//	         idle, slips owed ──a frame that is not for detaching, or no handler──▶ held ──slips sent──▶ serving
//	Session with tenants: idle ⇄ kept, neither evicted nor closed for idleness ──lost──▶ tenants evicted
//	Lent Send: at once ──took all──▶ Sent       at once ──took less──▶ Short, stopped ──Instead──▶ as any Send
//	Exchange: idle ──Run──▶ queued ──▶ active ──Finish──▶ idle        queued ──framed, behind framed──▶ ahead ──▶ active
//
// It relies on SPEC W, T-3 to T-12, G-5, N-1 to N-6, and on accept(2) for which errors pass.
package control
