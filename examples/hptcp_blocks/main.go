package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/orbitte/orbitte"
)

const (
	blockBytes = 16 << 10
	blocks     = 4096 // of each pool
	wanted     = 1500 // of one conversation

	headBytes, headsPerToken, tokens = 128, 8, 2048
)

func main() {
	log.SetFlags(0)
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

// node is one process: its engine and its pool.
type node struct {
	engine *orbitte.Engine
	pool   *orbitte.Memory
	shown  *orbitte.Registration
}

func open(permission orbitte.Permission) (*node, error) {
	e, err := orbitte.Open(orbitte.Config{HPTCP: &orbitte.HPTCPConfig{}})
	if err != nil {
		return nil, err
	}
	pool, err := orbitte.Allocate(blocks * blockBytes)
	if err != nil {
		return nil, err
	}
	r, err := e.Register(pool, 0, blocks*blockBytes, permission, orbitte.OverHPTCP)
	return &node{e, pool, r}, err
}

func (n *node) close(ctx context.Context) {
	n.engine.Unregister(ctx, n.shown) // waits until nothing touches the pool any more
	n.engine.Close(ctx)
	n.pool.Close()
}

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	prefill, err := open(orbitte.RemoteRead)
	if err != nil {
		return err
	}
	defer prefill.close(ctx)
	decode, err := open(orbitte.LocalOnly)
	if err != nil {
		return err
	}
	defer decode.close(ctx)
	for i := range blocks {
		copy(prefill.pool.Bytes()[i*blockBytes:], bytes.Repeat([]byte(fmt.Sprintf("block %5d; ", i)), blockBytes/13))
	}
	segment, err := decode.engine.OpenSegment(ctx, prefill.engine.Endpoint(), prefill.engine.Epoch())
	if err != nil {
		return err
	}
	defer decode.engine.CloseSegment(ctx, segment)
	request := orbitte.Request{
		Operation: orbitte.Read, Transport: orbitte.TransportHPTCP, Segment: segment, Local: decode.pool.Address(), Remote: prefill.shown.Address(),
	}
	return errors.Join(conversation(ctx, prefill, decode, request), head(ctx, prefill, decode, request))
}

// conversation fetches the blocks of one block table into free blocks of the own pool.
func conversation(ctx context.Context, from, to *node, request orbitte.Request) error {
	table := &orbitte.Pages{Size: blockBytes}
	for i := range uint32(wanted) {
		table.Remote = append(table.Remote, i*2741%blocks) // where prefill has them
		table.Local = append(table.Local, i*17%blocks)     // where this pool has room
	}
	request.Pages = table
	report, err := to.engine.SubmitAndWait(ctx, []orbitte.Request{request})
	if err != nil {
		return err
	}
	for i := range table.Local {
		if !bytes.Equal(to.pool.Bytes()[table.Local[i]*blockBytes:][:blockBytes], from.pool.Bytes()[table.Remote[i]*blockBytes:][:blockBytes]) {
			return fmt.Errorf("block %d differs", i)
		}
	}
	fmt.Printf("%d scattered blocks, %d bytes over %s in one request\n", wanted, report.Bytes, report.Path)
	return nil
}

// head fetches one head's slice of every token: rows of a matrix, packed on this side.
func head(ctx context.Context, from, to *node, request orbitte.Request) error {
	const row = headBytes * headsPerToken
	request.Remote += 3 * headBytes
	request.Strides = &orbitte.Strides{Length: headBytes, Count: tokens, Local: headBytes, Remote: row} // packed on this side
	report, err := to.engine.SubmitAndWait(ctx, []orbitte.Request{request})
	if err != nil {
		return err
	}
	for i := range tokens {
		if !bytes.Equal(to.pool.Bytes()[i*headBytes:][:headBytes], from.pool.Bytes()[i*row+3*headBytes:][:headBytes]) {
			return fmt.Errorf("head 3 of token %d differs", i)
		}
	}
	fmt.Printf("head 3 of %d tokens, %d bytes, packed into one piece\n", tokens, report.Bytes)
	return nil
}
