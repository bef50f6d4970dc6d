package main

import (
	"context"
	"io"

	"google.golang.org/grpc"

	"github.com/orbitte/orbitte/perf/baselines"
)

const (
	windowBytes  = 64 << 20
	messageBytes = baselines.BlockBytesMax + 1024
	serviceName  = "orbitbench.Blocks"
)

// blocks is the service: Get and Put are unary, Pull and Push streams of blocks.
type blocks struct{ memory []byte }

type blockServer interface {
	get(*block) (*block, error)
	put(*block) (*block, error)
}

func (b *blocks) get(ask *block) (*block, error) {
	c, err := baselines.Decode(ask.bytes)
	if err != nil {
		return nil, err
	}
	return &block{baselines.Part(b.memory, uint64(c.Count), c.Size)}, nil
}

func (b *blocks) put(*block) (*block, error) { return &block{}, nil }

func unary(name string, do func(blockServer, *block) (*block, error)) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: func(server any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var ask block
		if err := decode(&ask); err != nil {
			return nil, err
		}
		return do(server.(blockServer), &ask)
	}}
}

func (b *blocks) pull(stream grpc.ServerStream) error {
	var ask block
	if err := stream.RecvMsg(&ask); err != nil {
		return err
	}
	c, err := baselines.Decode(ask.bytes)
	if err != nil {
		return err
	}
	for i := range uint64(c.Count) {
		if err := stream.SendMsg(&block{baselines.Part(b.memory, i, c.Size)}); err != nil {
			return err
		}
	}
	return nil
}

func (b *blocks) push(stream grpc.ServerStream) error {
	var in block
	for {
		if err := stream.RecvMsg(&in); err == io.EOF {
			return stream.SendMsg(&block{})
		} else if err != nil {
			return err
		}
	}
}

func serveGRPC() error {
	listener, err := baselines.ListenNet()
	if err != nil {
		return err
	}
	var memory baselines.Memory // kept until the process ends: calls may still send from it
	service := &blocks{memory.Hold(baselines.BlockBytesMax)}
	server := grpc.NewServer(grpc.ForceServerCodecV2(bytesCodec{}), grpc.InitialWindowSize(windowBytes), grpc.InitialConnWindowSize(windowBytes),
		grpc.MaxRecvMsgSize(messageBytes), grpc.MaxSendMsgSize(messageBytes), grpc.ReadBufferSize(bufferBytes), grpc.WriteBufferSize(bufferBytes))
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: serviceName, HandlerType: (*blockServer)(nil),
		Methods: []grpc.MethodDesc{unary("Get", blockServer.get), unary("Put", blockServer.put)},
		Streams: []grpc.StreamDesc{
			{StreamName: "Pull", ServerStreams: true, Handler: func(s any, stream grpc.ServerStream) error { return s.(*blocks).pull(stream) }},
			{StreamName: "Push", ClientStreams: true, Handler: func(s any, stream grpc.ServerStream) error { return s.(*blocks).push(stream) }},
		},
	}, service)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	return baselines.Serve(listener.Addr().String(), nothing)
}
