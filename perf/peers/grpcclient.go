package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/orbitte/orbitte/perf/baselines"
)

// client calls one server over one connection, as a Go program would.
type client struct {
	conn   *grpc.ClientConn
	memory []byte
}

func clientGRPC(address string) error {
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(bytesCodec{}), grpc.MaxCallRecvMsgSize(messageBytes), grpc.MaxCallSendMsgSize(messageBytes)),
		grpc.WithInitialWindowSize(windowBytes), grpc.WithInitialConnWindowSize(windowBytes),
		grpc.WithReadBufferSize(bufferBytes), grpc.WithWriteBufferSize(bufferBytes), grpc.WithContextDialer(baselines.Dial))
	if err != nil {
		return err
	}
	defer conn.Close()
	var memory baselines.Memory
	defer memory.Close()
	c := &client{conn, memory.Hold(baselines.BlockBytesMax)}
	return baselines.Serve("ready", c.answer)
}

func (c *client) answer(line []byte) (any, error) {
	var ask baselines.GRPCAsk
	if err := json.Unmarshal(line, &ask); err != nil {
		return nil, err
	}
	var answer baselines.GRPCAnswer
	start := time.Now()
	var err error
	switch {
	case ask.What == baselines.Pull && ask.Stream:
		err = c.pull(ask)
	case ask.What == baselines.Push && ask.Stream:
		err = c.push(ask)
	case ask.What == baselines.Pull || ask.What == baselines.PingPong:
		err = c.unary("Get", ask, &answer)
	case ask.What == baselines.Push:
		err = c.unary("Put", ask, &answer)
	default:
		err = fmt.Errorf("order %d is unknown", ask.What)
	}
	answer.Nanos = time.Since(start).Nanoseconds()
	return answer, err
}

func (c *client) unary(method string, ask baselines.GRPCAsk, answer *baselines.GRPCAnswer) error {
	for i := range uint64(ask.Count) {
		out := block{baselines.Command{What: baselines.Pull, Count: uint32(i), Size: ask.Size}.Encode()}
		in := block{baselines.Part(c.memory, i, ask.Size)}
		if ask.What == baselines.Push {
			out, in = in, block{}
		}
		start := time.Now()
		if err := c.conn.Invoke(context.Background(), "/"+serviceName+"/"+method, &out, &in); err != nil {
			return err
		}
		if ask.What == baselines.PingPong {
			answer.Times = append(answer.Times, time.Since(start).Nanoseconds())
		}
	}
	return nil
}

func (c *client) pull(ask baselines.GRPCAsk) error {
	stream, err := c.conn.NewStream(context.Background(), &grpc.StreamDesc{ServerStreams: true}, "/"+serviceName+"/Pull")
	if err != nil {
		return err
	}
	if err := stream.SendMsg(&block{baselines.Command{What: baselines.Pull, Count: ask.Count, Size: ask.Size}.Encode()}); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for i := range uint64(ask.Count) {
		if err := stream.RecvMsg(&block{baselines.Part(c.memory, i, ask.Size)}); err != nil {
			return err
		}
	}
	return nil
}

func (c *client) push(ask baselines.GRPCAsk) error {
	stream, err := c.conn.NewStream(context.Background(), &grpc.StreamDesc{ClientStreams: true}, "/"+serviceName+"/Push")
	if err != nil {
		return err
	}
	for i := range uint64(ask.Count) {
		if err := stream.SendMsg(&block{baselines.Part(c.memory, i, ask.Size)}); err != nil {
			return err
		}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	return stream.RecvMsg(&block{})
}
