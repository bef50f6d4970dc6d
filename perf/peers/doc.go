// Command peers is gnet and grpc-go as perf/orbitbench measures them; it is a module of its own, so that users of the
// library never see their dependencies.
//
//	peers gnet           serves the commands of perf/baselines; prints its address
//	peers grpc           serves blocks over gRPC; prints its address
//	peers grpc-client A  calls the server at A as lines of JSON ask it to
//	peers version        prints the modules that were built in
//
// It owns its sockets, and ends with its standard input. It imports perf/baselines for the commands.
//
//	started ──address──▶ serving ──end of input──▶ ended
//
// It relies on loopback TCP, on gnet's engine with buffers of 1 MiB (its default of 64 KiB halves its rate), and on
// grpc-go with a codec that passes bytes through and with windows that do not bound the rate.
package main
