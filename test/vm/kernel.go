package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// kernels maps the versions that may be asked for to the names of Debian's packages, security updates included.
var kernels = map[string]*regexp.Regexp{
	"6.12": regexp.MustCompile(`^linux-image-6\.12\.\d+\+deb1\d-amd64$`),
	"6.1":  regexp.MustCompile(`^linux-image-6\.1\.0-\d+-amd64$`),
}

const kernelDefault = "6.12"

// A kernel is one unpacked kernel in the cache.
type kernel struct {
	name   string // of the package
	image  string // path of the uncompressed ELF image: QEMU starts it by its PVH note, and nothing is unpacked under emulation
	initrd string // path of the archive with the modules
}

// recipe changes when what is made of a package changes, so that older results are made anew.
func recipe() string {
	sum := sha256.Sum256([]byte("1 " + strings.Join(modulesWanted, " ") + strings.Join(moduleFolders, " ")))
	return hex.EncodeToString(sum[:4])
}

// findKernel gives a kernel from the cache, or downloads and unpacks it first. One caller at a time does that.
func findKernel(version, cache string, say func(string)) (kernel, error) {
	pattern := kernels[version]
	if pattern == nil {
		return kernel{}, fmt.Errorf("kernel %q: it is one of 6.12, 6.1", version)
	}
	unlock, err := lock(filepath.Join(cache, "kernel-"+version+".lock"))
	if err != nil {
		return kernel{}, err
	}
	defer unlock()
	made, err := filepath.Glob(filepath.Join(cache, "linux-image-*."+recipe()))
	if err != nil {
		return kernel{}, err
	}
	slices.SortFunc(made, byVersion)
	for _, folder := range slices.Backward(made) {
		if name := strings.TrimSuffix(filepath.Base(folder), "."+recipe()); pattern.MatchString(name) {
			return kernelIn(folder, name), nil
		}
	}
	name, err := newestPackage(pattern)
	if err != nil {
		return kernel{}, err
	}
	return makeKernel(name, cache, say)
}

func kernelIn(folder, name string) kernel {
	return kernel{name, filepath.Join(folder, "vmlinux"), filepath.Join(folder, "modules.cpio")}
}

// newestPackage asks apt for the newest package that matches, with fresh lists when there is none.
func newestPackage(pattern *regexp.Regexp) (string, error) {
	search := func() (string, error) {
		out, err := exec.Command("apt-cache", "pkgnames", "linux-image-6").Output()
		names := slices.DeleteFunc(strings.Fields(string(out)), func(n string) bool { return !pattern.MatchString(n) })
		if err != nil || len(names) == 0 {
			return "", err
		}
		return slices.MaxFunc(names, byVersion), nil
	}
	name, err := search()
	if name == "" && err == nil {
		if err = apt("update"); err != nil {
			return "", &cannot{"no-network", err.Error()}
		}
		name, err = search()
	}
	switch {
	case err != nil:
		return "", &cannot{"no-apt", "apt-cache: " + err.Error()}
	case name == "":
		return "", &cannot{"no-kernel", "apt knows no package " + pattern.String() + "; add bookworm and bookworm-security to its sources"}
	}
	return name, nil
}

var numbers = regexp.MustCompile(`\d+|\D+`)

// byVersion compares names so that 6.12.9 comes before 6.12.100.
func byVersion(a, b string) int {
	return slices.CompareFunc(numbers.FindAllString(a, -1), numbers.FindAllString(b, -1), func(x, y string) int {
		if x[0] >= '0' && x[0] <= '9' && y[0] >= '0' && y[0] <= '9' && len(x) != len(y) {
			return len(x) - len(y)
		}
		return strings.Compare(x, y)
	})
}

// makeKernel downloads a package and keeps of it what a guest needs.
func makeKernel(name, cache string, say func(string)) (k kernel, err error) {
	work, err := os.MkdirTemp(cache, "unpacking-")
	if err != nil {
		return kernel{}, &cannot{"no-cache", err.Error()}
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	start := time.Now()
	size, err := unpackPackage(name, work)
	if err != nil {
		return kernel{}, err
	}
	folder := filepath.Join(cache, name+"."+recipe())
	if err := os.Rename(work, folder); err != nil {
		return kernel{}, err
	}
	say(fmt.Sprintf("downloaded and unpacked %s (%d MB) in %.1f s", name, size/1e6, time.Since(start).Seconds()))
	return kernelIn(folder, name), nil
}

// unpackPackage fills a folder with vmlinux and modules.cpio and returns the size of the package in bytes.
func unpackPackage(name, folder string) (int64, error) {
	download := exec.Command("apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", name)
	download.Dir, download.SysProcAttr = folder, diesWithUs()
	if out, err := download.CombinedOutput(); err != nil {
		return 0, &cannot{"no-network", fmt.Sprintf("apt-get download %s: %v: %s", name, err, lastLine(string(out)))}
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.deb"))
	if err != nil || len(files) != 1 {
		return 0, fmt.Errorf("apt-get download %s left %d packages, not one", name, len(files))
	}
	info, err := os.Stat(files[0])
	if err != nil {
		return 0, err
	}
	image, packed, err := readPackage(files[0])
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	if err := os.Remove(files[0]); err != nil {
		return 0, err
	}
	if err := writeImage(image, filepath.Join(folder, "vmlinux")); err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	modules, err := modulesInOrder(modulesWanted, packed, unpack)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	if len(modules) == 0 {
		return 0, fmt.Errorf("%s has none of the modules %v", name, modulesWanted)
	}
	return info.Size(), writeModules(modules, filepath.Join(folder, "modules.cpio"))
}

// readPackage takes the boot image and the modules, still compressed, out of a package.
func readPackage(file string) (image []byte, modules map[string][]byte, err error) {
	cmd := exec.Command("dpkg-deb", "--fsys-tarfile", file)
	cmd.SysProcAttr = diesWithUs()
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	modules = map[string][]byte{}
	reader := tar.NewReader(pipe)
	for {
		head, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
		}
		name := strings.TrimPrefix(head.Name, ".")
		switch {
		case strings.HasPrefix(name, "/boot/vmlinuz-"):
			image, err = io.ReadAll(reader)
		case moduleOfInterest(name):
			modules[moduleName(name)], err = io.ReadAll(reader)
		}
		if err != nil {
			return nil, nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
		}
	}
	_, _ = io.Copy(io.Discard, pipe) // padding behind the archive; Wait tells whether it was whole
	if err := cmd.Wait(); err != nil {
		return nil, nil, fmt.Errorf("dpkg-deb: %w", err)
	}
	if image == nil {
		return nil, nil, errors.New("no /boot/vmlinuz in it")
	}
	return image, modules, nil
}

func moduleOfInterest(name string) bool {
	_, below, ok := strings.Cut(name, "/kernel/")
	return ok && strings.Contains(below, ".ko") &&
		slices.ContainsFunc(moduleFolders, func(f string) bool { return strings.HasPrefix(below, f) })
}

// compressions are the beginnings of the formats that Debian's kernels use, and what undoes them.
var compressions = []struct {
	magic string
	args  []string
}{
	{"\x28\xb5\x2f\xfd", []string{"zstd", "-dcq"}},
	{"\xfd7zXZ\x00", []string{"xz", "-dc"}},
	{"\x1f\x8b", []string{"gzip", "-dc"}},
}

func unpack(file []byte) ([]byte, error) {
	for _, c := range compressions {
		if !bytes.HasPrefix(file, []byte(c.magic)) {
			continue
		}
		cmd := exec.Command(c.args[0], c.args[1:]...)
		cmd.Stdin, cmd.SysProcAttr = bytes.NewReader(file), diesWithUs()
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.args[0], err)
		}
		return out, nil
	}
	return file, nil
}

// payload finds the compressed kernel in a boot image by the header of the x86 boot protocol, version 2.08 and later.
// Its last four bytes are the size of what it unpacks to.
func payload(image []byte) ([]byte, error) {
	const setupSectors, magic, offset, length = 0x1f1, 0x202, 0x248, 0x24c
	if len(image) < 0x250 || string(image[magic:magic+4]) != "HdrS" {
		return nil, errors.New("vmlinuz has no header of the x86 boot protocol")
	}
	at := (int64(image[setupSectors])+1)*512 + int64(binary.LittleEndian.Uint32(image[offset:]))
	size := int64(binary.LittleEndian.Uint32(image[length:]))
	if size < 4 || at+size > int64(len(image)) {
		return nil, fmt.Errorf("vmlinuz of %d bytes names a kernel of %d bytes at %d", len(image), size, at)
	}
	return image[at : at+size-4], nil
}

func writeImage(image []byte, name string) error {
	compressed, err := payload(image)
	if err != nil {
		return err
	}
	kernel, err := unpack(compressed)
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(kernel, []byte("\x7fELF")) {
		return errors.New("vmlinuz holds no ELF image")
	}
	return os.WriteFile(name, kernel, 0o644)
}

// writeModules writes the archive of the modules; the names begin with their place in the order of loading.
func writeModules(modules []module, name string) error {
	var buffer bytes.Buffer
	a := archive{to: &buffer}
	a.folder("modules")
	for i, m := range modules {
		a.file(fmt.Sprintf("modules/%02d-%s.ko", i, m.name), m.object)
	}
	if err := a.close(); err != nil {
		return err
	}
	return os.WriteFile(name, buffer.Bytes(), 0o644)
}
