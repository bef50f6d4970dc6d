package main

import (
	"fmt"
	"io"
)

// archive writes a cpio archive of the "newc" kind, which the kernel unpacks as its first root file system
// (Documentation/driver-api/early-userspace/buffer-format.rst). Several archives may follow each other.
type archive struct {
	to    io.Writer
	err   error // the first one; later writes do nothing
	inode int
}

const (
	modeFolder  = 0o040755
	modeProgram = 0o100755
	modeFile    = 0o100644
)

func (a *archive) folder(name string) { a.entry(name, modeFolder, nil) }

func (a *archive) program(name string, text []byte) { a.entry(name, modeProgram, text) }

func (a *archive) file(name string, text []byte) { a.entry(name, modeFile, text) }

// close ends the archive and reports what went wrong.
func (a *archive) close() error {
	a.entry("TRAILER!!!", 0, nil)
	return a.err
}

func (a *archive) entry(name string, mode int, text []byte) {
	a.inode++
	const uid, gid, links, mtime, device, check = 0, 0, 1, 0, 0, 0
	head := "070701"
	for _, v := range []int{a.inode, mode, uid, gid, links, mtime, len(text), device, device, device, device, len(name) + 1, check} {
		head += fmt.Sprintf("%08x", v)
	}
	a.write([]byte(head + name + "\x00"))
	a.pad(len(head) + len(name) + 1)
	a.write(text)
	a.pad(len(text))
}

// pad fills up to a multiple of four bytes.
func (a *archive) pad(size int) { a.write(make([]byte, -size&3)) }

func (a *archive) write(bytes []byte) {
	if a.err == nil {
		_, a.err = a.to.Write(bytes)
	}
}
