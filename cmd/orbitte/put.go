package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"os"
	"time"

	"github.com/orbitte/orbitte"
)

const putHelp = `usage: orbitte put --to ENDPOINT [flags] FILE NAME

WRITEs FILE into the file NAME that orbitte serve --writable publishes. Both must have the same size: a
registered range neither grows nor shrinks. Then the source hashes what it has, brings it to its file
system and publishes the SHA-256; put succeeds only if it equals that of the bytes it read from FILE.

A put is no transaction: one that fails may leave NAME changed in part; the error says so. Do not
put to a file while others get it; they would see their SHA-256 differ.

  --to ENDPOINT        the source of the file to change, host:port
` + requesterHelp + moverHelp + transportHelp + engineHelp + `
exit status: 0 the source has the bytes, 1 something failed, 2 wrong command line
`

func put(ctx context.Context, c *console, args []string) (err error) {
	f := newFlags("put")
	f.mover()
	to := f.String("to", "", "")
	operands, err := f.read(c, args)
	switch {
	case err != nil:
		return err
	case *to == "":
		return usage("--to is missing: the endpoint that orbitte serve --writable printed")
	case len(operands) != 2:
		return usage("give FILE and NAME, not %d operands", len(operands))
	}
	file, err := openServed(operands[0], false)
	if err != nil {
		return err
	}
	defer file.file.Close()
	p, err := connect(ctx, c, f, *to)
	if err != nil {
		return err
	}
	defer p.close(&err)
	if err := p.files(ctx); err != nil {
		return err
	}
	target, err := p.find(operands[1])
	if err != nil {
		return err
	}
	const untouched = "nothing was sent"
	switch {
	case !target.Writable:
		return &failure{class: orbitte.ErrPermission, object: target.Name, cause: errors.New("the source serves it read-only"), known: untouched, remedy: "serve it with --writable"}
	case target.Size != file.Size:
		return &failure{class: errRefused, object: target.Name, cause: fmt.Errorf("%s has %d bytes, the source's file %d", operands[0], file.Size, target.Size), known: untouched,
			remedy: fmt.Sprintf("give the file at the source this size (truncate -s %d) and serve it again", file.Size)}
	}
	done, err := p.send(ctx, file, target)
	if err != nil {
		return err
	}
	return p.show([]moved{done})
}

// sender reads a file into two halves of one memory, one batch each.
type sender struct {
	file   *os.File
	memory *orbitte.Memory
	hash   hash.Hash
	turn   uint64
}

// prepare reads and hashes the next part; the half that it takes belongs to a batch that has ended.
func (s *sender) prepare(offset, n uint64) (uint64, error) {
	half := s.turn % batchesInFlight * windowBytes
	s.turn++
	part := s.memory.Bytes()[half : half+n]
	if _, err := s.file.ReadAt(part, int64(offset)); err != nil {
		return 0, &failure{class: errLocal, object: s.file.Name(), cause: err, remedy: "send a file that nobody changes"}
	}
	s.hash.Write(part)
	return s.memory.Address() + half, nil
}

// send WRITEs the bytes and has the source prove them.
func (p *peer) send(ctx context.Context, file *served, target *entry) (moved, error) {
	began := time.Now()
	s := &sender{file: file.file, hash: sha256.New()}
	sent, carrier, err := p.sendBytes(ctx, s, target)
	stands := fmt.Sprintf("%d of %d bytes were acknowledged; %s may be changed in part", sent, target.Size, target.Name)
	if err != nil {
		return moved{}, &failure{object: target.Name, cause: interrupted(err), known: stands}
	}
	seconds := time.Since(began).Seconds()
	at, err := p.recheck(ctx, target)
	if err != nil {
		return moved{}, &failure{object: target.Name, cause: interrupted(err), known: "every byte was acknowledged, but the source's SHA-256 is not known"}
	}
	own := digest(s.hash.Sum(nil))
	if at != own {
		return moved{}, &failure{class: errDiffers, object: target.Name, cause: fmt.Errorf("%s was sent, the source has %s", own, at), known: target.Name + " is changed and wrong",
			remedy: "put it again while nobody else writes it; if it differs again, something between damages it"}
	}
	return moved{target.Name, "", target.Size, seconds, float64(target.Size) / seconds, carrier, p.kernel(), own}, nil
}

func (p *peer) sendBytes(ctx context.Context, s *sender, target *entry) (sent uint64, carrier string, err error) {
	if target.Size == 0 {
		return 0, "", nil
	}
	if s.memory, err = orbitte.Allocate(batchesInFlight * windowBytes); err != nil {
		return 0, "", err
	}
	defer s.memory.Close()
	registration, err := p.engine.Register(s.memory, 0, uint64(s.memory.Len()), orbitte.LocalOnly)
	if err != nil {
		return 0, "", err
	}
	defer p.unregister(registration, &err)
	shown := newMeter(p.console.remarks, p.flags.progress, target.Name, target.Size)
	defer shown.end()
	m := p.mover(orbitte.Write, target.Address, target.Size)
	m.prepare = s.prepare
	m.landed = func(_, n uint64) { shown.add(n) }
	sent, err = m.run(ctx)
	return sent, m.carrier, err
}

// hashRateMin is what a source's disk and processor are trusted to do, in bytes per second.
const hashRateMin = 50 << 20

// recheck has the source hash the file again and waits for its answer in the manifest.
func (p *peer) recheck(ctx context.Context, target *entry) (digest, error) {
	id := make([]byte, 16)
	rand.Read(id)
	asked := recheck{ID: fmt.Sprintf("%x", id), Name: target.Name}
	message, err := json.Marshal(asked)
	if err != nil {
		return digest{}, err
	}
	bounded, cancel := context.WithTimeout(ctx, p.flags.timeout+time.Duration(target.Size/hashRateMin)*time.Second)
	defer cancel()
	if _, err := p.engine.SendNotification(bounded, p.segment, orbitte.Notification{Name: recheckName, Message: string(message)}); err != nil {
		return digest{}, err
	}
	pause := 5 * time.Millisecond
	for {
		select {
		case <-time.After(pause):
		case <-bounded.Done():
			return digest{}, &failure{class: orbitte.ErrDeadline, cause: errors.New("the source has not published its SHA-256 yet"), remedy: "look again with orbitte describe, or give a longer --timeout"}
		}
		pause = min(2*pause, 250*time.Millisecond)
		if err := p.segment.Refresh(bounded); err != nil {
			return digest{}, err
		}
		if err := p.refresh(bounded); err != nil {
			return digest{}, err
		}
		for _, c := range p.manifest.Checks {
			if c.ID != asked.ID {
				continue
			}
			if c.Error != "" {
				return digest{}, &failure{class: errRefused, cause: fmt.Errorf("the source says: %.200q", c.Error), remedy: "look at the source's output"}
			}
			return c.SHA256, nil
		}
	}
}
