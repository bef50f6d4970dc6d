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
package baselines
