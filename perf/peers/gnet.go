package main

import (
	"context"
	"fmt"
	"net"

	"github.com/panjf2000/gnet/v2"

	"github.com/orbitte/orbitte/perf/baselines"
)

// bufferBytes is gnet's read and write buffer: with its default of 64 KiB it has half the rate.
const bufferBytes = 1 << 20

type gnetServer struct {
	gnet.BuiltinEventEngine
	engine  gnet.Engine
	address string
	ready   chan struct{}
}

// gnetConn is one connection's state: the command under way and what is left of it.
type gnetConn struct {
	command baselines.Command
	left    uint64 // Push: bytes; PingPong: round trips
	done    uint64 // Push: bytes so far
	memory  baselines.Memory
	block   []byte // of it
}

func (s *gnetServer) OnBoot(engine gnet.Engine) gnet.Action {
	s.engine = engine
	close(s.ready)
	return gnet.None
}

func (s *gnetServer) OnOpen(c gnet.Conn) ([]byte, gnet.Action) {
	_ = baselines.Reno(c.Fd())
	c.SetContext(&gnetConn{})
	return nil, gnet.None
}

func (s *gnetServer) OnClose(c gnet.Conn, _ error) gnet.Action {
	c.Context().(*gnetConn).memory.Close()
	return gnet.None
}

func (s *gnetServer) OnTraffic(c gnet.Conn) gnet.Action {
	state := c.Context().(*gnetConn)
	for {
		moved, err := state.step(c)
		if err != nil {
			return gnet.Close
		}
		if !moved {
			return gnet.None
		}
	}
}

// step does one thing that the buffered bytes allow; false when they allow none.
func (g *gnetConn) step(c gnet.Conn) (bool, error) {
	if g.left == 0 {
		return g.begin(c)
	}
	if g.command.What == baselines.Push {
		return g.store(c)
	}
	if c.InboundBuffered() < baselines.AskBytes {
		return false, nil
	}
	if _, err := c.Discard(baselines.AskBytes); err != nil {
		return false, err
	}
	g.left--
	_, err := c.Write(g.block[:g.command.Size])
	return true, err
}

// begin reads a command. A Pull is answered at once: the client bounds what it asks for ahead, since gnet tells no
// server when its output has left.
func (g *gnetConn) begin(c gnet.Conn) (bool, error) {
	if c.InboundBuffered() < baselines.CommandBytes {
		return false, nil
	}
	head, err := c.Next(baselines.CommandBytes)
	if err != nil {
		return false, err
	}
	if g.command, err = baselines.Decode(head); err != nil {
		return false, err
	}
	g.block = g.memory.Hold(baselines.MemoryBytes(g.command.Size))
	switch g.command.What {
	case baselines.Pull:
		for range g.command.Count {
			if _, err := c.Write(baselines.Part(g.block, g.done, g.command.Size)); err != nil {
				return false, err
			}
			g.done++
		}
	case baselines.Push:
		g.left, g.done = uint64(g.command.Count)*g.command.Size, 0
	case baselines.PingPong:
		g.left = uint64(g.command.Count)
	}
	return true, nil
}

// store copies what has come out of gnet's buffer into the memory it is for.
func (g *gnetConn) store(c gnet.Conn) (bool, error) {
	within := g.done % g.command.Size
	to := baselines.Part(g.block, g.done/g.command.Size, g.command.Size)[within:]
	n := min(uint64(c.InboundBuffered()), uint64(len(to)), g.left)
	if n == 0 {
		return false, nil
	}
	if _, err := c.Read(to[:n]); err != nil {
		return false, err
	}
	g.done += n
	if g.left -= n; g.left == 0 {
		g.done = 0
		_, err := c.Write([]byte{1})
		return true, err
	}
	return true, nil
}

// freeAddress is one that nobody listens on: gnet does not tell which port it got.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

func serveGnet() error {
	address, err := freeAddress()
	if err != nil {
		return err
	}
	s := &gnetServer{address: address, ready: make(chan struct{})}
	ended := make(chan error, 1)
	go func() {
		ended <- gnet.Run(s, "tcp://"+address, gnet.WithNumEventLoop(1), gnet.WithLockOSThread(true), gnet.WithReadBufferCap(bufferBytes),
			gnet.WithWriteBufferCap(bufferBytes), gnet.WithTCPNoDelay(gnet.TCPNoDelay), gnet.WithLogger(silent{}))
	}()
	select {
	case err := <-ended:
		return fmt.Errorf("gnet: %w", err)
	case <-s.ready:
	}
	if err := baselines.Serve(address, nothing); err != nil {
		return err
	}
	return s.engine.Stop(context.Background())
}

// silent is a logger that says nothing: gnet's own writes to standard output, where the address is told.
type silent struct{}

func (silent) Debugf(string, ...any) {}
func (silent) Infof(string, ...any)  {}
func (silent) Warnf(string, ...any)  {}
func (silent) Errorf(string, ...any) {}
func (silent) Fatalf(string, ...any) {}

func nothing([]byte) (any, error) { return nil, nil }
