package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/orbitte/orbitte"
)

// peer is one source as a command sees it: its segment, and what its manifest says.
type peer struct {
	console  *console
	flags    *flags
	engine   *orbitte.Engine
	segment  *orbitte.Segment
	manifest *manifest // nil when it publishes none
}

// connect opens the segment. The caller ends it with close.
func connect(ctx context.Context, c *console, f *flags, endpoint string) (*peer, error) {
	engine, err := f.open(c, orbitte.Config{Limits: orbitte.Limits{PayloadBytes: 64 << 20}})
	if err != nil {
		return nil, err
	}
	p := &peer{console: c, flags: f, engine: engine}
	if err := p.open(ctx, endpoint); err != nil {
		p.close(&err)
		return nil, invalidUsage(err)
	}
	return p, nil
}

func (p *peer) open(ctx context.Context, endpoint string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, p.flags.timeout)
	defer cancel()
	if !p.flags.epoch.IsZero() {
		p.segment, err = p.engine.OpenSegment(ctx, endpoint, p.flags.epoch)
		return err
	}
	if p.segment, err = p.engine.Describe(ctx, endpoint); err == nil {
		p.console.remark("no --epoch given: learned %s from %s, which proves nothing about who answers", p.segment.Epoch(), endpoint)
	}
	return err
}

func (p *peer) close(err *error) { shut(p.engine, err) }

// probesMax bounds how many regions are looked at: a manifest is the last one, or the one before.
const probesMax = 4

// refresh reads the peer's newest manifest: its last readable region that is one. A source that publishes a
// new one meanwhile takes the old one away; then the next round finds the new one.
func (p *peer) refresh(ctx context.Context) (err error) {
	for range 10 {
		if p.manifest, err = p.read(ctx); !errors.Is(err, orbitte.ErrUnknownRegion) {
			return err
		}
		bounded, cancel := context.WithTimeout(ctx, p.flags.timeout)
		err = p.segment.Refresh(bounded)
		cancel()
		if err != nil {
			return err
		}
	}
	return err
}

func (p *peer) read(ctx context.Context) (*manifest, error) {
	regions := p.segment.Regions()
	for i := len(regions) - 1; i >= max(0, len(regions)-probesMax); i-- {
		r := regions[i]
		if !r.Permission.Allows(orbitte.RemoteRead) || r.Length < manifestHeaderBytes {
			continue
		}
		var n uint64
		header, err := p.fetch(ctx, r.Address, manifestHeaderBytes)
		if err == nil {
			n, err = manifestLength(header, r.Length)
		}
		if errors.Is(err, errForeign) {
			continue
		}
		if err != nil {
			return nil, err
		}
		whole, err := p.fetch(ctx, r.Address, n)
		if err != nil {
			return nil, err
		}
		return decodeManifest(whole)
	}
	return nil, errNoManifest
}

// fetch READs a small range into memory of its own.
func (p *peer) fetch(ctx context.Context, address, n uint64) (got []byte, err error) {
	memory, err := orbitte.Allocate(int(n))
	if err != nil {
		return nil, err
	}
	defer memory.Close()
	registration, err := p.engine.Register(memory, 0, n, orbitte.LocalOnly)
	if err != nil {
		return nil, err
	}
	defer p.unregister(registration, &err)
	m := p.mover(orbitte.Read, address, n)
	m.prepare = func(offset, _ uint64) (uint64, error) { return memory.Address() + offset, nil }
	if _, err := m.run(ctx); err != nil {
		return nil, err
	}
	return append([]byte(nil), memory.Bytes()...), nil
}

func (p *peer) mover(op orbitte.Operation, remote, length uint64) *mover {
	return &mover{
		engine: p.engine, segment: p.segment, operation: op, remote: remote, length: length,
		transport: p.flags.carrier(), request: uint64(p.flags.requestSize), timeout: p.flags.timeout,
	}
}

// unregister waits until nothing touches the range any more.
func (p *peer) unregister(r *orbitte.Registration, err *error) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if failed := p.engine.Unregister(ctx, r); failed != nil {
		*err = failed
	}
}

// files reads the manifest, which get and put need.
func (p *peer) files(ctx context.Context) error {
	err := p.refresh(ctx)
	if errors.Is(err, errNoManifest) {
		return &failure{class: errNoManifest, object: p.segment.Endpoint(), known: fmt.Sprintf("it publishes %d regions", len(p.segment.Regions())), remedy: "name an endpoint that orbitte serve printed"}
	}
	return err
}

// find looks a file up, or says what there is.
func (p *peer) find(name string) (*entry, error) {
	f, ok := p.manifest.find(name)
	if !ok {
		const shown = 20
		names := p.manifest.names()
		known := "it has " + strings.Join(names[:min(shown, len(names))], ", ")
		if len(names) > shown {
			known += fmt.Sprintf(" and %d more", len(names)-shown)
		}
		return nil, &failure{class: errNoFile, object: name, known: known, remedy: "name one of them"}
	}
	return f, nil
}

// kernel says what drives the engine.
func (p *peer) kernel() string { return p.engine.Stats().Kernel }
