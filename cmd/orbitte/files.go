package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/orbitte/orbitte"
)

// hashStep is how many bytes are read or hashed between two looks at the context.
const hashStep = 1 << 20

// served is one published file. close ends it, after its registration.
type served struct {
	entry
	file    *os.File
	mapping *mapping        // nil when the bytes were loaded, or there are none
	memory  *orbitte.Memory // nil when there are none
}

// openServed opens the file and takes its size; load brings the bytes.
func openServed(path string, writable bool) (*served, error) {
	mode := os.O_RDONLY
	if writable {
		mode = os.O_RDWR
	}
	f, err := os.OpenFile(path, mode, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &failure{class: errLocal, object: path, cause: errors.New("not a regular file"), remedy: "name the files themselves"}
	}
	name := filepath.Base(path)
	if err == nil {
		if err = checkName(name); err != nil {
			err = &failure{class: errLocal, object: path, cause: err, remedy: "rename the file"}
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &served{entry: entry{Name: name, Size: uint64(info.Size()), Writable: writable}, file: f}, nil
}

// load brings the bytes into memory and hashes them: a private copy, or a mapping of the file.
func (s *served) load(ctx context.Context, mapped bool) (err error) {
	if s.Size == 0 {
		s.SHA256 = sha256.Sum256(nil)
		return nil
	}
	if mapped || s.Writable {
		if s.mapping, err = mapFile(s.file, s.Size, s.Writable); err != nil {
			return err
		}
		if s.memory, err = s.mapping.adopt(); err != nil {
			return err
		}
		s.Address = s.memory.Address()
		return s.hash(ctx)
	}
	if s.memory, err = orbitte.Allocate(int(s.Size)); err != nil {
		return err
	}
	s.Address = s.memory.Address()
	hash := sha256.New()
	for rest := s.memory.Bytes(); len(rest) > 0; {
		step := rest[:min(hashStep, len(rest))]
		if _, err := io.ReadFull(s.file, step); err != nil {
			return &failure{class: errLocal, object: s.file.Name(), cause: fmt.Errorf("%d of %d bytes could be read: %w", s.Size-uint64(len(rest)), s.Size, err), remedy: "serve a file that nobody changes"}
		}
		hash.Write(step)
		rest = rest[len(step):]
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	hash.Sum(s.SHA256[:0])
	return nil
}

// hash computes the SHA-256 of what is in memory now.
func (s *served) hash(ctx context.Context) error {
	hash := sha256.New()
	var rest []byte
	if s.memory != nil {
		rest = s.memory.Bytes()
	}
	for len(rest) > 0 {
		n := min(hashStep, len(rest))
		hash.Write(rest[:n])
		rest = rest[n:]
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	hash.Sum(s.SHA256[:0])
	return nil
}

// sync brings a writable file's bytes to the file system.
func (s *served) sync() error {
	if !s.Writable || s.mapping == nil {
		return nil
	}
	if err := s.mapping.sync(); err != nil {
		return &os.PathError{Op: "msync", Path: s.file.Name(), Err: err}
	}
	return nil
}

// inPlace says whether the open file is still the one at its path. A file that was moved away or removed
// keeps taking bytes, which nobody would find under its name.
func (s *served) inPlace() error {
	own, err := s.file.Stat()
	if err != nil {
		return err
	}
	there, err := os.Stat(s.file.Name())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s is no longer at its path: it was removed or moved away", s.Name)
	case err != nil:
		return err
	case !os.SameFile(own, there):
		return fmt.Errorf("%s is no longer at its path: another file is there", s.Name)
	}
	return nil
}

func (s *served) permission() orbitte.Permission {
	if s.Writable {
		return orbitte.ReadWrite
	}
	return orbitte.RemoteRead
}

// close ends memory, mapping and file. The engine is closed by then, so nothing touches them.
func (s *served) close() error {
	err := s.sync()
	if s.memory != nil {
		s.memory.Close()
	}
	if s.mapping != nil {
		err = errors.Join(err, s.mapping.unmap())
	}
	return errors.Join(err, s.file.Close())
}
