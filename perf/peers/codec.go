package main

import "google.golang.org/grpc/mem"

// block is a message that is its bytes: no protobuf, which would only add to gRPC's time.
type block struct{ bytes []byte }

// bytesCodec passes bytes through: sent without a copy, received with one, into the memory they are for.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "orbitbench-bytes" }

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.(*block).bytes)}, nil
}

func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	b := v.(*block)
	if len(b.bytes) != data.Len() {
		b.bytes = make([]byte, data.Len())
	}
	data.CopyTo(b.bytes)
	return nil
}
