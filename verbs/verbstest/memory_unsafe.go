package verbstest

import (
	"bufio"
	"fmt"
	"os"
	"unsafe"
)

func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// Mapped says whether a range of this process is mapped, and writable where write is true, as proc_pid_maps(5) has it:
// what the kernel finds out when it pins the pages.
func Mapped(address, length uint64, write bool) bool {
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return false
	}
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan() && length > 0; {
		var first, end uint64
		var rights string
		if n, _ := fmt.Sscanf(lines.Text(), "%x-%x %s", &first, &end, &rights); n != 3 || address >= end {
			continue
		}
		if address < first || rights[0] != 'r' || write && rights[1] != 'w' {
			return false
		}
		step := min(length, end-address)
		address, length = address+step, length-step
	}
	return length == 0
}
