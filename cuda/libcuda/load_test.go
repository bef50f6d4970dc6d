//go:build cgo

package libcuda

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/cuda"
)

// proves C-1
// field case F-70
func TestLoadSaysThatTheLibraryIsMissing(t *testing.T) {
	calls, err := LoadPath("libnotthere.so.1")
	var missing *NoLibrary
	if calls != nil || !errors.Is(err, ErrNoLibrary) || !errors.As(err, &missing) {
		t.Fatalf("got %v and %v", calls, err)
	}
	if missing.Path != "libnotthere.so.1" {
		t.Errorf("it names %q", missing.Path)
	}
	contains(t, err, "libnotthere.so.1", "cannot open shared object file", "--gpus all", "LD_LIBRARY_PATH")
}

// proves C-1
func TestLoadNamesAMissingFunction(t *testing.T) {
	for _, name := range []string{"cuDriverGetVersion", "cuGetErrorName", "cuMemAlloc_v2", "cuLaunchHostFunc", "cuFlushGPUDirectRDMAWrites"} {
		path := buildFake(t, "-D"+name+"=other_"+name)
		_, err := LoadPath(path)
		var missing *MissingSymbol
		if !errors.Is(err, ErrMissingSymbol) || !errors.As(err, &missing) {
			t.Fatalf("without %s: %v", name, err)
		}
		if missing.Symbol != name || missing.Path != path {
			t.Errorf("without %s it names %s of %s", name, missing.Symbol, missing.Path)
		}
		contains(t, err, name, "undefined symbol", "install NVIDIA's driver")
	}
}

func TestALibraryThatIsNoDriverIsToldByItsFirstMissingFunction(t *testing.T) {
	_, err := LoadPath("libm.so.6")
	var missing *MissingSymbol
	if !errors.As(err, &missing) || missing.Symbol != "cuDriverGetVersion" || missing.Version != 0 {
		t.Errorf("got %v", err)
	}
}

// A driver that is older than what is needed is told so, also where it lacks functions.
func TestLoadRefusesAnOldDriverByItsVersion(t *testing.T) {
	path := buildFake(t, "-DcuFlushGPUDirectRDMAWrites=absent")
	for _, version := range []int{9020, 11020, 11029} {
		t.Setenv("FAKE_CUDA_VERSION", fmt.Sprint(version))
		_, err := LoadPath(path)
		var old *TooOld
		if !errors.Is(err, ErrTooOld) || !errors.As(err, &old) || old.Has != version || old.Needs != 11030 || old.Path != path {
			t.Fatalf("version %d: %v", version, err)
		}
		contains(t, err, fmt.Sprintf("CUDA %d.%d", version/1000, version%1000/10), "CUDA 11.3 or newer", "newer NVIDIA driver")
		var call *cuda.CallError
		if errors.As(err, &call) {
			t.Errorf("no call failed, and it has one: %v", call)
		}
	}
}

func TestTheOldestDriverThatIsEnoughLoads(t *testing.T) {
	t.Setenv("FAKE_CUDA_VERSION", "11030")
	t.Setenv("FAKE_CUDA_OLD", "1")
	l := loadFake(t, "-DOLD", "-DcuDeviceGetUuid_v2=absent1", "-DcuMemGetHandleForAddressRange=absent2")
	if l.Library().Version != 11030 {
		t.Errorf("it says %+v", l.Library())
	}
	all := must(l.Devices())(t)
	if all[0].DMABuf || all[0].UUID[0] != 16 || !all[0].GPUDirect {
		t.Errorf("%+v", all[0])
	}
	c := must(l.AcquirePrimary(0))(t)
	p := must(l.Allocate(c, 4096))(t)
	d, err := l.ExportRange(c, p, 4096)
	var old *TooOld
	var call *cuda.CallError
	if d != -1 || !errors.As(err, &old) || old.Has != 11030 || old.Needs != 11070 || !errors.As(err, &call) || call.Result != cuda.NotSupported || call.Effect != cuda.None {
		t.Errorf("%d, %v", d, err)
	}
	contains(t, err, "cuMemGetHandleForAddressRange", "CUDA 11.7")
	check(t, l.Free(c, p))
	check(t, l.ReleasePrimary(0))
}

func TestLoadTellsAStubFromADriver(t *testing.T) {
	for _, env := range []string{"FAKE_CUDA_VERSION=0", "FAKE_CUDA_INIT=34"} {
		name, value, _ := strings.Cut(env, "=")
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, value)
			_, err := LoadPath(copyFake(t))
			var stub *Stub
			if !errors.Is(err, ErrStub) || !errors.As(err, &stub) || !errors.Is(err, &cuda.CallError{Result: 34}) {
				t.Fatalf("got %v", err)
			}
			contains(t, err, "stub", "LD_LIBRARY_PATH", "CUDA_ERROR_STUB_LIBRARY")
		})
	}
}

func TestLoadSaysWhyNoGPUIsSeen(t *testing.T) {
	nodes := t.TempDir()
	path := copyFake(t)
	attempt := func() *NoDevice {
		t.Helper()
		_, err := load(path, nodes)
		var none *NoDevice
		if !errors.Is(err, ErrNoDevice) || !errors.As(err, &none) || none.Path != path || none.Version != 12040 || none.Call.Result != cuda.NoDevice {
			t.Fatalf("got %v", err)
		}
		return none
	}
	t.Setenv("FAKE_CUDA_INIT", "100")
	e := attempt()
	if !errors.Is(e.NodeErr, syscall.ENOENT) || e.Node != filepath.Join(nodes, "nvidiactl") || e.Hidden {
		t.Errorf("without nodes: %+v", e)
	}
	contains(t, e, "modprobe nvidia", "--gpus all", "CUDA 12.4")
	check(t, os.WriteFile(filepath.Join(nodes, "nvidiactl"), nil, 0o666))
	contains(t, attempt(), "nvidia-smi")
	t.Setenv("CUDA_VISIBLE_DEVICES", "7")
	e = attempt()
	if !e.Hidden || e.Visible != "7" {
		t.Errorf("hidden: %+v", e)
	}
	contains(t, e, "CUDA_VISIBLE_DEVICES", `"7"`)
	// cuInit may succeed without one.
	t.Setenv("FAKE_CUDA_INIT", "0")
	t.Setenv("FAKE_CUDA_DEVICES", "0")
	if e := attempt(); e.Call.Call != "cuDeviceGetCount" {
		t.Errorf("no device after cuInit: %v", e)
	}
}

// asOther runs on a thread that opens files as another user.
func asOther(t *testing.T, act func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		act()
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	check(t, unix.Setfsuid(65534))
	defer func() { check(t, unix.Setfsuid(0)) }()
	act()
}

func TestLoadNamesTheNodeThatMayNotBeOpened(t *testing.T) {
	nodes := t.TempDir()
	check(t, os.Chmod(filepath.Dir(nodes), 0o755))
	check(t, os.Chmod(nodes, 0o755))
	path := copyFake(t)
	check(t, os.Chmod(filepath.Dir(path), 0o755))
	check(t, os.Chmod(filepath.Dir(filepath.Dir(path)), 0o755))
	for _, node := range []string{"nvidiactl", "nvidia0"} {
		check(t, os.WriteFile(filepath.Join(nodes, node), nil, 0))
		for _, result := range []string{"100", "999", "304"} { // drivers say one or another
			t.Setenv("FAKE_CUDA_INIT", result)
			asOther(t, func() {
				_, err := load(path, nodes)
				var p *Permission
				if !errors.Is(err, ErrPermission) || !errors.As(err, &p) || p.Node != filepath.Join(nodes, node) || !errors.Is(err, syscall.EACCES) {
					t.Errorf("%s, cuInit %s: %v", node, result, err)
					return
				}
				contains(t, err, "read and write permission", node)
			})
		}
	}
}

func TestLoadSaysWhyTheDriverCannotStart(t *testing.T) {
	nodes := t.TempDir()
	check(t, os.WriteFile(filepath.Join(nodes, "nvidiactl"), nil, 0o666))
	path := copyFake(t)
	for result, remedy := range map[int]string{802: "nvidia-fabricmanager", 803: "reboot", 804: "cuda-compat", 805: "MPS", 46: "exclusive", 999: "dmesg", 304: "dmesg"} {
		t.Setenv("FAKE_CUDA_INIT", fmt.Sprint(result))
		_, err := load(path, nodes)
		var e *NotReady
		if !errors.Is(err, ErrNotReady) || !errors.As(err, &e) || e.Call.Result != cuda.Result(result) || e.Call.Call != "cuInit" {
			t.Errorf("cuInit %d: %v", result, err)
			continue
		}
		contains(t, err, remedy, fmt.Sprint(result))
	}
	t.Setenv("FAKE_CUDA_INIT", "0") // and it can, later
	if _, err := load(path, nodes); err != nil {
		t.Error(err)
	}
}

func TestADriverIsOneValueAndSaysWhichFileItIs(t *testing.T) {
	path := buildFake(t)
	first := must(LoadPath(path))(t)
	link := filepath.Join(t.TempDir(), "libcuda.so.1")
	check(t, os.Symlink(path, link))
	for _, name := range []string{path, link} {
		again := must(LoadPath(name))(t)
		if again != first {
			t.Errorf("%s is another value", name)
		}
		if got, want := again.Library(), (cuda.Library{Name: "libcuda", Path: path, Version: 12040}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	if other := must(LoadPath(copyFake(t)))(t); other == first {
		t.Error("two drivers are one value")
	}
	done := make(chan cuda.Calls)
	fresh := copyFake(t)
	for range 8 {
		go func() {
			l, err := LoadPath(fresh)
			if err != nil {
				t.Error(err)
			}
			done <- l
		}()
	}
	one := <-done
	for range 7 {
		if l := <-done; l != one {
			t.Error("loaded by several at the same time, it is several")
		}
	}
}

// This machine's own driver, whichever it is; most have none.
func TestTheInstalledDriverLoadsOrSaysWhyNot(t *testing.T) {
	calls, err := Load()
	known := false
	for _, kind := range []error{ErrNoLibrary, ErrTooOld, ErrStub, ErrNoDevice, ErrPermission, ErrNotReady} {
		known = known || errors.Is(err, kind)
	}
	switch {
	case known:
		t.Skipf("driver: %v", err)
	case err != nil:
		t.Fatal(err)
	}
	t.Logf("%+v", calls.Library())
	for _, d := range must(calls.Devices())(t) {
		t.Logf("%+v", d)
		if active, err := calls.PrimaryActive(d.Ordinal); err != nil || active {
			t.Errorf("GPU %d: listing made a context: %v, %v", d.Ordinal, active, err)
		}
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
		if !strings.HasSuffix(line, " 0 0") || strings.Contains(line, "/libcuda ") {
			t.Errorf("the root package links C: %s", line)
		}
	}
	if len(lines) < 5 {
		t.Errorf("only %d packages listed", len(lines))
	}
}

// proves C-1
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
