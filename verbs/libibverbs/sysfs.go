package libibverbs

import (
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/orbitte/orbitte/verbs"
)

// nodeFolder holds the devices' nodes.
const nodeFolder = "/dev/infiniband"

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// word reads a small file of sysfs; empty when there is none.
func word(parts ...string) string {
	text, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// place says where a device is: its NUMA node (-1: unknown) and PCI address (empty: none, as for software devices).
func place(sysfs string) (node int, pci string) {
	node = -1
	if n, err := strconv.Atoi(word(sysfs, "device", "numa_node")); err == nil {
		node = n // the kernel, too, says -1
	}
	if path, err := filepath.EvalSymlinks(filepath.Join(sysfs, "device")); err == nil && pciAddress.MatchString(filepath.Base(path)) {
		pci = filepath.Base(path)
	}
	return node, pci
}

// accessible says why a device's node cannot be opened; nil: it can. It opens it: a device cgroup refuses an open and
// nothing before.
func accessible(device, node string) error {
	f, err := os.OpenFile(node, os.O_RDWR, 0)
	if err == nil {
		return f.Close()
	}
	var path *os.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	return &Permission{Device: device, Node: node, Err: err}
}

// sysfsGIDs reads a port's GID table from sysfs, for libraries that cannot list it.
func sysfsGIDs(sysfs string, port uint8, size int) []verbs.GIDEntry {
	folder := filepath.Join(sysfs, "ports", strconv.Itoa(int(port)))
	ethernet := word(folder, "link_layer") == "Ethernet"
	var all []verbs.GIDEntry
	for i := range size {
		index := strconv.Itoa(i)
		gid, ok := parseGID(word(folder, "gids", index))
		if !ok || gid == (verbs.GID{}) {
			continue
		}
		entry := verbs.GIDEntry{Index: i, GID: gid, Interface: word(folder, "gid_attrs", "ndevs", index)}
		switch kind := word(folder, "gid_attrs", "types", index); {
		case kind == "RoCE v2":
			entry.Type = verbs.GIDRoCEv2
		case ethernet: // "IB/RoCE v1"
			entry.Type = verbs.GIDRoCEv1
		}
		all = append(all, entry)
	}
	return all
}

// parseGID reads sysfs' eight groups of four digits.
func parseGID(text string) (verbs.GID, bool) {
	var gid verbs.GID
	digits := strings.ReplaceAll(text, ":", "")
	if len(digits) != 2*len(gid) {
		return gid, false
	}
	_, err := hex.Decode(gid[:], []byte(digits))
	return gid, err == nil
}

// bitsPerSecond is a port's speed as the kernel's own "rate" counts it (drivers/infiniband/core/sysfs.c): lanes by
// nominal rate of a lane; 0: unknown.
func bitsPerSecond(width, speed int) uint64 {
	lanes := map[int]uint64{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}[width]
	lane := map[int]uint64{1: 25, 2: 50, 4: 100, 8: 100, 16: 140, 32: 250, 64: 500, 128: 1000}[speed] // × 100 Mbit/s
	return lanes * lane * 100_000_000
}

// fileVersion is what the loaded file's name says, such as "1.14.44.0" of libibverbs.so.1.14.44.0.
func fileVersion(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	_, version, _ := strings.Cut(filepath.Base(path), ".so.")
	return version
}
