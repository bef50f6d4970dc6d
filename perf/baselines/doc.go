// Package baselines is what the engine is held against: raw sockets, plain Go net, memory copies, and programs of others.
//
// A Server owns its listener and ends with the process; a Stream, a Lane and a Program end with Close.
//
// It imports golang.org/x/sys/unix, nothing of ours.
//
//	Stream: connected ──Bulk, PingPong──▶ connected ──Close──▶ gone
//	Program: started ──Ask──▶ started ──Close──▶ ended
//
// It relies on loopback TCP, epoll(7), and on the programs' own output formats where they are installed: iperf3 3.x,
// ucx_perftest of UCX 1.x, fi_pingpong of libfabric 1.x.
//
// # What each baseline does, and why it is fair
//
// Common to all that are ours: two processes, the measuring one and the source process; one thread at each end of a stream;
// sockets over 127.0.0.1 with TCP_NODELAY, buffers left to the kernel's tuning, and reno, which the engine takes on one host
// as well (Reno); memory off the Go heap, in huge pages where advice gets them, as the engine's own is (Memory). Each end goes round in WorkingBytes of memory of its own (Offset), block by block, at both ends and in the
// engine's requests alike: 4 MiB, more than a core's cache, so that no side keeps its payload hot. All memory has real content
// (Fill) and was touched before. Samples are made in turns of tens of milliseconds, each behind one that does not count, in an
// order that changes from round to round; a ratio is made of two samples of one round, and the median of the ratios counts.
// Of several baselines the one with the best median over the run is taken, not the best of each round (figures.Best).
//
// Raw loop, bulk (Stream.Bulk): one command of 16 bytes, then the blocks one after the other in one direction, by read(2)
// and write(2) of what is left of a block, without MSG flags or gathered calls, and past Go's scheduler, as the engine calls. "Blocking" waits in epoll_wait(2),
// edge-triggered, after EAGAIN; "spinning" calls again at once. Fair to the engine: same bytes, memory, sockets, threads.
// In the loop's favour: nobody asks for a block, checks a range, or says that it has come; there is one command for a whole
// sample, where the engine answers for each block and begins anew with each submission. In the engine's favour: nothing, but
// that it may have its header and payload in one call. A target below 1 is the price of that and, without direct placement, of
// the two copies of the safe double buffer.
//
// Several raw streams (Streams.Bulk): the same, the blocks shared out, a thread for each end of each stream and a memory of its
// own, of the size that its blocks have together with the others' that of the engine's one range.
//
// Scattered pages (Command.Scattered): readv(2) and writev(2) of 256 pages a call, in the order in which the engine's
// request jumps, over the same pages at both ends: what the copies cost when nobody asks, checks or says where they go.
//
// Raw ping-pong (Stream.PingPong): AskBytes, which is what the engine's request has on the wire, one way, and the payload
// back. Spinning is what a manual engine, driven by its caller, is held against: the server spins, too, as the engine's
// source does, and what the targets of latency are judged by. In tables the blocking one is a baseline, too, and the better of
// both counts: where others want the processors, who spins waits for its turn. PingPongByLane has a thread of its own between caller
// and socket, as an engine with lanes has.
//
// Go net: the same commands by net.Conn and io.ReadFull, a goroutine at each end. gnet: its server with buffers of 1 MiB (64 KiB
// halve its rate), one loop on a locked thread; its client is the raw loop, blocking, which is faster than a client of gnet, and
// asks for each block some blocks ahead (of a large one, some pieces of 1 MiB), since gnet tells no server when its output has left. grpc-go: unary calls and one
// streaming call, windows of 64 MiB, buffers of 1 MiB, a codec that passes bytes through without protobuf, received into the memory
// that they are for.
//
// Programs of others run in a network namespace with reno where that is allowed (Duo), with the options that were best when
// tried here. They move one buffer over and over, which stays in a core's own cache; requests of the engine over one range
// would wait for each other, so that has no match and is in their favour. iperf3: one direction, blocks of 1 MiB of random
// bytes, no sendfile (-Z was slower), only counted, never looked at. ucx_perftest: segments of 1 MiB, which give put at least
// five times the rate of its defaults. fi_pingpong: the provider tcp, endpoint msg, one message there and one back, none ahead,
// both ends spinning; Debian has no other bandwidth test of libfabric. Against the last two the engine may move zeros, as they do.
package baselines
