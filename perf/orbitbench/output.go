package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/perf/baselines"
	"github.com/orbitte/orbitte/perf/figures"
	"github.com/orbitte/orbitte/perf/meter"
)

// output collects a run, and writes its lines as they come, so that an end in the middle loses nothing.
type output struct {
	base string // without extension; empty: nothing is written
	file *os.File
	run  figures.Run
}

func newOutput(path string) (*output, error) {
	o := &output{}
	if path == "" {
		return o, nil
	}
	o.base = strings.TrimSuffix(strings.TrimSuffix(path, ".jsonl"), ".html")
	if info, err := os.Stat(o.base); strings.HasSuffix(o.base, "/") || o.base == "" || err == nil && info.IsDir() {
		return nil, wrong("-out %s names a folder; name a file in it, without .jsonl", path)
	}
	if info, err := os.Stat(filepath.Dir(o.base)); err != nil || !info.IsDir() {
		return nil, wrong("-out %s: %s is no folder; make it first (mkdir -p), or name a file in one that is there", path, filepath.Dir(o.base))
	}
	var err error
	o.file, err = os.OpenFile(o.base+".jsonl", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, os.ErrExist) {
		return nil, wrong("-out %s: %s.jsonl is there, and results are never written over; take another name, or remove it", path, o.base)
	}
	return o, err
}

// abandon takes the empty file away that a run leaves which did not begin.
func (o *output) abandon() error {
	if o.file == nil {
		return nil
	}
	return errors.Join(o.file.Close(), os.Remove(o.base+".jsonl"))
}

// note writes the head, once it is known what is there.
func (o *output) note(b *bench, peersErr error) {
	versions := map[string]string{}
	if peersErr == nil {
		versions = baselines.PeersVersions(b.peers.path)
	}
	for name, module := range baselines.PeersModules {
		if o.run.Machine.Peers[name] = versions[module]; peersErr != nil {
			o.run.Machine.Peers[name] = peersErr.Error()
		}
	}
	o.run.Machine.Kernel, o.run.Machine.Uncounted = b.used, uncounted(b.brief)
	if o.file != nil {
		if err := figures.WriteMachine(o.file, &o.run.Machine); err != nil {
			fmt.Fprintln(os.Stderr, "orbitbench:", err)
		}
	}
}

// uncounted says why system calls will not be counted; nothing when they will.
func uncounted(brief bool) string {
	if brief {
		return "not in a check: counting makes every call slower"
	}
	m := meter.Start()
	m.Stop()
	if err := m.Why(); err != nil {
		return err.Error()
	}
	return ""
}

func (o *output) cells(cells []*figures.Cell) error {
	o.run.Cells = append(o.run.Cells, cells...)
	for _, c := range cells {
		if o.file == nil {
			break
		}
		if err := figures.WriteCell(o.file, c); err != nil {
			return err
		}
	}
	return nil
}

func (o *output) target(t figures.Target) error {
	o.run.Targets = append(o.run.Targets, t)
	if o.file == nil {
		return nil
	}
	return figures.WriteTarget(o.file, &t)
}

// finish writes the last line and the page.
func (o *output) finish(b *bench, end figures.End) error {
	if why := o.run.Machine.Uncounted; why != "" && !b.brief {
		fmt.Println("system calls are not counted:", why)
	}
	if o.run.End = &end; o.file == nil {
		return nil
	}
	if err := errors.Join(figures.WriteEnd(o.file, &end), o.file.Close()); err != nil {
		return err
	}
	fmt.Printf("written: %s.jsonl, %s.html\n", o.base, o.base)
	return writePage(o.base+".html", &o.run)
}

func writePage(path string, run *figures.Run) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := figures.WriteHTML(file, run); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

func startProfile(path string) (stop func(), err error) {
	if path == "" {
		return func() {}, nil
	}
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, err
	}
	return func() { pprof.StopCPUProfile(); file.Close() }, nil
}
