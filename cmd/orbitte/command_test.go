package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/lanes/hptcp"
)

// inside runs the tool in this process.
func inside(args ...string) ended {
	var out, errs bytes.Buffer
	code := run(context.Background(), &console{out: &out, remarks: &errs}, args)
	return ended{code, out.String(), errs.String()}
}

func TestWrongCommandLinesExitWithStatusTwo(t *testing.T) {
	data, _ := file(t, t.TempDir(), "data", 10)
	twin, _ := file(t, t.TempDir(), "data", 10)
	for _, c := range []struct{ line, says string }{
		{"", "usage: orbitte COMMAND"},
		{"send", `no command "send"`},
		{"serve", "name at least one file"},
		{"serve --wat x", "there is no flag --wat"},
		{"serve --timeout 301s x", "at most 300s"},
		{"serve " + data + " " + twin, "the same name"},
		{"serve --bind nonsense " + data, `--bind is "nonsense"`},
		{"serve --advertise 0.0.0.0:1 " + data, `--advertise is "0.0.0.0:1", which means nothing to a peer`},
		{"serve --transport hptcp --bind 127.0.0.1:64999 --data-bind 127.0.0.1:64999 " + data, "--data-bind is \"127.0.0.1:64999\", but --bind listens on that port already"},
		{"serve --lanes 65 x", "0 to 64"},
		{"serve --kernel kqueue x", "auto, io_uring or epoll"},
		{"get x", "--from is missing"},
		{"get --from 127.0.0.1:1", "name files, or give --all"},
		{"get --from 127.0.0.1:1 --all x", "exclude each other"},
		{"get --from 127.0.0.1 --all", "host:port"},
		{"get --from 127.0.0.1:1 --epoch 12 x", `invalid value "12" for flag --epoch: an epoch has 32 hexadecimal digits`},
		{"get --lanes two x", `invalid value "two" for flag --lanes:`},
		{"get --direct=\"-x\" x", `invalid boolean value "\"-x\"" for --direct:`},
		{"get x --timeout", "flag needs an argument: --timeout"},
		{"get x -o", "flag needs an argument: -o"},
		{"get -w x", "there is no flag -w"},
		{"get --from 127.0.0.1:1 --epoch 00000000000000000000000000000000 x", "not all zero"},
		{"get --from 127.0.0.1:1 --progress loud x", "auto, bar, plain or none"},
		{"get --from 127.0.0.1:1 --request-size 0 x", "above 0"},
		{"get --from 127.0.0.1:1 --request-size 9999999999GiB x", "above 0"},
		{"get --from 127.0.0.1:1 --timeout 0s x", "above 0"},
		{"put x", "--to is missing"},
		{"put --to 127.0.0.1:1 x", "FILE and NAME"},
		{"get --from 127.0.0.1:1 x -o -", "-o - is refused"},
		{"get --from 127.0.0.1:1 a.bin b a.bin", "a.bin is named twice"},
		{"serve --data-bind 127.0.0.1:0 " + data, "for --transport hptcp"},
		{"serve --transport hptcp --data-bind 127.0.0.2:0 " + data, `--data-bind is "127.0.0.2:0", but peers`},
		{"version x", "no operands"},
		{"version --lanes 1", "there is no flag --lanes"},
		{"describe", "one ENDPOINT"},
		{"describe a:1 b:1", "one ENDPOINT"},
	} {
		t.Run(c.line, func(t *testing.T) {
			e := inside(strings.Fields(c.line)...)
			if e.want(t, exitUsage, c.says); strings.Contains(e.errs, "Config.") {
				t.Errorf("the command line has no Config: %s", e.errs)
			}
		})
	}
}

func TestFailuresExitWithStatusOneAndSayWhatIsKnown(t *testing.T) {
	folder := t.TempDir()
	data, _ := file(t, folder, "data", 10)
	control, _ := file(t, folder, "new\nline", 10)
	inside("get", "--from", "127.0.0.1:1", "x").want(t, exitFailed, "class:  source unreachable", "known:  no byte was moved", "remedy: check the endpoint")
	inside("put", filepath.Join(folder, "missing"), "x", "--to", "127.0.0.1:1").want(t, exitFailed, "class:  local file", "no such file")
	inside("serve", folder).want(t, exitFailed, "not a regular file")
	inside("serve", control).want(t, exitFailed, "printable", "rename the file")
	inside("serve", "--bind", "192.0.2.1:1", data).want(t, exitFailed, "class:  the system refused", "192.0.2.1:1")
	s := startSource(t, data)
	inside("serve", "--bind", s.Endpoint, data).want(t, exitFailed, "class:  the system refused", "--bind: listen on "+s.Endpoint)
}

func TestFlagsAndOperandsComeInAnyOrder(t *testing.T) {
	f := newFlags("get")
	f.mover()
	operands, err := f.parse([]string{"a", "--json", "b", "--timeout", "3s", "--", "--c", "d"})
	if err != nil || strings.Join(operands, " ") != "a b --c d" || !f.json || f.timeout.Seconds() != 3 {
		t.Errorf("%q %v %+v", operands, err, f)
	}
}

func TestSizesAreReadWithAndWithoutUnit(t *testing.T) {
	for text, want := range map[string]size{"1": 1, "4096": 4096, "7B": 7, "256KiB": 256 << 10, "1M": 1 << 20, "2GiB": 2 << 30} {
		var s size
		if err := s.Set(text); err != nil || s != want {
			t.Errorf("%s: %d, %v", text, s, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "x", "1.5M", "1TiB", "8589934592GiB"} {
		var s size
		if s.Set(text) == nil {
			t.Errorf("%q is accepted as %d", text, s)
		}
	}
}

// Each command's help names each of its flags, and each flag in a help exists.
func TestHelpNamesEveryFlag(t *testing.T) {
	own := regexp.MustCompile(`f\.(?:String|Bool)\("([a-z-]+)"`)
	for _, c := range commands {
		shown := inside(c.name, "--help")
		shown.want(t, exitDone)
		if other := inside("help", c.name); other.out != shown.out {
			t.Errorf("help %s differs from %s --help", c.name, c.name)
		}
		f := newFlags(c.name)
		switch c.name {
		case "version", "devices":
			f = bareFlags(c.name)
		case "get", "put":
			f.mover()
		case "serve":
			f.moves()
		case "describe":
			f.requester()
		}
		text, err := os.ReadFile(c.name + ".go")
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range own.FindAllStringSubmatch(string(text), -1) {
			f.Bool(match[1], false, "")
		}
		f.VisitAll(func(one *flag.Flag) {
			dashes := "--"
			if len(one.Name) == 1 {
				dashes = "-"
			}
			if !regexp.MustCompile(`(?m)^  ` + dashes + one.Name + `\b`).MatchString(shown.out) {
				t.Errorf("%s --help does not explain %s%s", c.name, dashes, one.Name)
			}
		})
		for _, match := range regexp.MustCompile(`(?m)^  --?([a-z-]+)`).FindAllStringSubmatch(shown.out, -1) {
			if f.Lookup(match[1]) == nil {
				t.Errorf("%s --help explains %s, which is no flag", c.name, match[1])
			}
		}
		if !strings.Contains(inside("--help").out, "  "+c.name) || !strings.Contains(shown.out, "exit status:") {
			t.Errorf("%s is not listed, or its help names no exit status", c.name)
		}
	}
}

// field case F-24
func TestAFailureShowsItsClassWhatIsKnownAndTheRemedy(t *testing.T) {
	engine := &orbitte.Error{Op: "Submit", Index: 3, Endpoint: "h:1", Class: orbitte.ErrDisconnected, Cause: syscall.ECONNRESET}
	away := &orbitte.Error{Index: -1, Endpoint: "h:1", Class: orbitte.ErrUnreachable}
	shut := &orbitte.Error{Index: -1, Endpoint: "h:1", Class: orbitte.ErrUnreachable, Cause: &hptcp.UnreachedError{Address: netip.MustParseAddrPort("10.0.0.1:2"), Err: syscall.ECONNREFUSED}}
	quiet := className(orbitte.ErrUnquiesced)
	unquiesced := &orbitte.Error{Index: -1, Class: orbitte.ErrUnquiesced}
	lost, loud := tellings[orbitte.ErrDisconnected], tellings[orbitte.ErrUnquiesced]
	for _, c := range []struct {
		err  error
		want string
	}{
		{engine, "T: peer h:1: connection lost: connection reset by peer\n  class:  connection lost\n  known:  " + lost.known + "\n  remedy: " + lost.remedy + "\n"},
		{&failure{object: "f", cause: engine, known: "3 bytes"}, "T: f: peer h:1: connection lost: connection reset by peer\n  class:  connection lost\n  known:  3 bytes\n  remedy: " + lost.remedy + "\n"},
		{&failure{object: "f", cause: interrupted(away), known: "3 bytes"},
			"T: f: connection lost: peer h:1: source unreachable\n  class:  connection lost\n  known:  3 bytes\n  remedy: " + lost.remedy + "\n"},
		{&failure{object: "f", cause: interrupted(shut), known: "3 bytes"},
			"T: f: peer h:1: source unreachable: data address 10.0.0.1:2: connection refused\n  class:  source unreachable\n  known:  3 bytes\n  remedy: " + dataPort[orbitte.ErrUnreachable].remedy + "\n"},
		{&failure{object: "f", cause: unquiesced, known: "3 bytes"},
			"T: f: " + quiet + "\n  class:  " + quiet + "\n  known:  3 bytes; " + unquiesced.Known() + "\n  remedy: " + loud.remedy + "\n"},
		{&failure{object: "f", cause: &failure{class: errDiffers, cause: errors.New("a, b"), remedy: "again"}, known: "none written"},
			"T: f: SHA-256 differs: a, b\n  class:  SHA-256 differs\n  known:  none written\n  remedy: again\n"},
		{&os.PathError{Op: "open", Path: "/p", Err: syscall.ENOENT}, "T: open /p: no such file or directory\n  class:  local file\n  remedy: see the system's error\n"},
		{errors.New("plain"), "T: plain\n"},
	} {
		if got := explain("T", c.err); got != c.want {
			t.Errorf("got\n%swant\n%s", got, c.want)
		}
	}
}

func TestProgressIsABarOnATerminalAndLinesElsewhere(t *testing.T) {
	for style, want := range map[string]string{
		"auto":  "f: 100 %, 10 of 10 bytes, ",
		"plain": "f: 100 %, 10 of 10 bytes, ",
		"bar":   "\rf [##############################] 100 %",
		"none":  "",
	} {
		var out bytes.Buffer
		m := newMeter(&out, style, "f", 10)
		m.add(4) // too soon to show
		m.add(6)
		m.end()
		if got := out.String(); !strings.HasPrefix(got, want) || (want == "") != (got == "") || strings.Count(got, "%") != min(1, len(want)) {
			t.Errorf("%s: %q", style, got)
		}
	}
	var out bytes.Buffer
	m := newMeter(&out, "bar", "f", 200)
	m.began = m.began.Add(-1e9)
	m.shown = m.began
	m.add(100)
	if got := out.String(); !strings.Contains(got, "[###############---------------]  50 %") || !strings.Contains(got, "kB/s") {
		t.Errorf("%q", got)
	}
}

func TestRatesHaveAReadableUnit(t *testing.T) {
	for _, c := range []struct {
		bytes   uint64
		seconds float64
		want    string
	}{{0, 1, "-"}, {5, 0, "-"}, {1500, 1, "1.5 kB/s"}, {2_500_000, 1, "2.5 MB/s"}, {3e9, 2, "1.50 GB/s"}} {
		if got := rate(c.bytes, c.seconds); got != c.want {
			t.Errorf("%d in %v s: %s, want %s", c.bytes, c.seconds, got, c.want)
		}
	}
}
