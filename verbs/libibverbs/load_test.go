//go:build cgo && !vm

package libibverbs

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/orbitte/orbitte/verbs"
)

func TestLoadSaysThatTheLibraryIsMissing(t *testing.T) {
	calls, err := LoadPath("libnotthere.so.1")
	var missing *NoLibrary
	if calls != nil || !errors.Is(err, ErrNoLibrary) || !errors.As(err, &missing) {
		t.Fatalf("got %v and %v", calls, err)
	}
	if missing.Path != "libnotthere.so.1" {
		t.Errorf("it names %q", missing.Path)
	}
	contains(t, err, "libnotthere.so.1", "cannot open shared object file", "libibverbs1", "LD_LIBRARY_PATH")
}

func TestLoadNamesAMissingFunctionAndItsVersion(t *testing.T) {
	for _, name := range []string{"ibv_get_device_list", "ibv_create_qp", "ibv_dereg_mr"} {
		path := buildFake(t, "-D"+name+"=other_"+name)
		_, err := LoadPath(path)
		var missing *MissingSymbol
		if !errors.Is(err, ErrMissingSymbol) || !errors.As(err, &missing) {
			t.Fatalf("without %s: %v", name, err)
		}
		if missing.Symbol != name || missing.Version != "IBVERBS_1.1" || missing.Path != path {
			t.Errorf("without %s it names %s %s of %s", name, missing.Symbol, missing.Version, missing.Path)
		}
		contains(t, err, name, "IBVERBS_1.1", "rdma-core")
	}
}

func TestLoadDoesNotTakeAnOldFormOfAFunction(t *testing.T) {
	text, err := os.ReadFile("testdata/fake.map")
	check(t, err)
	old := strings.Replace(string(text), "ibv_get_cq_event; ", "", 1)
	old = strings.Replace(old, "global: ibv_create_comp_channel;", "global: ibv_create_comp_channel; ibv_get_cq_event;", 1)
	path := t.TempDir() + "/old.map"
	check(t, os.WriteFile(path, []byte(old), 0o600))
	_, err = LoadPath(buildFake(t, "-Wl,--version-script="+path))
	var missing *MissingSymbol
	if !errors.As(err, &missing) || missing.Symbol != "ibv_get_cq_event" {
		t.Fatalf("a library with ibv_get_cq_event of IBVERBS_1.0 only: %v", err)
	}
}

func TestLoadSaysWhichFileItTook(t *testing.T) {
	path := buildFake(t)
	for range 2 { // a second time is as good
		calls, err := LoadPath(path)
		check(t, err)
		if got, want := calls.Library(), (verbs.Library{Name: "libibverbs", Path: path, Version: "1.99.7"}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

func TestTheInstalledLibraryLoadsAndListsItsDevices(t *testing.T) {
	calls, err := Load()
	if errors.Is(err, ErrNoLibrary) {
		t.Skipf("library: %v", err)
	}
	check(t, err)
	l := calls.Library()
	if l.Path == "" || !strings.HasPrefix(l.Version, "1") {
		t.Errorf("it says %+v of itself", l)
	}
	devices, err := calls.Devices()
	check(t, err) // no device is no error
	t.Logf("%+v, devices: %+v", l, devices)
	_, err = calls.OpenDevice("no such device")
	var missing *NoDevice
	if !errors.As(err, &missing) || len(missing.Seen) != len(devices) {
		t.Errorf("opening what is not there: %v", err)
	}
}

// A program that does not import this package links no C of ours, and builds without cgo.
func TestTheRootPackageNeedsNoC(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("tool: no go command here")
	}
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}} {{len .CgoFiles}} {{len .CFiles}}{{end}}", "../..").Output()
	check(t, err)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	for _, line := range lines {
		if !strings.HasSuffix(line, " 0 0") || strings.Contains(line, "/libibverbs ") {
			t.Errorf("the root package links C: %s", line)
		}
	}
	if len(lines) < 5 {
		t.Errorf("only %d packages listed", len(lines))
	}
}

func TestWithoutCgoLoadSaysSo(t *testing.T) {
	if testing.Short() {
		t.Skip("short: it builds the package a second time")
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("tool: no go command here")
	}
	test := exec.Command("go", "test", "-count=1", "-v", "-run", "^TestLoadInABuildWithoutCgo$", ".")
	test.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := test.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestLoadInABuildWithoutCgo") {
		t.Errorf("%v\n%s", err, out)
	}
}
