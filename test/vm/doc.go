// Command vm boots a Debian kernel with soft-RoCE devices in QEMU and runs commands of this machine in it, so that the
// RDMA code meets the kernel's own verbs where no RDMA hardware is. With a build tag vm its tests prove the machine
// itself; vm gate runs those, the suites of the RDMA rooms and the baselines, and prints the table of what was proved.
//
// It owns the QEMU processes it starts (killed when the run ends, is interrupted or is killed), the anonymous files
// handed to them (gone with the last descriptor), and the cache folder with the unpacked kernels (one builder at a
// time under a file lock; each kernel is complete or absent). The same binary is the first process of the guest: it
// mounts, loads modules, makes the network and runs the command; nothing of the guest outlives QEMU.
//
// It may import anything of the house and uses nothing of it but x/sys. Nothing imports it.
//
// One guest, as the host sees it (an early death is repeated once):
//
//	booting ──ready──▶ waiting ──go──▶ running ──exit──▶ exited
//	   │                                  ├──limit──▶ time limit
//	   └──panic, silence, end of QEMU─────┴──────────▶ panic, hang, died
//
// It relies on Debian's packages (apt as root, else exit status 77 and a typed reason), on QEMU's 9p server and virtio
// devices, on the boot protocol of Documentation/arch/x86/boot.rst, and on iproute2, which sets up the guest's network.
package main
