// Package control carries the frames of the control protocol: the listener and the sessions of a
// source, the channel per peer of a requester, and the machines for describe and notify. TCP payload
// rides on the same streams; lanes/tcp decides about it.
//
// A Stream owns one descriptor: it ends when it is closed, after the kernel has given back every
// operation on it, or retained, when the system refuses to close it. A Channel owns a slot of its
// lane's Streams budget while it has a stream; a Session owns a slot of Sessions, and, while its
// frame is served, one handler of the engine's Admission. An Inbox owns the messages in it.
//
// It imports lanes, netproto, reactor, segments and budgets.
//
//	Channel: absent ──slot──▶ connecting ──▶ ready ⇄ busy ──loss──▶ absent      (retained: for good)
//	Session: idle ──frame──▶ waiting ──handler──▶ serving ──reply sent──▶ idle
//	                            └─full─▶ closed      └─refusal─▶ replying ──▶ idle or closed
//
// It relies on SPEC W, T-3 to T-12, G-5, N-1 to N-6, and on accept(2) for which errors pass.
package control
