package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// checkTarget admits a path at which nothing is, or a regular file that may be written: a rename would
// replace anything but a folder, whatever its mode.
func checkTarget(path string) error {
	refused := func(what, remedy string) error {
		return &failure{class: errTarget, object: path, cause: errors.New(what), known: "it was left as it is", remedy: remedy}
	}
	if _, _, ok := cutTemporary(filepath.Base(path)); ok {
		return refused("it has the name of a temporary file, which a later get would remove", "give another name with -o")
	}
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return refused(reason(err), remedyOf(err))
	}
	switch mode := info.Mode(); {
	case mode&fs.ModeSymlink != 0:
		return refused("it is a symbolic link, which get does not follow", "name the file that it leads to, or remove the link")
	case mode.IsDir():
		return refused("it is a folder", "name a file, or an existing folder to put the file into")
	case !mode.IsRegular():
		return refused("it is a device, pipe or socket, not a regular file", "give a path; get replaces only regular files")
	}
	if what, remedy := unwritable(info, unix.Access(path, unix.W_OK)); what != "" {
		return refused(what, remedy)
	}
	return nil
}

// unwritable says what forbids writing a regular file, after what access(2) said about it. Nobody is asked
// to change a mode that is not the reason.
func unwritable(info fs.FileInfo, err error) (what, remedy string) {
	mode := info.Mode().Perm()
	native, ok := info.Sys().(*syscall.Stat_t)
	own := ok && int(native.Uid) == os.Geteuid() && mode&0o200 == 0
	switch {
	case err != nil && !errors.Is(err, unix.EACCES):
		return "it cannot be written: " + reason(err), remedyOf(err)
	case mode&0o222 == 0 || err != nil && own:
		return fmt.Sprintf("its mode (%v) forbids writing", mode), "make it writable (chmod u+w), remove it, or name another path"
	case err != nil:
		return fmt.Sprintf("it cannot be written: %s (mode %v)", reason(err), mode), remedyOf(err)
	}
	return "", ""
}

// checkFolder admits a folder, or with made also one that can be made: nothing is at its path, and what is
// above it is a folder.
func checkFolder(path string, made bool) error {
	refused := func(what, remedy string) error {
		return &failure{class: errTarget, object: path, cause: errors.New(what), known: "nothing was changed", remedy: remedy}
	}
	info, err := os.Stat(path)
	above := filepath.Dir(path)
	switch {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		return refused("it is not a folder, and one is needed there", "name another path, or move away what is there")
	case errors.Is(err, unix.ENOTDIR) && above != path:
		return checkFolder(above, made)
	case !errors.Is(err, fs.ErrNotExist):
		return refused(reason(err), remedyOf(err))
	}
	if _, err := os.Lstat(path); err == nil {
		return refused("it is a symbolic link that leads nowhere", "make the folder that it leads to, or remove the link")
	}
	if !made {
		return refused("there is no such folder", "make it (mkdir -p), or name another path")
	}
	if above == path {
		return nil
	}
	return checkFolder(above, made)
}

// reason is the system's word for a failure, without the operation and the path.
func reason(err error) string {
	var number unix.Errno
	if errors.As(err, &number) {
		return number.Error()
	}
	return err.Error()
}

// remedyOf says what helps where a file cannot be made or written.
func remedyOf(err error) string {
	switch {
	case errors.Is(err, unix.EROFS):
		return "name a path on a file system that is not mounted read-only"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return "make room there, or name a path on another disk"
	case errors.Is(err, unix.EFBIG):
		return "name a path on a file system that admits files of this size, or raise the limit (ulimit -f)"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return "get permission to write there (ls -ld and lsattr -d show what stands against it), or name another path"
	}
	return "see the system's error, or name another path"
}

// temporaryPrefix begins the temporary names of a target: .NAME.orbitte-PID-RANDOM. The name is cut to
// 200 bytes, so that the whole stays within 255.
func temporaryPrefix(path string) string {
	name := filepath.Base(path)
	return "." + name[:min(len(name), 200)] + ".orbitte-"
}

// permissionOf is the permission of the file that would be replaced.
func permissionOf(path string) (old fs.FileMode, ok bool) {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() {
		return 0, false
	}
	return info.Mode().Perm(), true
}

// createTemporary makes the file, for nobody who may not use the one at path, and locks it. Sweep of another process may take it away before the lock is
// there; then another one is made.
func createTemporary(path string) (*os.File, error) {
	mode := fs.FileMode(0o666)
	if old, ok := permissionOf(path); ok {
		mode = old
	}
	for {
		random := make([]byte, 6)
		rand.Read(random)
		name := fmt.Sprintf("%s%d-%x", temporaryPrefix(path), os.Getpid(), random)
		f, err := os.OpenFile(filepath.Join(filepath.Dir(path), name), os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		var info unix.Stat_t
		if err != unix.EWOULDBLOCK && unix.Fstat(int(f.Fd()), &info) == nil && info.Nlink > 0 {
			return f, nil // also where the file system has no locks; sweep needs one
		}
		os.Remove(f.Name())
		f.Close()
	}
}

// staleAge is when a file that nobody has locked is stale even if a process has its number again.
const staleAge = 24 * time.Hour

// sweep removes what killed processes left of the same targets, which all are in one folder. What cannot
// be told safely stays.
func sweep(paths []string) {
	if len(paths) == 0 {
		return
	}
	folder := filepath.Dir(paths[0])
	prefixes := map[string]bool{}
	for _, path := range paths {
		prefixes[temporaryPrefix(path)] = true
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return // creating the output will say so
	}
	for _, e := range entries {
		if pid, ok := temporaryOf(e.Name(), prefixes); ok {
			removeStale(filepath.Join(folder, e.Name()), pid)
		}
	}
}

// temporaryOf reads the process out of a temporary name that has one of the prefixes.
func temporaryOf(name string, prefixes map[string]bool) (pid int, ok bool) {
	prefix, pid, ok := cutTemporary(name)
	return pid, ok && prefixes[prefix]
}

// cutTemporary reads a name of the form that temporary files have. No published file and no target may have
// such a name, so that sweep meets nothing else under it.
func cutTemporary(name string) (prefix string, pid int, ok bool) {
	const mark = ".orbitte-"
	at := strings.LastIndex(name, mark)
	if at < 1 || name[0] != '.' {
		return "", 0, false
	}
	digits, random, ok := strings.Cut(name[at+len(mark):], "-")
	pid, err := strconv.Atoi(digits)
	return name[:at+len(mark)], pid, ok && err == nil && pid > 0 && len(random) == 12
}

// removeStale removes a temporary file of ours that nobody has locked and whose process is gone, or which
// is old. The lock is what counts: by its number a process of another container seems to be gone, and one
// that has the number by chance seems to be there.
func removeStale(path string, pid int) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return
	}
	var native unix.Stat_t
	if unix.Fstat(int(f.Fd()), &native) != nil || int(native.Uid) != os.Geteuid() {
		return
	}
	gone := unix.Kill(pid, 0) == unix.ESRCH
	if (gone || time.Since(info.ModTime()) > staleAge) && unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		os.Remove(path)
	}
}
