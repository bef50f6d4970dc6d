package lanes

import (
	"slices"
	"strconv"
	"strings"
)

// Place is where one lane runs: CPUs of one NUMA node that the process may use. No CPUs: anywhere.
type Place struct {
	Node int // index in the list of nodes; -1 when there is one node or none
	CPUs []int
}

// Plan places n lanes (SPEC L-5). Allowed are the CPUs that the process may use; nodes are the CPUs of
// each NUMA node. Lanes go round the nodes that have allowed CPUs. With one node or none, lanes are
// not tied to CPUs: the scheduler knows better on a shared machine. Pinned ties every lane to CPUs.
func Plan(n int, allowed []int, nodes [][]int, pinned bool) []Place {
	var usable []Place
	for node, cpus := range nodes {
		var inside []int
		for _, cpu := range cpus {
			if slices.Contains(allowed, cpu) {
				inside = append(inside, cpu)
			}
		}
		if len(inside) > 0 {
			usable = append(usable, Place{node, inside})
		}
	}
	if len(usable) == 0 || len(usable) == 1 && len(nodes) == 1 {
		usable = []Place{{-1, allowed}}
	}
	places := make([]Place, n)
	for i := range places {
		place := usable[i%len(usable)]
		switch {
		case pinned && len(place.CPUs) > 0: // a CPU of its own, as far as they go
			place.CPUs = place.CPUs[i/len(usable)%len(place.CPUs):][:1]
		case place.Node < 0:
			place.CPUs = nil
		}
		places[i] = place
	}
	return places
}

// ParseCPUList reads the kernel's list format, "0-3,8" (cpuset(7)). Unreadable parts are left out.
func ParseCPUList(text string) []int {
	var cpus []int
	for _, part := range strings.Split(text, ",") {
		first, last, ranged := strings.Cut(strings.TrimSpace(part), "-")
		low, err := strconv.Atoi(first)
		if err != nil {
			continue
		}
		high := low
		if ranged {
			if high, err = strconv.Atoi(last); err != nil {
				continue
			}
		}
		for cpu := low; cpu <= high && cpu-low < 4096; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}
