package field

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// usage is what a process has used and holds.
type usage struct {
	CPU         time.Duration // user and system, all threads
	Heap        uint64        // live bytes of the Go heap, after a collection
	RSS         uint64
	Descriptors int
	Sockets     map[string]int // own TCP sockets by state, from /proc/self/net/tcp and tcp6
}

func cpuUsed() time.Duration {
	var u unix.Rusage
	must(unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// measure reads what this process holds. A starved process cannot read /proc: those numbers stay zero then.
func measure() usage {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u := usage{Heap: m.HeapAlloc, Sockets: ownSockets()}
	if text, err := os.ReadFile("/proc/self/statm"); err == nil {
		var size, resident uint64
		if _, err := fmt.Sscan(string(text), &size, &resident); err == nil {
			u.RSS = resident * uint64(os.Getpagesize())
		}
	}
	if entries, err := os.ReadDir("/proc/self/fd"); err == nil {
		u.Descriptors = len(entries) - 1 // one of them is the folder
	}
	u.CPU = cpuUsed()
	return u
}

var tcpStates = map[string]string{
	"01": "established", "02": "syn-sent", "03": "syn-received", "04": "fin-wait-1", "05": "fin-wait-2", "06": "time-wait",
	"07": "close", "08": "close-wait", "09": "last-ack", "0A": "listen", "0B": "closing",
}

// ownSockets counts this process's TCP sockets by state. While others come and go the system may list one twice.
func ownSockets() map[string]int {
	own := map[string]bool{}
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		if link, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(link, "socket:[") {
			own[strings.TrimSuffix(strings.TrimPrefix(link, "socket:["), "]")] = true
		}
	}
	counts := map[string]int{}
	eachSocket(func(state, inode string) {
		if own[inode] {
			own[inode] = false
			counts[state]++
		}
	})
	return counts
}

// namespaceSockets counts all TCP sockets of this network namespace by state.
func namespaceSockets() map[string]int {
	counts := map[string]int{}
	eachSocket(func(state, _ string) { counts[state]++ })
	return counts
}

func eachSocket(visit func(state, inode string)) {
	for _, name := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		file, err := os.Open(name)
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(file)
		lines.Scan() // the heading
		for lines.Scan() {
			if fields := strings.Fields(lines.Text()); len(fields) > 9 {
				visit(tcpStates[fields[3]], fields[9])
			}
		}
		file.Close() // it was only read
	}
}

// streamOptions reads the keepalive settings of this process's connected TCP sockets: idle, interval and count in the
// kernel's units, and the user timeout in ms.
func streamOptions() [][5]int {
	var all [][5]int
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if _, err := unix.Getpeername(fd); err != nil {
			continue
		}
		on, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE)
		if err != nil {
			continue
		}
		options := [5]int{on}
		for i, name := range []int{unix.TCP_KEEPIDLE, unix.TCP_KEEPINTVL, unix.TCP_KEEPCNT, unix.TCP_USER_TIMEOUT} {
			if options[i+1], err = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, name); err != nil {
				break
			}
		}
		if err == nil { // otherwise it is no TCP socket
			all = append(all, options)
		}
	}
	return all
}
