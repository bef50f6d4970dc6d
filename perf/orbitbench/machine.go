package main

import (
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/perf/baselines"
	"github.com/orbitte/orbitte/perf/figures"
)

// thisMachine says where and how a run is made.
func thisMachine() figures.Machine {
	var name unix.Utsname
	_ = unix.Uname(&name)
	m := figures.Machine{
		Time: now(), Go: runtime.Version(), Arch: runtime.GOARCH, CPUs: runtime.NumCPU(),
		CPU: cpuModel(), Memory: memoryOf(), System: unix.ByteSliceToString(name.Release[:]), Commit: commit(),
		Command: command(), Load: load(), Peers: map[string]string{},
	}
	for _, t := range baselines.Tools() {
		if err := t.Missing(); err != nil {
			m.Peers[t.Program] = err.Error()
		} else if m.Peers[t.Program] == "" {
			m.Peers[t.Program] = t.Version()
		}
	}
	return m
}

func now() string { return time.Now().UTC().Format(time.RFC3339) }

// command is what to type: a program that go run built has a path that says nothing.
func command() string {
	words := append([]string{}, os.Args...)
	if strings.Contains(words[0], "go-build") || strings.HasPrefix(words[0], os.TempDir()) {
		words = append([]string{"go", "run", "./perf/orbitbench"}, words[1:]...)
	}
	return strings.Join(words, " ")
}

// commit is the one that the program was built from, where it knows that, and otherwise the folder's.
func commit() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		settings := map[string]string{}
		for _, s := range info.Settings {
			settings[s.Key] = s.Value
		}
		if hash := settings["vcs.revision"]; len(hash) >= 7 {
			return marked(hash[:7], settings["vcs.modified"] == "true")
		}
	}
	text, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	changed, err := exec.Command("git", "status", "--porcelain", "--untracked-files=no").Output()
	return marked(strings.TrimSpace(string(text)), err == nil && len(changed) > 0)
}

func marked(hash string, changed bool) string {
	if changed {
		return hash + ", with changes"
	}
	return hash
}

func cpuModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

func memoryOf() uint64 {
	text, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "MemTotal:" {
			n, _ := strconv.ParseUint(f[1], 10, 64)
			return n << 10
		}
	}
	return 0
}

func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	f := strings.Fields(string(text))
	return strings.Join(f[:min(3, len(f))], " ")
}
