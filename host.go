package orbitte

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/lanes"
)

// allowedCPUs is the affinity mask of the process, cpusets included (sched_getaffinity(2)).
func allowedCPUs() []int {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil
	}
	var cpus []int
	for cpu := 0; cpu < len(set)*64; cpu++ {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

// numaNodes reads which CPUs belong to which node from sysfs; empty where there is no such thing.
func numaNodes(root string) [][]int {
	paths, _ := filepath.Glob(filepath.Join(root, "node[0-9]*", "cpulist"))
	slices.SortFunc(paths, func(a, b string) int { return nodeNumber(a) - nodeNumber(b) })
	var nodes [][]int
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if cpus := lanes.ParseCPUList(strings.TrimSpace(string(text))); len(cpus) > 0 {
			nodes = append(nodes, cpus)
		}
	}
	return nodes
}

func nodeNumber(path string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(filepath.Base(filepath.Dir(path)), "node"))
	return n
}

// cpuQuota is the CPU quota of the process in CPUs, 0 for none: the smallest on the way up its cgroup
// (cgroup v2 cpu.max, v1 cpu.cfs_quota_us).
func cpuQuota(mount, self string) float64 {
	text, err := os.ReadFile(self)
	if err != nil {
		return 0
	}
	smallest := 0.0
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		base := mount
		if fields[1] != "" && !slices.Contains(strings.Split(fields[1], ","), "cpu") {
			continue
		}
		if fields[1] != "" {
			base = filepath.Join(mount, "cpu")
		}
		dir := filepath.Join(base, fields[2])
		if !strings.HasPrefix(dir, base) {
			dir = base // "/..": the cgroup lies outside what this namespace shows
		}
		for ; strings.HasPrefix(dir, base); dir = filepath.Dir(dir) {
			if quota := quotaOf(dir); quota > 0 && (smallest == 0 || quota < smallest) {
				smallest = quota
			}
		}
	}
	return smallest
}

func quotaOf(dir string) float64 {
	read := func(name string) []string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil
		}
		return strings.Fields(string(text))
	}
	fields := read("cpu.max")
	if fields == nil {
		fields = append(read("cpu.cfs_quota_us"), read("cpu.cfs_period_us")...)
	}
	if len(fields) != 2 {
		return 0
	}
	quota, err := strconv.ParseFloat(fields[0], 64)
	period, err2 := strconv.ParseFloat(fields[1], 64)
	if err != nil || err2 != nil || quota <= 0 || period <= 0 {
		return 0
	}
	return quota / period
}

// hostAddresses are the addresses under which another host may reach this one.
func hostAddresses() []netip.Addr {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var found []netip.Addr
	for _, a := range all {
		prefix, err := netip.ParsePrefix(a.String())
		if err == nil && prefix.Addr().IsGlobalUnicast() {
			found = append(found, prefix.Addr())
		}
	}
	return found
}

// advertised is the endpoint that peers are told. An unspecified address means nothing to another host
// (field case F-43): it is replaced by the host's only address, or refused.
func advertised(configured string, bound netip.AddrPort, candidates []netip.Addr) (string, error) {
	if configured != "" {
		host, port, err := net.SplitHostPort(configured)
		if err != nil || host == "" {
			return "", invalid("Config.Advertise is %q; it must be host:port", configured)
		}
		if port == "0" {
			port = strconv.Itoa(int(bound.Port()))
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return "", invalid("Config.Advertise is %q; its port must be 1 to 65535, or 0 for the bound one", configured)
		}
		if address, err := netip.ParseAddr(host); err == nil && address.IsUnspecified() {
			return "", invalid("Config.Advertise is %q, which means nothing to a peer; name an address that peers can reach", configured)
		}
		return net.JoinHostPort(host, port), nil
	}
	if !bound.Addr().IsUnspecified() {
		return bound.String(), nil
	}
	var fitting []netip.Addr
	for _, c := range candidates {
		if bound.Addr().Is6() || c.Is4() {
			fitting = append(fitting, c)
		}
	}
	if len(fitting) != 1 {
		return "", invalid("Config.Bind is the unspecified address and the host has %d addresses %v; name the endpoint for peers in Config.Advertise", len(fitting), fitting)
	}
	return netip.AddrPortFrom(fitting[0], bound.Port()).String(), nil
}
