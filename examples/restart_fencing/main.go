package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"time"

	"github.com/orbitte/orbitte"
)

const size = 64

func main() {
	log.SetFlags(0)
	act := run
	if len(os.Args) == 4 && os.Args[1] == "source" {
		act = serve
	}
	if err := act(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	requester, err := orbitte.Open(orbitte.Config{})
	if err != nil {
		return err
	}
	defer requester.Close(ctx)
	local, err := orbitte.Allocate(size)
	if err != nil {
		return err
	}
	defer local.Close()
	if _, err := requester.Register(local, 0, size, orbitte.LocalOnly); err != nil {
		return err
	}

	old, err := start("127.0.0.1:0", "the first life")
	if err != nil {
		return err
	}
	defer old.kill()
	segment, text, err := old.read(ctx, requester, local)
	if err != nil {
		return err
	}
	fmt.Printf("epoch %v answers: %s\n", segment.Epoch(), text)

	// SIGKILL: the source says no goodbye. Another process takes the same port.
	old.kill()
	renewed, err := start(old.endpoint, "the second life")
	if err != nil {
		return err
	}
	defer renewed.kill()

	// The old segment may find an open port, and even the same address behind it. It gets nothing: the source
	// compares the epoch of every request.
	clear(local.Bytes())
	request := orbitte.Request{Operation: orbitte.Read, Segment: segment, Local: local.Address(), Remote: old.address, Length: size}
	for { // a request that meets the dying connection fails as disconnected: a READ may be submitted again
		_, err = requester.SubmitAndWait(ctx, []orbitte.Request{request})
		if !errors.Is(err, orbitte.ErrDisconnected) {
			break
		}
	}
	if !errors.Is(err, orbitte.ErrStaleEpoch) || [size]byte(local.Bytes()) != [size]byte{} {
		return fmt.Errorf("the old authority was not refused: %v", err)
	}
	fmt.Printf("the old segment is refused: %v\n", orbitte.ErrStaleEpoch)
	if _, err := requester.OpenSegment(ctx, renewed.endpoint, old.epoch); !errors.Is(err, orbitte.ErrStaleEpoch) {
		return fmt.Errorf("the old epoch was not refused: %v", err)
	}

	// The new epoch comes from the new source's owner, not from the network.
	segment, text, err = renewed.read(ctx, requester, local)
	if err != nil || text != "the second life" {
		return fmt.Errorf("the new epoch reads %q: %v", text, err)
	}
	fmt.Printf("epoch %v answers: %s\n", segment.Epoch(), text)
	return nil
}

// source is a child process and what it handed out.
type source struct {
	process  *exec.Cmd
	endpoint string
	epoch    orbitte.Epoch
	address  uint64
}

func start(bind, text string) (*source, error) {
	s := &source{process: exec.Command(os.Args[0], "source", bind, text)}
	s.process.Stderr = os.Stderr
	out, err := s.process.StdoutPipe()
	if err == nil {
		err = s.process.Start()
	}
	if err != nil {
		return nil, err
	}
	var epoch string
	if _, err = fmt.Fscan(out, &s.endpoint, &epoch, &s.address); err == nil {
		s.epoch, err = orbitte.ParseEpoch(epoch)
	}
	return s, err
}

func (s *source) kill() {
	s.process.Process.Kill()
	s.process.Wait()
}
