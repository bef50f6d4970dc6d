package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/orbitte/orbitte"
)

const getHelp = `usage: orbitte get --from ENDPOINT [flags] NAME… [-o PATH]
       orbitte get --from ENDPOINT [flags] --all [-o FOLDER]

READs files that orbitte serve publishes. Each is received into a temporary file beside its
destination, which is the registered memory itself, so that files of any size need little memory. It
is renamed into place, over a file of that name, after its SHA-256 was found to be what the source
published; a failure leaves no output file. A file that is replaced hands its permission bits on; a new
one has those that the umask leaves.

Only a regular file is replaced. A target that is a folder, a device, a pipe, a symbolic link (no link is
followed, but to the folder of -o) or a read-only file is refused before a byte moves, and so is a PATH
whose folder is missing (one that ends with / is made) or is no folder.

The temporary file is .NAME.orbitte-PID-…; a get that was killed leaves it behind. It is safe to delete
once that process is gone, and the next get of the same target does so.

  --from ENDPOINT      the source, host:port
  --all                every file that the source publishes
  -o PATH              one NAME: the file or an existing folder (./NAME); several NAMEs or --all: the
                       folder, made if it is missing (.)
  --sync               wait for the disk before the rename
` + requesterHelp + moverHelp + transportHelp + engineHelp + `
exit status: 0 every file arrived and was verified, 1 something failed (files before it are in
place), 2 wrong command line or unfit target
`

func get(ctx context.Context, c *console, args []string) (err error) {
	f := newFlags("get")
	f.mover()
	from := f.String("from", "", "")
	all := f.Bool("all", false, "")
	destination := f.String("o", "", "")
	durable := f.Bool("sync", false, "")
	names, err := f.read(c, args)
	switch {
	case err != nil:
		return err
	case *from == "":
		return usage("--from is missing: the endpoint that orbitte serve printed")
	case *all && len(names) > 0:
		return usage("--all and names exclude each other")
	case !*all && len(names) == 0:
		return usage("name files, or give --all")
	case *destination == "-":
		return usage("-o - is refused: a file is checked before anybody sees it, so get writes to no pipe; give a path and read the file when get says ok (./- names a file called -)")
	}
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return usage("%s is named twice", name)
		}
	}
	folder := *all || len(names) > 1
	if err := checkPlace(*destination, names, folder); err != nil { // what can be told before the source is asked
		return err
	}
	p, err := connect(ctx, c, f, *from)
	if err != nil {
		return err
	}
	defer p.close(&err)
	if err := p.files(ctx); err != nil {
		return err
	}
	if *all {
		names = p.manifest.names()
	}
	var wanted []*entry // all names are looked up before the first byte moves
	for _, name := range names {
		file, err := p.find(name)
		if err != nil {
			return err
		}
		wanted = append(wanted, file)
	}
	paths, err := place(*destination, names, folder)
	if err != nil {
		return err
	}
	return p.getAll(ctx, wanted, paths, *durable)
}

// isFolder says whether the destination is, or will be, a folder to put files into.
func isFolder(destination string, folder bool) bool {
	info, err := os.Stat(destination)
	return folder || destination == "" || err == nil && info.IsDir() || strings.HasSuffix(destination, "/")
}

// target says where a file of a name goes.
func target(destination, name string, folder bool) string {
	if isFolder(destination, folder) {
		return filepath.Join(destination, name)
	}
	return destination
}

// checkPlace admits a destination at which each file of the names could be made or replaced.
func checkPlace(destination string, names []string, folder bool) error {
	var err error
	if isFolder(destination, folder) {
		err = checkFolder(filepath.Join(destination, "."), true)
	} else {
		err = checkFolder(filepath.Dir(destination), false)
	}
	for _, name := range names {
		if err == nil {
			err = checkTarget(target(destination, name, folder))
		}
	}
	return err
}

// place says where each file goes, once all places were found fit, and makes their folder.
func place(destination string, names []string, folder bool) (paths []string, err error) {
	if err := checkPlace(destination, names, folder); err != nil {
		return nil, err
	}
	for _, name := range names {
		paths = append(paths, target(destination, name, folder))
	}
	if folder || strings.HasSuffix(destination, "/") {
		if err := os.MkdirAll(filepath.Join(destination, "."), 0o777); err != nil {
			return nil, &failure{object: destination, cause: err, known: "no file was received", remedy: remedyOf(err)}
		}
	}
	sweep(paths)
	return paths, nil
}

// getAll gets one file after the other and shows those that arrived, also when a later one fails.
func (p *peer) getAll(ctx context.Context, wanted []*entry, paths []string, durable bool) error {
	var done []moved
	var failed error
	for i, file := range wanted {
		m, err := p.getOne(ctx, file, paths[i], durable)
		if err != nil {
			failed = err
			break
		}
		done = append(done, m)
	}
	if p.flags.json && failed != nil {
		p.console.done = done
		return failed
	}
	if err := p.show(done); err != nil {
		return err
	}
	return failed
}

// show prints what was moved and verified.
func (p *peer) show(done []moved) error {
	if p.flags.json {
		p.console.result = struct {
			Files []moved `json:"files"`
		}{append([]moved{}, done...)}
		p.console.done = done
		return nil
	}
	if len(done) == 0 {
		return nil
	}
	_, err := io.WriteString(p.console.out, movedTable(done))
	return err
}

// getOne READs one file, verifies it and puts it into place.
func (p *peer) getOne(ctx context.Context, file *entry, path string, durable bool) (moved, error) {
	began := time.Now()
	out, err := createOutput(path, file.Size)
	if err != nil {
		return moved{}, &failure{class: errLocal, object: file.Name, cause: err, known: "nothing of it was received; no output file was written", remedy: remedyOf(err)}
	}
	var carrier string
	var arrived uint64
	hash := sha256.New()
	if file.Size > 0 {
		arrived, carrier, err = p.receive(ctx, file, out, hash.Write)
	}
	if err == nil && [sha256.Size]byte(hash.Sum(nil)) != file.SHA256 {
		err = &failure{class: errDiffers, cause: fmt.Errorf("the source published %s, %x arrived", file.SHA256, hash.Sum(nil)),
			remedy: "get it again; if it differs again, the file is being changed at the source, or something between damages it"}
	}
	if err == nil {
		err = out.commit(durable)
	}
	if err != nil {
		out.discard(!errors.Is(err, orbitte.ErrUnquiesced))
		return moved{}, &failure{object: file.Name, cause: interrupted(err), known: fmt.Sprintf("%d of %d bytes arrived; no output file was written", arrived, file.Size)}
	}
	seconds := time.Since(began).Seconds()
	return moved{file.Name, path, file.Size, seconds, float64(file.Size) / seconds, carrier, p.kernel(), file.SHA256}, nil
}

// receive moves a file's bytes into the output and through hash.
func (p *peer) receive(ctx context.Context, file *entry, out *output, hash func([]byte) (int, error)) (arrived uint64, carrier string, err error) {
	memory, err := out.mapping.adopt()
	if err != nil {
		return 0, "", err
	}
	defer memory.Close()
	registration, err := p.engine.Register(memory, 0, file.Size, orbitte.LocalOnly)
	if err != nil {
		return 0, "", err
	}
	defer p.unregister(registration, &err)
	shown := newMeter(p.console.remarks, p.flags.progress, file.Name, file.Size)
	defer shown.end()
	m := p.mover(orbitte.Read, file.Address, file.Size)
	m.prepare = func(offset, n uint64) (uint64, error) {
		out.mapping.populate(offset, n)
		return memory.Address() + offset, nil
	}
	m.landed = func(offset, n uint64) {
		hash(out.mapping.bytes[offset : offset+n])
		shown.add(n)
	}
	arrived, err = m.run(ctx)
	return arrived, m.carrier, err
}
