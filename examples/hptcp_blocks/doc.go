// Command hptcp_blocks moves the blocks of a KV cache from the engine that filled them to the one that decodes, over HP-TCP:
// scattered blocks of a pool, and one head of every token, each with one request.
//
// A request with Pages names thousands of blocks at the price of some bytes each. Blocks that a decoder already has stay
// where they are, and others may be moved into the same pool at the same time: only the named ones are held.
package main
