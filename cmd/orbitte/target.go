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
	"time"

	"golang.org/x/sys/unix"
)

// checkTarget admits a path at which nothing is, or a regular file that may be written: a rename would
// replace anything but a folder, whatever its mode.
func checkTarget(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	refused := func(what, remedy string) error {
		return &failure{class: errTarget, object: path, cause: errors.New(what), known: "it was left as it is", remedy: remedy}
	}
	switch mode := info.Mode(); {
	case mode&fs.ModeSymlink != 0:
		return refused("it is a symbolic link, which get does not follow", "name the file that it leads to, or remove the link")
	case mode.IsDir():
		return refused("it is a folder", "name a file, or an existing folder to put the file into")
	case !mode.IsRegular():
		return refused("it is a device, pipe or socket, not a regular file", "give a path; get replaces only regular files")
	case mode.Perm()&0o222 == 0 || unix.Access(path, unix.W_OK) != nil:
		return refused(fmt.Sprintf("its mode (%v) forbids writing", mode.Perm()), "make it writable (chmod u+w), remove it, or name another path")
	}
	return nil
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
	const mark = ".orbitte-"
	at := strings.LastIndex(name, mark)
	if at < 0 || !prefixes[name[:at+len(mark)]] {
		return 0, false
	}
	digits, random, ok := strings.Cut(name[at+len(mark):], "-")
	pid, err := strconv.Atoi(digits)
	return pid, ok && err == nil && pid > 0 && len(random) == 12
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
