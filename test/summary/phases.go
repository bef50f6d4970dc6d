package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/format"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// staticcheck is pinned, so that a new check never breaks an old commit.
const staticcheck = "honnef.co/go/tools/cmd/staticcheck@v0.8.2"

// skipStatus is the exit status by which a script says that it could not run here.
const skipStatus = 77

// phases of make test, the cheap ones first.
var phases = []struct {
	name string
	step func(*runner, string)
}{
	{"format", (*runner).format},
	{"build-pure", func(r *runner, name string) {
		r.check(name, command{env: []string{"CGO_ENABLED=0"}, args: []string{"go", "build", "./..."}})
	}},
	{"vet", func(r *runner, name string) { r.check(name, goTool("vet", "./...")) }},
	{"vet-arm64", func(r *runner, name string) {
		r.check(name, command{env: []string{"CGO_ENABLED=0", "GOARCH=arm64"}, args: []string{"go", "vet", "./..."}})
	}},
	{"staticcheck", (*runner).staticcheck},
	{"test", func(r *runner, name string) {
		r.test(name, goTool("test", "-json", "-count=1", "-timeout=10m", "./..."))
	}},
	{"planted", func(r *runner, name string) {
		r.test(name, goTool("test", "-json", "-count=1", "-tags=planted", "-timeout=15m", "./test/world/planted"))
	}},
	{"modules", (*runner).modules},
	{"scripts", (*runner).scripts},
	{"vm", (*runner).vm},
	{"race", (*runner).race},
	{"soak", (*runner).soak},
}

// runPhases runs the named phases, or all of them. It reports false when a name is unknown.
func (r *runner) runPhases(only []string) bool {
	var known []string
	for _, p := range phases {
		known = append(known, p.name)
	}
	for _, name := range only {
		if !slices.Contains(known, name) {
			fmt.Fprintf(os.Stderr, "summary: unknown phase %q; there are: %s\n", name, strings.Join(known, " "))
			return false
		}
	}
	r.named = len(only) > 0
	for _, p := range phases {
		if len(only) == 0 || slices.Contains(only, p.name) {
			r.phase(p.name, func(name string) { p.step(r, name) })
		}
	}
	return true
}

// format does what gofmt -l does.
func (r *runner) format(name string) {
	var bad []string
	err := walkGo(".", func(path string) error {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		want, err := format.Source(text)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if !bytes.Equal(text, want) {
			bad = append(bad, path)
		}
		return nil
	})
	for _, path := range bad {
		fmt.Fprintf(r.out, "    %s is not formatted: gofmt -w %s\n", path, path)
	}
	if err != nil {
		fmt.Fprintf(r.out, "    %v\n", err)
	}
	if err != nil || len(bad) > 0 {
		r.counts.fail(name)
		return
	}
	r.counts.pass(1)
}

func walkGo(root string, visit func(string) error) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{".git", "bin", "dist", "testdata"}, entry.Name()):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		return visit(path)
	})
}

// networkFailures are what the go command says when it cannot reach the module proxy.
var networkFailures = []string{
	"dial tcp", "no such host", "connection refused", "i/o timeout", "proxyconnect", "TLS handshake",
	"network is unreachable", "module lookup disabled", "connection reset",
}

// offline is true exactly when the go command said so.
func offline(said string) bool {
	return slices.ContainsFunc(networkFailures, func(sign string) bool { return strings.Contains(said, sign) })
}

func (r *runner) staticcheck(name string) {
	var said strings.Builder
	err := r.lines(goTool("run", staticcheck, "-version"), func(line string) { said.WriteString(line + "\n") })
	if err != nil {
		if offline(said.String()) {
			r.counts.skip(name, "no-network: "+staticcheck+" could not be downloaded")
			return
		}
		fmt.Fprint(r.out, indent(said.String()))
		r.counts.fail(name)
		return
	}
	r.check(name, goTool("run", staticcheck, "./..."))
}

// canRace notes a skip without a C compiler, which the race detector needs; root on Debian may install one.
func (r *runner) canRace(name string) bool {
	if !haveCompiler() && os.Geteuid() == 0 {
		r.install("gcc", "libc6-dev")
	}
	if !haveCompiler() {
		r.counts.skip(name, "no-c-compiler: the race detector links C; install gcc and libc6-dev")
	}
	return haveCompiler()
}

// soak is half a minute of make soak, which runs for as long as it is told.
func (r *runner) soak(name string) {
	if r.canRace(name) {
		r.check(name, command{args: []string{"make", "soak", "MINUTES=0.5"}})
	}
}

func (r *runner) race(name string) {
	if !r.canRace(name) {
		return
	}
	r.test(name, command{env: []string{"CGO_ENABLED=1"}, args: []string{"go", "test", "-json", "-count=1", "-race", "-timeout=15m", "./..."}})
}

func haveCompiler() bool {
	name := os.Getenv("CC")
	if name == "" {
		name = "gcc"
	}
	_, err := exec.LookPath(strings.Fields(name)[0])
	return err == nil
}

// install tries apt; the caller looks whether it helped.
func (r *runner) install(packages ...string) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return
	}
	env := []string{"DEBIAN_FRONTEND=noninteractive"}
	for _, args := range [][]string{
		{"apt-get", "-qq", "update"},
		append([]string{"apt-get", "-qq", "install", "-y", "--no-install-recommends"}, packages...),
	} {
		if _, err := r.show(command{env: env, args: args}); err != nil {
			fmt.Fprintf(r.out, "    %s: %v\n", strings.Join(args, " "), err)
			return
		}
	}
}

// modules tests the modules inside this one, such as test/consumer; go test ./... stops at their door.
func (r *runner) modules(name string) {
	files, err := filepath.Glob("*/*/go.mod")
	if err != nil {
		r.counts.fail(name)
		return
	}
	for _, file := range files {
		folder := filepath.Dir(file)
		fmt.Fprintf(r.out, "  module %s\n", folder)
		var said strings.Builder
		list := command{folder: folder, args: []string{"go", "list", "-deps", "-test", "./..."}}
		if err := r.lines(list, func(line string) { said.WriteString(line + "\n") }); err != nil && offline(said.String()) {
			r.counts.skip(folder, "no-network: its modules could not be downloaded")
			continue
		}
		r.check(folder+" vet", command{folder: folder, args: []string{"go", "vet", "./..."}})
		r.test(folder, command{folder: folder, args: []string{"go", "test", "-json", "-count=1", "-timeout=10m", "./..."}})
	}
}

// vm runs the soft-RoCE gate, which writes events like go test -json and then its table.
func (r *runner) vm(name string) {
	const program = "bin/vm"
	if _, err := r.show(command{env: []string{"CGO_ENABLED=0"}, args: []string{"go", "build", "-trimpath", "-o", program, "./test/vm"}}); err != nil {
		r.counts.fail(name + ": build")
		return
	}
	args := []string{"./" + program, "gate"}
	if !r.named { // figures want a machine to themselves: make vm
		args = append(args, "-part", "machine,verbs,verbs-6.1,engine,hosts")
	}
	r.gate(name, command{args: args})
}

// gate runs a command that writes events, or exits with the status of a skip and its reason on the last line.
func (r *runner) gate(name string, c command) {
	last := ""
	col := newCollector(name, r.out, r.counts)
	before := r.counts.failed
	err := r.lines(c, func(line string) {
		if strings.TrimSpace(line) != "" {
			last = line
		}
		col.line(line)
	})
	col.abandoned()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == skipStatus && col.ended == 0:
		r.counts.skip(name, last)
	case r.counts.failed == before && (err != nil || col.ended == 0):
		fmt.Fprintf(r.out, "    %s: %v, %d packages ended\n", strings.Join(c.args, " "), err, col.ended)
		r.counts.fail(name)
	}
}

// scriptsElsewhere have a phase or a target of their own.
var scriptsElsewhere = []string{"test/demo", "test/vm"}

// scripts runs test/NAME/run.sh and test/NAME/check.sh.
func (r *runner) scripts(name string) {
	var files []string
	for _, pattern := range []string{"test/*/run.sh", "test/*/check.sh"} {
		more, err := filepath.Glob(pattern)
		if err != nil {
			r.counts.fail(name)
			return
		}
		files = append(files, more...)
	}
	slices.Sort(files)
	for _, file := range files {
		if !slices.Contains(scriptsElsewhere, filepath.Dir(file)) {
			r.script(file)
		}
	}
}

func (r *runner) script(file string) {
	fmt.Fprintf(r.out, "  %s\n", file)
	last, err := r.show(command{args: []string{"./" + file}})
	passed, failed, counted := closingLine(last)
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == skipStatus:
		r.counts.skip(file, last)
	case counted && (failed > 0) == (err != nil):
		r.counts.pass(passed)
		for range failed {
			r.counts.fail(file)
		}
	case err != nil:
		fmt.Fprintf(r.out, "    %s: %v\n", file, err)
		r.counts.fail(file)
	case counted: // its counts and its exit status disagree
		r.counts.fail(file + ": says failed, exits with 0")
	default:
		r.counts.pass(1)
	}
}
