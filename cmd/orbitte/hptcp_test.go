package main

import (
	"context"
	"encoding/json"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/orbitte/orbitte"
)

// Files go there and back over HP-TCP when both sides ask for it; a source that does not serve it is an error, and
// nothing becomes TCP.
//
// proves G-4
func TestServeGetAndPutMoveFilesOverHPTCPWhenAskedTo(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	path, content := file(t, from, "data", 9<<20+7)
	changed, other := file(t, t.TempDir(), "other", 9<<20+7)
	s := startSource(t, "--writable", "--transport", "hptcp", path)
	got := filepath.Join(to, "copy")
	over := append(s.peerFlags("--from"), "--transport", "hptcp")
	carried(t, inside(append([]string{"get", "-o", got, "data"}, over...)...), "hptcp")
	same(t, got, content)
	carried(t, inside(append([]string{"put", changed, "data", "--transport", "hptcp"}, s.peerFlags("--to")...)...), "hptcp")
	same(t, path, other)
	carried(t, inside(append([]string{"get", "-o", got, "data"}, s.peerFlags("--from")...)...), "tcp")
	same(t, got, other)
	carried(t, inside(append([]string{"get", "-o", got, "data"}, over...)...), "hptcp") // the manifest that put brought
	same(t, got, other)
	s.stop(t)
	s = startSource(t, path)
	inside(append([]string{"get", "-o", filepath.Join(to, "none"), "data", "--transport", "hptcp"}, s.peerFlags("--from")...)...).want(t, exitFailed, "the peer publishes no HP-TCP", "no other path was tried", "remedy: name another --transport, or serve the file with that one")
	holds(t, to, "copy")
	s.stop(t)
}

// Where HP-TCP is served is shown at both ends: the data listener, which regions, and what get has to say.
func TestServeAndDescribeShowHPTCP(t *testing.T) {
	path, _ := file(t, t.TempDir(), "data", 5000)
	var out, remarks strings.Builder
	ctx, cancel := context.WithCancel(context.Background())
	told := &until{&out, "serving until", cancel}
	if status := run(ctx, &console{out: told, remarks: &remarks}, []string{"serve", "--transport", "hptcp", path}); status != exitDone {
		t.Fatalf("status %d: %s", status, remarks.String())
	}
	for _, words := range []string{"transport hptcp and tcp\n", "data      127.0.0.1:", " --transport hptcp --all -o FOLDER"} {
		if !strings.Contains(out.String(), words) {
			t.Errorf("%q is not in:\n%s", words, out.String())
		}
	}
	s := startSource(t, "--transport", "hptcp", "--data-bind", "127.0.0.1:0", path)
	if s.Transport != "hptcp" || !strings.HasPrefix(s.Data, "127.0.0.1:") {
		t.Errorf("%+v", s.servedView)
	}
	_, port, _ := strings.Cut(s.Data, ":")
	var d described
	if err := json.Unmarshal([]byte(inside("describe", "--json", s.Endpoint).out), &d); err != nil || strconv.Itoa(int(d.DataPort)) != port || !d.Regions[0].HPTCP {
		t.Errorf("%v: %+v", err, d)
	}
	if shown := inside("describe", s.Endpoint); !strings.Contains(shown.out, "HP-TCP           port "+port) || !strings.Contains(shown.out, "yes") {
		t.Errorf("%s", shown.out)
	}
	if shown := inside("describe", startSource(t, path).Endpoint); !strings.Contains(shown.out, "HP-TCP           none") {
		t.Errorf("%s", shown.out)
	}
}

// A data port that is shut is told as such, also where the endpoint answers: which port, and the flag that helps.
//
// field case F-24
func TestADataPortThatIsShutIsToldWithTheFlagThatHelps(t *testing.T) {
	path, _ := file(t, t.TempDir(), "data", 5000)
	s := startSource(t, "--transport", "hptcp", path)
	_, port, _ := strings.Cut(s.Data, ":")
	endpoint := startRelayAt(t, "127.0.0.2", s.Endpoint, func(direction, int64, []byte) {}) // of the control port only
	line := []string{"get", "data", "-o", t.TempDir(), "--from", endpoint, "--epoch", s.Epoch, "--transport", "hptcp", "--timeout", "1s"}
	inside(line...).want(t, exitFailed, "data address 127.0.0.2:"+port+": connection refused", "class:  source unreachable", "known:  no byte was moved; the source's data port",
		"remedy: let the data port through every firewall (serve --data-bind fixes it)", "without --transport hptcp")
	silent, err := net.Listen("tcp", "127.0.0.2:"+port) // as good as a firewall that drops: nothing comes back
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	inside(line...).want(t, exitFailed, "data address 127.0.0.2:"+port+": no stream could be opened in time", "class:  deadline passed", "known:  no byte was moved; the source's data port did not answer in time",
		"remedy: let the data port through every firewall (serve --data-bind fixes it)", "a longer --timeout")
}

// until ends a command once it has printed a word.
type until struct {
	*strings.Builder
	word string
	then func()
}

func (u *until) Write(b []byte) (int, error) {
	defer func() {
		if strings.Contains(u.String(), u.word) {
			u.then()
		}
	}()
	return u.Builder.Write(b)
}

// field case F-24
func TestAnUnavailablePathHasTheRemedyOfItsCause(t *testing.T) {
	unavailable := &orbitte.Error{Index: -1, Class: orbitte.ErrUnavailable}
	for _, x := range []struct{ kernel, transport, remedy, not string }{
		{"io_uring", "tcp", "choose a --kernel", "devices"},
		{"auto", "rdma", "orbitte devices", "--kernel"},
	} {
		f := newFlags("get")
		f.kernel, f.transport = x.kernel, x.transport
		told := factsOf(&failure{cause: unavailable, remedy: f.missing()})
		if !strings.Contains(told.remedy, x.remedy) || strings.Contains(told.remedy, x.not) {
			t.Errorf("%+v: %q", x, told.remedy)
		}
	}
	if told := factsOf(unavailable); !strings.Contains(told.remedy, "--transport") || strings.Contains(told.remedy, "--kernel") {
		t.Errorf("%q", told.remedy)
	}
}
