package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// oddSizes stand around pages, one request, one batch and the first half of put's buffer.
var oddSizes = []int{0, 1, 4095, 4096, 4097, 1<<20 - 1, 1 << 20, 1<<20 + 1, windowBytes - 1, windowBytes, windowBytes + 1, 2*windowBytes + 4097}

func names() []string {
	var all []string
	for _, size := range oddSizes {
		all = append(all, fmt.Sprintf("f%08d", size))
	}
	return all
}

// proves M-4
func TestGetAllFetchesFilesOfOddSizes(t *testing.T) {
	for _, engine := range [][]string{{"--kernel", "epoll"}, {"--kernel", "auto", "--direct"}} {
		t.Run(strings.Join(engine, " "), func(t *testing.T) {
			from, to := t.TempDir(), filepath.Join(t.TempDir(), "new", "folder")
			content := map[string][]byte{}
			args := slices.Clone(engine)
			for i, name := range names() {
				path, bytes := file(t, from, name, oddSizes[i])
				content[name] = bytes
				args = append(args, path)
			}
			s := startSource(t, args...)
			tool(t, slices.Concat([]string{"get", "--all", "-o", to}, engine, s.peerFlags("--from"))...).want(t, 0)
			for name, bytes := range content {
				same(t, filepath.Join(to, name), bytes)
			}
			holds(t, to, names()...)
		})
	}
}

// field case F-73
func TestGetCutsRequestsToTheSizeAskedFor(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	path, content := file(t, from, "data", 3<<20+7)
	s := startSource(t, "--map", path)
	for _, size := range []string{"1000", "64KiB", "1M", "1GiB"} {
		out := filepath.Join(to, size)
		tool(t, append(s.peerFlags("--from"), "-o", out, "data", "--request-size", size)...).want(t, 2) // no command
		tool(t, append([]string{"get", "data", "-o", out, "--request-size", size}, s.peerFlags("--from")...)...).want(t, 0)
		same(t, out, content)
	}
}

func TestPutChangesTheServedFileItself(t *testing.T) {
	for _, engine := range [][]string{{"--kernel", "epoll", "--direct"}, {"--kernel", "auto"}} {
		t.Run(strings.Join(engine, " "), func(t *testing.T) {
			sources, served, back := t.TempDir(), t.TempDir(), t.TempDir()
			args := append(slices.Clone(engine), "--writable")
			for i, name := range names() {
				path, _ := file(t, served, name, oddSizes[i])
				args = append(args, path)
			}
			s := startSource(t, args...)
			for i, name := range names() {
				path, content := file(t, sources, "other"+name, oddSizes[i])
				tool(t, slices.Concat([]string{"put", path, name}, engine, s.peerFlags("--to"))...).want(t, 0)
				same(t, filepath.Join(served, name), content)
			}
			tool(t, slices.Concat([]string{"get", "--all", "-o", back}, s.peerFlags("--from"))...).want(t, 0)
			s.stop(t)
			for i, name := range names() {
				_, content := file(t, sources, "other"+name, oddSizes[i])
				same(t, filepath.Join(served, name), content)
				same(t, filepath.Join(back, name), content)
			}
		})
	}
}

func TestPutFailsWhenTheServedFileIsNoLongerAtItsPath(t *testing.T) {
	for _, size := range []int{0, 5000} {
		for says, take := range map[string]func(served, kept string) error{
			"another file is there":        func(served, kept string) error { return os.Rename(kept, served) },
			"it was removed or moved away": func(served, _ string) error { return os.Remove(served) },
			"removed or moved away":        func(served, kept string) error { return os.Rename(served, kept+"2") },
		} {
			folder := t.TempDir()
			served, _ := file(t, folder, "w1", size)
			kept, _ := file(t, folder, "other", size)
			sent, _ := file(t, folder, "w3", size)
			s := startSource(t, "--writable", served)
			if err := take(served, kept); err != nil {
				t.Fatal(err)
			}
			tool(t, append([]string{"put", sent, "w1"}, s.peerFlags("--to")...)...).want(t, exitFailed, "w1 is no longer at its path: ", says, "remedy: ")
		}
	}
}

func TestReadOnlyAndWrongSizedFilesAreNotPut(t *testing.T) {
	folder := t.TempDir()
	path, content := file(t, folder, "served", 5000)
	other, _ := file(t, folder, "other", 5000)
	short, _ := file(t, folder, "short", 4999)
	readOnly := startSource(t, path)
	tool(t, append([]string{"put", other, "served"}, readOnly.peerFlags("--to")...)...).want(t, 1,
		"class:  permission denied", "nothing was sent", "--writable")
	writable := startSource(t, "--writable", path)
	tool(t, append([]string{"put", short, "served"}, writable.peerFlags("--to")...)...).want(t, 1,
		"short has 4999 bytes, the source's file 5000", "nothing was sent", "truncate -s 4999")
	same(t, path, content)
}

func TestALoadedFileIsServedAsItWas(t *testing.T) {
	folder := t.TempDir()
	path, content := file(t, folder, "data", 100_000)
	s := startSource(t, path)
	if err := os.Truncate(path, 10); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(folder, "out")
	tool(t, append([]string{"get", "data", "-o", out}, s.peerFlags("--from")...)...).want(t, 0)
	same(t, out, content)
}

func TestGetReplacesAFileOnlyByAVerifiedOne(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	path, content := file(t, from, "data", 1<<20)
	_, old := file(t, to, "data", 77)
	s := startSource(t, path)
	relay := startRelay(t, s.Endpoint, flip(toRequester, 300_000))
	tool(t, "get", "data", "-o", to, "--from", relay, "--epoch", s.Epoch).want(t, 1, "SHA-256 differs", "no output file was written")
	same(t, filepath.Join(to, "data"), old)
	tool(t, append([]string{"get", "data", "-o", to, "--sync"}, s.peerFlags("--from")...)...).want(t, 0)
	same(t, filepath.Join(to, "data"), content)
	holds(t, to, "data")
}

func TestAReplacedFileHandsItsPermissionOn(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	path, content := file(t, from, "data", 5000)
	s := startSource(t, path)
	mask := unix.Umask(0) // the tool inherits it
	unix.Umask(mask)
	for name, mode := range map[string]os.FileMode{"private": 0o600, "open": 0o666, "program": 0o755, "new": 0o666 &^ os.FileMode(mask)} {
		out := filepath.Join(to, name)
		if name != "new" {
			file(t, to, name, 10)
			if err := os.Chmod(out, mode); err != nil {
				t.Fatal(err)
			}
		}
		tool(t, append([]string{"get", "data", "-o", out}, s.peerFlags("--from")...)...).want(t, 0)
		same(t, out, content)
		if info, err := os.Stat(out); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v %v, want %v", name, info, err, mode)
		}
	}
}

func TestThePermissionIsKeptFromTheFirstByteToTheRename(t *testing.T) {
	path, _ := file(t, t.TempDir(), "out", 10)
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	first, err := createTemporary(path)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if info, err := first.Stat(); err != nil || info.Mode() != 0o600 {
		t.Errorf("as it is made: %v %v", info, err)
	}
	if err := os.Chmod(path, 0o602); err != nil { // more than the umask leaves
		t.Fatal(err)
	}
	o, err := createOutput(path, 100)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := o.file.Stat(); err != nil || info.Mode() != 0o602 {
		t.Errorf("while it arrives: %v %v", info, err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := o.commit(false); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o640 {
		t.Errorf("in place: %v %v", info, err)
	}
}

func TestPutNoticesDamageOnTheWay(t *testing.T) {
	folder := t.TempDir()
	path, _ := file(t, folder, "served", 1<<20)
	other, _ := file(t, folder, "other", 1<<20)
	s := startSource(t, "--writable", path)
	relay := startRelay(t, s.Endpoint, flip(toSource, 300_000))
	tool(t, "put", other, "served", "--to", relay, "--epoch", s.Epoch).want(t, 1, "SHA-256 differs", "served is changed and wrong")
}

func TestASourceKilledInTheMiddleLeavesNoOutputFile(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	path, _ := file(t, from, "data", 32<<20)
	s := startSource(t, path)
	relay := startRelay(t, s.Endpoint, func(d direction, at int64, _ []byte) {
		if d == toRequester && at > 9<<20 {
			s.command.Process.Kill()
		}
	})
	e := tool(t, "get", "data", "-o", to, "--from", relay, "--epoch", s.Epoch)
	s.kill()
	e.want(t, 1, "bytes arrived; no output file was written", "remedy: ")
	e.want(t, 1, "class:  connection lost")
	for _, wrong := range []string{"nothing was posted", "no byte was moved", "submit", "segment"} {
		if strings.Contains(e.errs, wrong) {
			t.Errorf("says %q:\n%s", wrong, e.errs)
		}
	}
	holds(t, to)
}

func TestAnInterruptedGetLeavesNoOutputFile(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	path, _ := file(t, from, "data", 32<<20)
	s := startSource(t, path)
	middle, hold := make(chan struct{}), make(chan struct{})
	relay := startRelay(t, s.Endpoint, func(d direction, at int64, _ []byte) {
		if d == toRequester && at > 9<<20 {
			select {
			case <-middle:
			default:
				close(middle)
			}
			<-hold
		}
	})
	defer close(hold)
	e := finish(t, toolCommand(t, "get", "data", "-o", to, "--from", relay, "--epoch", s.Epoch), func(p *os.Process) {
		<-middle
		p.Signal(unix.SIGINT)
	})
	e.want(t, 1, "class:  cancelled", "no output file was written")
	holds(t, to)
}

// field case F-16
func TestASilentSourceEndsTheCommandByItsTimeout(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	path, _ := file(t, from, "data", 4<<20)
	s := startSource(t, path)
	hold := make(chan struct{})
	defer close(hold)
	for _, quietFrom := range []int64{0, 1 << 20} { // during the open, during the data
		relay := startRelay(t, s.Endpoint, func(d direction, at int64, _ []byte) {
			if d == toRequester && at >= quietFrom {
				<-hold
			}
		})
		tool(t, "get", "data", "-o", to, "--from", relay, "--epoch", s.Epoch, "--timeout", "300ms").want(t, 1, "class:  deadline passed")
		holds(t, to)
	}
}

// proves G-1; field case F-5
func TestARestartedSourceOnTheSamePortIsRefusedUnderTheOldEpoch(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	path, content := file(t, from, "data", 10_000)
	old := startSource(t, "--writable", path)
	old.kill()
	renewed := startSource(t, "--writable", "--bind", old.Endpoint, path)
	if renewed.Endpoint != old.Endpoint || renewed.Epoch == old.Epoch {
		t.Fatalf("restarted as %s %s, was %s %s", renewed.Endpoint, renewed.Epoch, old.Endpoint, old.Epoch)
	}
	other, _ := file(t, from, "other", 10_000)
	const stale = "class:  the source is not the one that --epoch names"
	tool(t, append([]string{"get", "data", "-o", to}, old.peerFlags("--from")...)...).want(t, 1, stale)
	tool(t, append([]string{"put", other, "data"}, old.peerFlags("--to")...)...).want(t, 1, stale)
	tool(t, "describe", old.Endpoint, "--epoch", old.Epoch).want(t, 1, stale)
	holds(t, to)
	same(t, path, content)
	tool(t, append([]string{"get", "data", "-o", to}, renewed.peerFlags("--from")...)...).want(t, 0)
	tool(t, "get", "data", "-o", to, "--from", renewed.Endpoint).want(t, 0, "learned "+renewed.Epoch, "proves nothing about who answers")
	same(t, filepath.Join(to, "data"), content)
}

// The output is mapped, so a file larger than memory is no problem: anonymous memory stays small.
func TestReceivingALargeFileNeedsLittleMemory(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	path := filepath.Join(from, "large")
	const size = 192 << 20
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, size); err != nil { // sparse: it costs no disk
		t.Fatal(err)
	}
	s := startSource(t, "--map", path)
	most, samples := 0, 0
	command := toolCommand(t, append([]string{"get", "large", "-o", to}, s.peerFlags("--from")...)...)
	finish(t, command, func(p *os.Process) {
		for {
			kib, ok := anonymousKiB(p.Pid)
			if !ok {
				return
			}
			most, samples = max(most, kib), samples+1
			var info unix.Siginfo // until it has ended, without reaping it
			unix.Waitid(unix.P_PID, p.Pid, &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
			if info.Signo != 0 {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}).want(t, 0)
	t.Logf("anonymous memory was at most %d KiB in %d samples", most, samples)
	if most > size/2/1024 {
		t.Errorf("anonymous memory reached %d KiB for a file of %d KiB", most, size/1024)
	}
	info, err := os.Stat(filepath.Join(to, "large"))
	if err != nil || info.Size() != size {
		t.Errorf("%v %v", info, err)
	}
}

// anonymousKiB reads what of a process's memory is no file's.
func anonymousKiB(pid int) (int, bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, false
	}
	_, rest, ok := strings.Cut(string(text), "RssAnon:")
	if !ok {
		return 0, false // it has ended
	}
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	return kib, err == nil
}
