// Package examples holds one short program per job; go run ./examples/NAME runs one.
//
// It owns nothing itself. Each program owns its engines and memory, ends them on every path, and exits
// with a status other than zero when something is not as it should be.
//
// The programs import the root package and the standard library only, as a user's program would; rdma_peer imports the
// native library for RDMA as well.
//
// There are no states here. Read them in this order:
//
//	tcp_roundtrip → notifications → async_batch → external_host → restart_fencing → hptcp_bulk → hptcp_blocks → rdma_peer
//
// It relies on go build for its one test, which builds and runs them all.
package examples
