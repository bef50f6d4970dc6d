// Command orbitte is the operator's tool: it publishes files as registered memory and moves them between
// processes and hosts.
//
//	orbitte serve FILE…                     publish files
//	orbitte get --from ENDPOINT NAME…       READ files from a peer
//	orbitte put --to ENDPOINT FILE NAME     WRITE a file into a peer's file
//	orbitte describe ENDPOINT               show what a peer publishes
//	orbitte devices                         show the RDMA devices, or what is missing
//	orbitte version                         show the versions of module, Go and protocol
//
// It owns the files it opens, their mappings and one engine; each command ends them in the reverse order
// of their making. A received file appears under its name only after its SHA-256 was checked; until then
// it has a temporary name beside it, which is removed on failure, and by the next get after a kill.
//
// It imports the root package, verbs and its native library for devices (loaded when asked for; a tool built without cgo
// says so), netproto for the protocol's version, x/sys/unix for mappings and zerolog for --verbose.
//
//	serve:  load ──▶ publish ──▶ serving ──signal──▶ close ──▶ msync
//	get:    open ──▶ manifest ──▶ READ into the temporary file ──▶ SHA-256 ──▶ rename
//	put:    open ──▶ manifest ──▶ WRITE ──▶ notify ──▶ the source hashes and publishes ──▶ compare
//
// Files are found through the manifest: one more published region, the last one, with a magic, a SHA-256
// of itself and JSON (manifest.go). It relies on mmap(2), fallocate(2) and, for --writable, msync(2).
// Exit status: 0 everything done, 1 something failed, 2 wrong command line.
package main
