package main

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// output is a file being received, under a temporary name beside its own, locked by flock(2) as long as
// somebody receives it. It ends with commit or discard.
type output struct {
	path    string
	file    *os.File
	mapping *mapping // nil for an empty file
}

// createOutput makes the temporary file with its full size reserved on the disk: writing through a mapping
// into a full disk would kill the process.
func createOutput(path string, size uint64) (*output, error) {
	f, err := createTemporary(path)
	if err != nil {
		return nil, err
	}
	o := &output{path: path, file: f}
	err = o.keepPermission()
	if size > 0 {
		if err == nil {
			err = reserve(f, size)
		}
		if err == nil {
			o.mapping, err = mapFile(f, size, true)
		}
	}
	if err != nil {
		o.discard(true)
		return nil, err
	}
	return o, nil
}

// reserve takes size bytes on the disk, by writing zeros where the file system has no fallocate(2).
func reserve(f *os.File, size uint64) error {
	err := unix.EINTR
	for err == unix.EINTR {
		err, _ = unix.Fallocate(int(f.Fd()), 0, 0, int64(size)).(unix.Errno)
	}
	if err == unix.EOPNOTSUPP || err == unix.ENOSYS {
		zeros := make([]byte, min(hashStep, size))
		for left := size; left > 0; {
			n, err := f.Write(zeros[:min(uint64(len(zeros)), left)])
			if err != nil {
				return err
			}
			left -= uint64(n)
		}
		return nil
	}
	if err != 0 {
		return &os.PathError{Op: "fallocate", Path: f.Name(), Err: err}
	}
	return nil
}

// keepPermission gives the new file the permission bits of the one that it replaces, if there is one.
func (o *output) keepPermission() error {
	old, ok := permissionOf(o.path)
	if !ok {
		return nil
	}
	return o.file.Chmod(old)
}

// commit puts the file into place.
func (o *output) commit(durable bool) error {
	if err := o.keepPermission(); err != nil { // it may have changed meanwhile
		return err
	}
	if durable {
		if err := o.file.Sync(); err != nil { // mapped pages included (fsync(2))
			return err
		}
	}
	if err := checkTarget(o.path); err != nil { // who knows what came there meanwhile
		return err
	}
	if err := os.Rename(o.file.Name(), o.path); err != nil {
		return err
	}
	o.end() // the file is in place and was checked; nothing is written any more that could fail
	return nil
}

// discard removes the file. What is not proven quiet stays mapped.
func (o *output) discard(quiet bool) {
	os.Remove(o.file.Name())
	if quiet {
		o.end()
	}
}

func (o *output) end() error {
	var err error
	if o.mapping != nil {
		err = o.mapping.unmap()
	}
	return errors.Join(err, o.file.Close())
}
