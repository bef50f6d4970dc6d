// Package netproto says what the bytes of the control protocol mean (SPEC W-1 to W-16): requests,
// replies, notification bodies and the descriptor with its trailers, version 19. All integers are
// unsigned and big-endian. It encodes, decodes and checks; it does no input or output, reads no clock
// and knows nothing of registered memory.
//
// It owns nothing. Encoders append to a slice of the caller, decoders copy out of one and keep no
// reference to it, so a buffer may be reused as soon as a call returns. A Reader holds the bytes of one
// header between two receives and is owned by its connection.
//
// It imports the standard library only, and none of this module's packages.
//
// The states of a Reader, which gathers one fixed header from a stream:
//
//	Begin ----> empty ----> partial ----> complete ----> Begin of the next header
//	              |            |             |
//	           Filled        Filled    Request or Reply
//	              |            |
//	              +-- Check: first wrong byte of magic or version --> refused, the stream is retired
//
// Everything else is a pure function: bytes in, value or *FrameError out. No decoder panics, none
// allocates from a length it has not compared with the bytes at hand, and encoding an accepted value
// again gives the same bytes (W-15).
//
// It relies on nothing outside. Golden vectors in testdata/golden freeze every frame (W-16): the
// encoder writes them, the decoder and an independent reader driven by field tables check them.
package netproto
