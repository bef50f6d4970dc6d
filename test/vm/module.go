package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"path"
	"slices"
	"strings"
)

// modulesWanted are the kernel modules of the guest, besides what they need. What a kernel has built in is not missed.
var modulesWanted = []string{
	"virtio_pci", "virtio_console", "9pnet_virtio", "9p", "virtio_net", "veth", // the machine
	"crc32c_generic", "crc32_generic", "ib_uverbs", "rdma_rxe", // soft-RoCE; its checksum is looked up by name
	"sch_netem", "nf_tables", "tcp_diag", "udp_diag", // loss and delay, byte counters, ss
}

// moduleFolders are the parts of the package the wanted modules and their needs lie in, below kernel/.
var moduleFolders = []string{
	"arch/x86/crypto/", "crypto/", "drivers/char/", "drivers/infiniband/", "drivers/net/", "drivers/virtio/",
	"fs/9p/", "fs/fscache/", "fs/netfs/", "lib/", "net/",
}

// moduleName is a module's name from its path: without folder and endings, with underscores.
func moduleName(file string) string {
	name, _, _ := strings.Cut(path.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// moduleNeeds reads the modules that a module names in the "depends" of its section .modinfo.
func moduleNeeds(object []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(object))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("no section .modinfo")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	for field := range strings.SplitSeq(string(info), "\x00") {
		if needs, ok := strings.CutPrefix(field, "depends="); ok && needs != "" {
			return strings.Split(strings.ReplaceAll(needs, "-", "_"), ","), nil
		}
	}
	return nil, nil
}

// A module is one kernel module, unpacked.
type module struct {
	name   string
	object []byte
}

// modulesInOrder gives the wanted modules and what they need, each after its needs. Packed maps names to the packed
// files, unpack undoes the packing; a name that is not there is built in.
func modulesInOrder(wanted []string, packed map[string][]byte, unpack func([]byte) ([]byte, error)) ([]module, error) {
	var order []module
	var visit func(name string) error
	visit = func(name string) error {
		file, ok := packed[name]
		if !ok || slices.ContainsFunc(order, func(m module) bool { return m.name == name }) {
			return nil
		}
		object, err := unpack(file)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		needs, err := moduleNeeds(object)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		for _, need := range needs {
			if err := visit(need); err != nil {
				return err
			}
		}
		order = append(order, module{name, object})
		return nil
	}
	for _, name := range wanted {
		if err := visit(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}
