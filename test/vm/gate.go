package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const modulePath = "github.com/orbitte/orbitte"

// A part of the gate is a package whose tests run in a guest.
type part struct {
	name    string
	folder  string
	run     string // pattern of the tests that need a device: the others run faster without emulation
	options []string
}

// parts in their order. The package's test binary is built with the tag vm and with C; its working folder in the guest
// is the package's own, and the checkout may be written.
var parts = []part{
	{"verbs", "verbs/libibverbs", "^Test(A?Real|TheLibrary|TheInstalled)", []string{"-limit", "4m"}},
	{"verbs-6.1", "verbs/libibverbs", "^TestTheLibraryConforms", []string{"-limit", "4m", "-kernel", "6.1"}},
	{"engine", ".", "^TestSoftRoCE", []string{"-limit", "5m", "-wires", "2", "-memory", "1024"}},
	{"hosts", ".", "^TestTwoHosts", []string{"-limit", "3m", "-wires", "2", "-net", "pair", "-plain"}},
	{"figures", ".", "^TestFiguresBesidePerftest", []string{"-limit", "5m", "-wires", "2", "-memory", "1024"}},
}

// machinePart is the proof of the machine itself; its tests run here and boot guests of their own.
const machinePart = "machine"

// gate runs the parts, writes what they say as go test -json does, and ends with the table of what was proved.
func gate(ctx context.Context, args []string) (int, error) {
	o := newOptions("gate")
	names := o.String("part", "", "parts, separated by commas: machine, verbs, verbs-6.1, engine, hosts, figures (default: all)")
	_ = o.Parse(args) // it exits by itself
	if err := o.prepareMachine(gateNeeds...); err != nil {
		return 1, err
	}
	root, err := repository()
	if err != nil {
		return 1, err
	}
	work, err := workFolder(filepath.Join(root, "bin"))
	if err != nil {
		return 1, err
	}
	t := &table{}
	g := &gateRun{ctx, root, work, o.machine.Init, t}
	only := strings.FieldsFunc(*names, func(r rune) bool { return r == ',' })
	wanted := func(name string) bool { return len(only) == 0 || slices.Contains(only, name) }
	for _, name := range only {
		if name != machinePart && !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			return 1, fmt.Errorf("gate has no part %q", name)
		}
	}
	if wanted(machinePart) {
		err = g.machine()
	}
	for _, p := range parts {
		if err == nil && wanted(p.name) {
			err = g.part(p)
		}
	}
	t.print(os.Stdout)
	return t.status(), errors.Join(err, os.RemoveAll(work))
}

// workFolder makes a folder that names its process, and removes those that killed gates have left.
func workFolder(below string) (string, error) {
	left, err := filepath.Glob(filepath.Join(below, "gate-*"))
	if err != nil {
		return "", err
	}
	for _, folder := range left {
		_, pid, _ := strings.Cut(filepath.Base(folder), "-")
		if _, err := os.Stat("/proc/" + pid); errors.Is(err, os.ErrNotExist) {
			if err := os.RemoveAll(folder); err != nil {
				return "", err
			}
		}
	}
	work := filepath.Join(below, fmt.Sprintf("gate-%d", os.Getpid()))
	return work, os.MkdirAll(work, 0o755)
}

// repository finds the checkout above the working folder.
func repository() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("go list -m: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

type gateRun struct {
	ctx  context.Context
	root string
	work string // folder for test binaries, inside the checkout so that the guest sees it
	self string
	seen *table
}

func (g *gateRun) machine() error {
	return g.stream([]string{"CGO_ENABLED=0"}, "go", "test", "-json", "-tags=vm", "-count=1", "-timeout=20m", "./test/vm")
}

// part builds a package's tests and runs them in a guest. What is not there yet is a skip with a reason.
func (g *gateRun) part(p part) error {
	shown := strings.TrimSuffix(modulePath+"/"+p.folder, "/.") + " (" + p.name + ")"
	if reason := g.absent(p); reason != "" {
		return g.skip(shown, reason)
	}
	binary := filepath.Join(g.work, p.name+".test")
	build := exec.CommandContext(g.ctx, "go", "test", "-c", "-tags=vm", "-o", binary, "./"+p.folder)
	build.Dir, build.Env = g.root, append(os.Environ(), "CGO_ENABLED=1")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("go test -c ./%s: %w", p.folder, err)
	}
	converter, err := exec.Command("go", "tool", "-n", "test2json").Output()
	if err != nil {
		return fmt.Errorf("go tool -n test2json: %w", err)
	}
	args := []string{"-t", "-p", shown, g.self, "run", "-with-parent", "-share", g.root, "-dir", filepath.Join(g.root, p.folder)}
	args = append(append(args, p.options...), "--", binary, "-test.v=test2json", "-test.count=1", "-test.run="+p.run)
	return g.stream(nil, strings.TrimSpace(string(converter)), args...)
}

// absent says why a part has nothing to run, or nothing.
func (g *gateRun) absent(p part) string {
	files, err := filepath.Glob(filepath.Join(g.root, p.folder, "*_test.go"))
	if err != nil || len(files) == 0 {
		return "no-tests: " + p.folder + " has no tests in this checkout"
	}
	want := regexp.MustCompile(`(?m)^func ` + strings.TrimPrefix(p.run, "^"))
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && want.Match(text) {
			return ""
		}
	}
	return "no-tests: " + p.folder + " has no test " + p.run
}

// event is one line of go test -json; see go doc test2json.
type event struct {
	Action, Package string
	Test            string `json:",omitempty"`
	Output          string `json:",omitempty"`
}

// skip writes the events of a package whose one test was skipped.
func (g *gateRun) skip(name, reason string) error {
	const test = "TestInAGuest"
	for _, e := range []event{
		{"run", name, test, ""}, {"output", name, test, reason + "\n"}, {"skip", name, test, ""}, {"pass", name, "", ""},
	} {
		text, err := json.Marshal(e)
		if err != nil {
			return err
		}
		g.take(string(text))
	}
	return nil
}

// stream runs a command and takes each line of its output. That its tests failed is no error: the events say so.
func (g *gateRun) stream(env []string, name string, args ...string) error {
	cmd := exec.CommandContext(g.ctx, name, args...)
	cmd.Dir, cmd.Env = g.root, append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = diesWithUs()
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	failures := g.seen.failed
	lines := bufio.NewReader(pipe)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			g.take(strings.TrimSuffix(line, "\n"))
		}
		if err != nil {
			break // the end; Wait tells more
		}
	}
	var exit *exec.ExitError
	err = cmd.Wait()
	if errors.As(err, &exit) && g.seen.failed > failures {
		return nil
	}
	return err
}

func (g *gateRun) take(line string) {
	fmt.Println(line)
	var e event
	if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &e) == nil {
		g.seen.take(e)
	}
}

// table is what the gate proved: a row for each test at the top level.
type table struct {
	rows   []*row
	failed int // tests and packages
}

type row struct {
	pkg, test, result string
	below             int      // subtests that passed
	said              []string // what its lines "proved: …" say
	partial           string   // a line that is not at its end yet
}

func (t *table) row(e event) *row {
	top, _, _ := strings.Cut(e.Test, "/")
	for _, r := range t.rows {
		if r.pkg == e.Package && r.test == top {
			return r
		}
	}
	r := &row{pkg: e.Package, test: top, result: "did not end"}
	t.rows = append(t.rows, r)
	return r
}

var provedLine = regexp.MustCompile(`proved: (.+)`)

func (t *table) take(e event) {
	if e.Action == "fail" {
		t.failed++
	}
	if e.Test == "" {
		return
	}
	r := t.row(e)
	switch sub := strings.Contains(e.Test, "/"); {
	case e.Action == "output":
		r.partial += e.Output
		if strings.HasSuffix(r.partial, "\n") {
			if m := provedLine.FindStringSubmatch(r.partial); m != nil {
				r.said = append(r.said, m[1])
			}
			r.partial = ""
		}
	case sub && e.Action == "pass":
		r.below++
	case !sub && (e.Action == "pass" || e.Action == "fail" || e.Action == "skip"):
		r.result = e.Action
	}
}

func (t *table) print(out io.Writer) {
	pkg := ""
	for _, r := range t.rows {
		if r.pkg != pkg {
			pkg = r.pkg
			fmt.Fprintf(out, "\nproved by %s:\n", strings.TrimPrefix(pkg, modulePath+"/"))
		}
		text := spelledOut(r.test)
		if r.below > 0 {
			text += fmt.Sprintf(" (%d cases)", r.below)
		}
		fmt.Fprintf(out, "  %-11s  %s\n", r.result, text)
		for _, said := range r.said {
			fmt.Fprintf(out, "  %-11s  - %s\n", "", said)
		}
	}
}

// spelledOut makes a sentence of a test's name; what has two capitals in a row stays, such as GIDs.
func spelledOut(test string) string {
	name := strings.TrimPrefix(strings.TrimPrefix(test, "Test"), "SoftRoCE")
	is := func(at int, from, to byte) bool { return at < len(name) && name[at] >= from && name[at] <= to }
	var words []string
	start := 0
	for i := 1; i <= len(name); i++ {
		begins := is(i, 'A', 'Z') && (!is(i-1, 'A', 'Z') || is(i+1, 'a', 'z') && is(i+2, 'a', 'z'))
		if i < len(name) && !begins {
			continue
		}
		w := name[start:i]
		if start > 0 && (len(w) == 1 || w[1] >= 'a') {
			w = strings.ToLower(w[:1]) + w[1:]
		}
		words, start = append(words, w), i
	}
	return strings.Join(words, " ")
}

func (t *table) status() int {
	if t.failed > 0 {
		return 1
	}
	return 0
}
