// Command hptcp_bulk reads 48 MiB over HP-TCP in one request, with a checksum of every chunk, and verifies them.
//
// HP-TCP is off unless both sides set Config.HPTCP, and a range is served over it only when its owner says so. The bytes go
// straight into the registered range: a READ that fails may leave part of it changed, unless the request is Atomic.
package main
