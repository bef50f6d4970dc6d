package libcuda

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/orbitte/orbitte/cuda"
)

const (
	nodeFolder = "/dev"
	busFolder  = "/sys/bus/pci/devices"
)

// stubLibrary is CUDA_ERROR_STUB_LIBRARY.
const stubLibrary cuda.Result = 34

// explain says why the driver did not start, as far as its result and the device nodes show it. A driver that may not
// open a node reports one of several results, "no device" among them.
func explain(native *cuda.CallError, path string, version int, nodes string) error {
	switch native.Result {
	case stubLibrary:
		native.Name = "CUDA_ERROR_STUB_LIBRARY" // a stub cannot name it
		return &Stub{Path: path, Call: native}
	case cuda.NoDevice, cuda.InvalidDevice, cuda.NotPermitted, cuda.Unknown, operatingSystem:
	default:
		return &NotReady{Path: path, Version: version, Call: native}
	}
	if node, err := forbidden(nodes); err != nil {
		return &Permission{Node: node, Err: err, Call: native}
	}
	node := filepath.Join(nodes, "nvidiactl")
	f, err := os.OpenFile(node, os.O_RDWR, 0)
	if err == nil {
		_ = f.Close()
	}
	var e *os.PathError
	if errors.As(err, &e) {
		err = e.Err
	}
	if err == nil && native.Result != cuda.NoDevice {
		return &NotReady{Path: path, Version: version, Call: native}
	}
	visible, hidden := os.LookupEnv("CUDA_VISIBLE_DEVICES")
	return &NoDevice{Path: path, Version: version, Hidden: hidden, Visible: visible, Node: node, NodeErr: err, Call: native}
}

// forbidden finds a device node that is there and that this process may not open.
func forbidden(nodes string) (string, error) {
	found, _ := filepath.Glob(filepath.Join(nodes, "nvidia[0-9]*"))
	for _, node := range append(found, filepath.Join(nodes, "nvidiactl"), filepath.Join(nodes, "nvidia-uvm")) {
		f, err := os.OpenFile(node, os.O_RDWR, 0)
		if err == nil {
			_ = f.Close()
		}
		for _, errno := range []syscall.Errno{syscall.EACCES, syscall.EPERM} {
			if errors.Is(err, errno) {
				return node, errno
			}
		}
	}
	return "", nil
}

// busName brings the driver's name of a PCI device into the kernel's form: "0000:18:00.0". The driver's tools write
// the domain with eight digits.
func busName(name string) string {
	name = strings.ToLower(name)
	if domain, rest, ok := strings.Cut(name, ":"); ok && len(domain) == 8 && strings.HasPrefix(domain, "0000") {
		return domain[4:] + ":" + rest
	}
	return name
}

// numaNode is the node of a PCI device; -1: unknown.
func numaNode(bus, name string) int {
	text, err := os.ReadFile(filepath.Join(bus, name, "numa_node"))
	if err != nil || name == "" {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || n < 0 {
		return -1
	}
	return n
}
