package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// unfit makes one target of each kind that get must not replace.
func unfit(t *testing.T, folder string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, kind := range []string{"pipe", "link", "broken link", "read-only"} {
		all[kind] = filepath.Join(folder, kind)
	}
	kept, _ := file(t, folder, "kept", 10)
	for _, err := range []error{
		unix.Mkfifo(all["pipe"], 0o666), os.Symlink(kept, all["link"]), os.Symlink("nowhere", all["broken link"]),
		os.WriteFile(all["read-only"], []byte("old"), 0o444),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func TestGetRefusesTargetsThatAreNoWritableRegularFile(t *testing.T) {
	folder := t.TempDir()
	targets := unfit(t, folder)
	targets["device"] = "/dev/null"
	says := map[string]string{"pipe": "not a regular file", "device": "not a regular file", "link": "symbolic link", "broken link": "symbolic link", "read-only": "forbids writing"}
	for kind, path := range targets {
		t.Run(kind, func(t *testing.T) {
			before, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			// Nobody listens there: the target is looked at before the source is asked.
			inside("get", "--from", "127.0.0.1:1", "x", "-o", path).want(t, exitUsage, "class:  unfit target", says[kind], "it was left as it is", "remedy: ")
			after, err := os.Lstat(path)
			if err != nil || !os.SameFile(before, after) || before.Mode() != after.Mode() {
				t.Errorf("%v became %v, %v", before, after, err)
			}
		})
	}
}

func TestGetRefusesPlacesThatAreUnfitBeforeItAsksTheSource(t *testing.T) {
	folder := t.TempDir()
	a, old := file(t, folder, "a.bin", 10)
	dangling := filepath.Join(folder, "dangling")
	if err := os.Symlink("nowhere", dangling); err != nil {
		t.Fatal(err)
	}
	round := filepath.Join(folder, "round")
	if err := os.Symlink("round", round); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"x", "-o", a + "/"}, "a.bin: unfit target: it is not a folder"},
		{[]string{"x", "-o", a + "/deeper"}, "a.bin: unfit target: it is not a folder"},
		{[]string{"--all", "-o", a}, "a.bin: unfit target: it is not a folder"},
		{[]string{"--all", "-o", a + "/deeper/still"}, "a.bin: unfit target: it is not a folder"},
		{[]string{"x", "y", "-o", a}, "a.bin: unfit target: it is not a folder"},
		{[]string{"x", "y", "-o", dangling}, "a symbolic link that leads nowhere"},
		{[]string{"x", "-o", dangling + "/"}, "a symbolic link that leads nowhere"},
		{[]string{"x", "-o", dangling + "/z"}, "a symbolic link that leads nowhere"},
		{[]string{"--all", "-o", dangling + "/deeper"}, "a symbolic link that leads nowhere"},
		{[]string{"--all", "-o", round}, "too many levels of symbolic links"},
		{[]string{"x", "-o", filepath.Join(folder, "x/y/z")}, "x/y: unfit target: there is no such folder"},
		{[]string{"x", "a.bin", "-o", filepath.Join(folder, strings.Repeat("n", 256))}, "file name too long"},
		{[]string{"x", "-o", filepath.Join(folder, strings.Repeat("n", 256))}, "file name too long"},
		{[]string{"x", "-o", filepath.Join(folder, ".data.orbitte-12-0123456789ab")}, "the name of a temporary file"},
	} { // nobody listens there
		inside(append([]string{"get", "--from", "127.0.0.1:1"}, c.args...)...).want(t, exitUsage, "class:  unfit target", c.says, "known: ", "remedy: ")
	}
	holds(t, folder, "a.bin", "dangling", "round")
	same(t, a, old)
	inside("get", "--from", "127.0.0.1:1", "x", "-o", filepath.Join(folder, "made/too")+"/").want(t, exitFailed, "source unreachable")
}

// owned is a file with an owner and a mode.
type owned struct {
	fs.FileInfo
	mode fs.FileMode
	uid  int
}

func (o owned) Mode() fs.FileMode { return o.mode }
func (o owned) Sys() any          { return &syscall.Stat_t{Uid: uint32(o.uid)} }

func TestOnlyAModeIsAnsweredByChmod(t *testing.T) {
	me, other := os.Geteuid(), os.Geteuid()+1
	for _, c := range []struct {
		file         owned
		err          error
		what, remedy string
	}{
		{owned{mode: 0o644, uid: me}, nil, "", ""},
		{owned{mode: 0o444, uid: me}, nil, "its mode (-r--r--r--) forbids writing", "chmod u+w"}, // root may
		{owned{mode: 0o444, uid: me}, unix.EACCES, "its mode (-r--r--r--) forbids writing", "chmod u+w"},
		{owned{mode: 0o464, uid: me}, unix.EACCES, "its mode (-r--rw-r--) forbids writing", "chmod u+w"},
		{owned{mode: 0o644, uid: other}, unix.EACCES, "permission denied (mode -rw-r--r--)", "get permission"},
		{owned{mode: 0o644, uid: me}, unix.EROFS, "read-only file system", "not mounted read-only"},
		{owned{mode: 0o444, uid: me}, unix.EROFS, "read-only file system", "not mounted read-only"},
		{owned{mode: 0o644, uid: me}, unix.EPERM, "operation not permitted", "lsattr"},
		{owned{mode: 0o644, uid: me}, unix.EIO, "input/output error", "see the system's error"},
	} {
		what, remedy := unwritable(c.file, c.err)
		if !strings.Contains(what, c.what) || !strings.Contains(remedy, c.remedy) || (what == "") != (c.what == "") ||
			strings.Contains(remedy, "chmod") != (c.remedy == "chmod u+w") {
			t.Errorf("%v %v: %q, %q", c.file.mode, c.err, what, remedy)
		}
	}
}

func TestAnOutputThatCannotBeMadeIsExplained(t *testing.T) {
	path, _ := file(t, t.TempDir(), "data", 100)
	s := startSource(t, path)
	known := "known:  nothing of it was received; no output file was written"
	// proc(5) lets nobody make a file.
	tool(t, append([]string{"get", "data", "-o", "/proc/orbitte-out"}, s.peerFlags("--from")...)...).want(t, exitFailed, ": data: local file: open /proc/", "class:  local file", known, "remedy: ")
	tool(t, append([]string{"get", "--all", "-o", "/proc/orbitte-out"}, s.peerFlags("--from")...)...).want(t, exitFailed, "/proc/orbitte-out: mkdir", "class:  local file", "known:  no file was received", "remedy: ")
	for err, says := range map[error]string{unix.ENOSPC: "make room", unix.EDQUOT: "make room", unix.EACCES: "permission", unix.EROFS: "read-only", unix.EFBIG: "ulimit"} {
		if got := remedyOf(&os.PathError{Op: "open", Path: "p", Err: err}); !strings.Contains(got, says) {
			t.Errorf("%v: %s", err, got)
		}
	}
}

func TestServePublishesNoFileWithTheNameOfATemporaryOne(t *testing.T) {
	path, _ := file(t, t.TempDir(), ".data.orbitte-12-0123456789ab", 10)
	s, err := openServed(path, false)
	if err == nil {
		s.close()
		t.Fatal("it is published")
	}
	if said := explain("T", err); !strings.Contains(said, "get's temporary files have such names") || !strings.Contains(said, "remedy: rename the file") {
		t.Error(said)
	}
}

func TestGetAllLooksAtEveryTargetBeforeTheFirstByte(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	first, _ := file(t, from, "a", 100)
	second, _ := file(t, from, "b", 100)
	if err := os.Mkdir(filepath.Join(to, "b"), 0o777); err != nil {
		t.Fatal(err)
	}
	s := startSource(t, first, second)
	tool(t, append([]string{"get", "--all", "-o", to}, s.peerFlags("--from")...)...).want(t, exitUsage, "class:  unfit target", "it is a folder")
	holds(t, to, "b")
	through := filepath.Join(t.TempDir(), "through") // a link to the folder of -o is followed
	if err := os.Symlink(to, through); err != nil {
		t.Fatal(err)
	}
	tool(t, append([]string{"get", "a", "-o", through}, s.peerFlags("--from")...)...).want(t, 0)
	holds(t, to, "a", "b")
}

func TestATargetThatTurnsUnfitMeanwhileIsNotReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	o, err := createOutput(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := o.commit(false); err == nil {
		t.Error("a pipe was replaced")
	}
	o.discard(true)
	holds(t, filepath.Dir(path), "out")
}

func TestWhatAKilledGetLeavesIsRemovedByTheNextOne(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	path, content := file(t, from, "data", 32<<20)
	s := startSource(t, path)
	middle, hold := make(chan struct{}), make(chan struct{})
	defer close(hold)
	var reached sync.Once
	relay := startRelay(t, s.Endpoint, func(d direction, at int64, _ []byte) {
		if d == toRequester && at > 9<<20 {
			reached.Do(func() { close(middle) })
			<-hold
		}
	})
	get := toolCommand(t, "get", "data", "-o", to, "--from", relay, "--epoch", s.Epoch)
	finish(t, get, func(p *os.Process) {
		<-middle
		p.Kill()
	}).want(t, -1)
	left, _ := filepath.Glob(filepath.Join(to, fmt.Sprintf(".data.orbitte-%d-*", get.Process.Pid)))
	if len(left) != 1 {
		t.Fatalf("the killed get left %q", left)
	}
	tool(t, append([]string{"get", "data", "-o", to}, s.peerFlags("--from")...)...).want(t, 0)
	holds(t, to, "data")
	same(t, filepath.Join(to, "data"), content)
}

func TestSweepRemovesOnlyWhatIsProvenStale(t *testing.T) {
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	folder, dead, alive, long := t.TempDir(), gone.Process.Pid, os.Getpid(), time.Now().Add(-25*time.Hour)
	target := filepath.Join(folder, "data")
	mine, err := createTemporary(target)
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	for _, c := range []struct {
		name         string
		locked, old  bool
		stays, isDir bool
	}{
		{name: fmt.Sprintf(".data.orbitte-%d-000000000001", dead)},
		{name: fmt.Sprintf(".data.orbitte-%d-000000000002", alive), old: true},
		{name: fmt.Sprintf(".data.orbitte-%d-000000000003", alive), stays: true},
		{name: fmt.Sprintf(".data.orbitte-%d-000000000004", dead), locked: true, stays: true},
		{name: fmt.Sprintf(".data.orbitte-%d-000000000005", dead), locked: true, old: true, stays: true},
		{name: fmt.Sprintf(".other.orbitte-%d-000000000006", dead), stays: true},
		{name: fmt.Sprintf(".data.orbitte-%d-short", dead), stays: true},
		{name: ".data.orbitte-000000000007", old: true, stays: true},
		{name: fmt.Sprintf(".data.orbitte-%d-000000000008", dead), isDir: true, stays: true},
	} {
		path := filepath.Join(folder, c.name)
		if c.isDir {
			err = os.Mkdir(path, 0o777)
		} else {
			err = os.WriteFile(path, nil, 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
		var holder *os.File
		if c.locked {
			if holder, err = os.Open(path); err == nil {
				err = unix.Flock(int(holder.Fd()), unix.LOCK_EX)
			}
		}
		if c.old && err == nil {
			err = os.Chtimes(path, long, long)
		}
		if err != nil {
			t.Fatal(err)
		}
		sweep([]string{target})
		if _, err := os.Lstat(path); (err == nil) != c.stays {
			t.Errorf("%s: stays is %v, want %v", c.name, err == nil, c.stays)
		}
		if holder != nil {
			holder.Close()
		}
	}
	if _, err := os.Stat(mine.Name()); err != nil {
		t.Error(err)
	}
}

func TestLongNamesHaveATemporaryName(t *testing.T) {
	for _, name := range []string{strings.Repeat("n", nameBytesMax), strings.Repeat("é", nameBytesMax/2)} {
		f, err := createTemporary(filepath.Join(t.TempDir(), name))
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := temporaryOf(filepath.Base(f.Name()), map[string]bool{temporaryPrefix(name): true}); !ok {
			t.Errorf("%s is not found again", f.Name())
		}
		f.Close()
	}
}
