package main

import (
	"encoding/json"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/netproto"
)

// field case F-24
func TestTheToolSpeaksOfFilesAndSources(t *testing.T) {
	for class, said := range dataPort {
		for _, word := range []string{"submit", "segment", "posted", "Config", "HPTCP", "stream"} {
			if strings.Contains(said.known+said.remedy, word) {
				t.Errorf("%v: %+v has the engine's word %q", class, said, word)
			}
		}
	}
	for class, said := range tellings {
		text := className(class) + " " + said.known + " " + said.remedy
		for _, word := range []string{"submit", "segment", "posted", "Config", "stream", "RetainedResources"} {
			if strings.Contains(text, word) {
				t.Errorf("%v: %q has the engine's word %q", class, text, word)
			}
		}
		if said.remedy == "" || said.known == "" && class != orbitte.ErrSystem {
			t.Errorf("%v: nothing is known, or no remedy", class)
		}
	}
}

// oneObject reads what must be one line with one JSON object.
func oneObject(t *testing.T, out string, into any) {
	t.Helper()
	if strings.Count(out, "\n") != 1 || !strings.HasSuffix(out, "\n") {
		t.Errorf("not one line: %q", out)
	}
	if err := json.Unmarshal([]byte(out), into); err != nil {
		t.Errorf("%q: %v", out, err)
	}
	if strings.Contains(out, ":null") {
		t.Errorf("null in %s", out)
	}
}

func TestFailuresAreOneObjectOfJSONToo(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	first, _ := file(t, from, "a", 1<<20)
	second, _ := file(t, from, "b", 1<<20)
	s := startSource(t, first, second)
	damaged := startRelay(t, s.Endpoint, flip(toRequester, 1<<20+500_000))
	for _, c := range []struct {
		line  string
		code  int
		class string
		files int
	}{
		{"get --json --from 127.0.0.1:1 x", exitFailed, "source unreachable", 0},
		{"get --from 127.0.0.1:1 --json", exitUsage, "wrong command line", 0},
		{"get --wat --json", exitUsage, "wrong command line", 0},
		{"get --json x -o /dev/null --from 127.0.0.1:1", exitUsage, "unfit target", 0},
		{"get --json nothing -o " + to + " --from " + s.Endpoint, exitFailed, "the peer has no such file", 0},
		{"get --json a b -o " + to + " --progress none --epoch " + s.Epoch + " --from " + damaged, exitFailed, "SHA-256 differs", 1},
		{"put --json " + first + " a --to " + s.Endpoint, exitFailed, "permission denied", 0},
		{"describe --json 127.0.0.1:1", exitFailed, "source unreachable", 0},
		{"serve --json " + filepath.Join(from, "missing"), exitFailed, "local file", 0},
		{"version --json x", exitUsage, "wrong command line", 0},
	} {
		t.Run(c.line, func(t *testing.T) {
			e := inside(strings.Fields(c.line)...)
			e.want(t, c.code)
			var v failedView
			oneObject(t, e.out, &v)
			if v.Error.Class != c.class || v.Error.Text == "" || v.Error.Remedy == "" || len(v.Files) != c.files || !strings.Contains(e.errs, v.Error.Text) {
				t.Errorf("%+v\n%s", v, e.errs)
			}
		})
	}
}

func TestSuccessIsOneObjectOfJSON(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	path, _ := file(t, from, "a", 1<<20)
	s := startSource(t, path)
	e := inside(append([]string{"get", "--json", "a", "-o", to}, s.peerFlags("--from")...)...)
	e.want(t, exitDone)
	var v failedView
	oneObject(t, e.out, &v)
	if len(v.Files) != 1 || v.Files[0].Bytes != 1<<20 || strings.Contains(e.out, "error") {
		t.Errorf("%s", e.out)
	}
}

func TestVersionNamesModuleGoAndProtocol(t *testing.T) {
	plain, flagged := inside("version"), inside("--version")
	plain.want(t, exitDone)
	for _, word := range []string{"orbitte ", runtime.Version(), runtime.GOARCH, "protocol 19"} {
		if !strings.Contains(plain.out, word) {
			t.Errorf("%q lacks %q", plain.out, word)
		}
	}
	if plain.out != flagged.out {
		t.Errorf("--version says %q", flagged.out)
	}
	for _, form := range []string{"commit's time and hash", "+dirty", `"(devel)"`} { // what a checkout's build says, with git and without
		if !strings.Contains(inside("version", "--help").out, form) {
			t.Errorf("%q is not explained", form)
		}
	}
	var v versions
	oneObject(t, inside("--version", "--json").out, &v)
	if v.Module != "github.com/orbitte/orbitte" || v.Protocol != netproto.Version || v.Version == "" {
		t.Errorf("%+v", v)
	}
}

// ask sends one request with the source's own epoch and reads the reply.
func ask(t *testing.T, s *source, r netproto.Request) {
	t.Helper()
	epoch, err := netproto.ParseEpoch(s.Epoch)
	if err != nil {
		t.Fatal(err)
	}
	r.Epoch = epoch
	c, err := net.Dial("tcp", s.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Write(netproto.AppendRequest(nil, r)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 36)); err != nil {
		t.Error(err)
	}
}

func TestAVerboseSourceSaysWhatItRefused(t *testing.T) {
	path, _ := file(t, t.TempDir(), "data", 100)
	s := startSource(t, "--verbose", path)
	wrong := strings.Repeat("1", 32)
	tool(t, "get", "data", "-o", t.TempDir(), "--from", s.Endpoint, "--epoch", wrong).want(t, exitFailed, "--epoch names")
	ask(t, s, netproto.Request{Operation: netproto.OperationTCPRead, Region: 9999, Length: 1})
	out := filepath.Join(t.TempDir(), "out")
	time.Sleep(1100 * time.Millisecond) // past one look: it must go on serving
	tool(t, append([]string{"get", "data", "-o", out}, s.peerFlags("--from")...)...).want(t, exitDone)
	s.stop(t)
	for _, words := range []string{"engine open", "it expects another life of this source", "requests refused: 1 for an unknown region"} {
		if !strings.Contains(s.errs.String(), words) {
			t.Errorf("%q is not said:\n%s", words, s.errs)
		}
	}
}
