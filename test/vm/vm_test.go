//go:build vm

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if os.Getpid() == 1 {
		asInit() // this test binary is the guest's first process
	}
	os.Exit(m.Run())
}

// booted is what one run gave.
type booted struct {
	results        []result
	stdout, stderr string
	remarks        string
}

// boot runs a shell script in a guest; change adjusts the machine.
func boot(t *testing.T, script string, change func(*machine)) booted {
	t.Helper()
	o := newOptions("test")
	var stdout, stderr bytes.Buffer
	var mu sync.Mutex // guests of a pair write side by side
	var remarks []string
	m := &o.machine
	m.Stdout, m.Stderr = &locked{&mu, &stdout}, &locked{&mu, &stderr}
	m.Say = func(text string) { remarks = append(remarks, text) }
	m.Net, m.Limit, m.Args = "none", time.Minute, []string{"sh", "-c", script}
	m.Share = t.TempDir()
	if change != nil {
		change(m)
	}
	if m.Kernel.name != "" {
		o.kernel = m.Kernel.name
	}
	if err := o.prepareMachine(gateNeeds...); err != nil {
		t.Fatal(err)
	}
	results, err := m.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b := booted{results, stdout.String(), stderr.String(), strings.Join(remarks, "\n")}
	for _, r := range results {
		t.Logf("%s %s, exit status %d, boots %d, boot %.1f s, run %.1f s", r.Ended, r.Detail, r.status(), r.Boots, r.Boot.Seconds(), r.Run.Seconds())
	}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		t.Logf("stdout:\n%s\nstderr:\n%s\nremarks: %s", b.stdout[max(0, len(b.stdout)-2000):], lastLines(b.stderr, 30), b.remarks)
	})
	return b
}

type locked struct {
	mu *sync.Mutex
	to *bytes.Buffer
}

func (l *locked) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Write(text)
}

func (b booted) want(t *testing.T, ended ending, status int) {
	t.Helper()
	for i, r := range b.results {
		if r.Ended != ended || r.status() != status {
			t.Errorf("guest %d: %s (%s), exit status %d; want %s, %d\n%s", i+1, r.Ended, r.Detail, r.status(), ended, status, lastLines(r.Console, 30))
		}
	}
}

func TestGuestGivesBackExitStatusOutputAndFiles(t *testing.T) {
	share := t.TempDir()
	const size = 300<<10 + 7
	b := boot(t, fmt.Sprintf(`echo to-stdout; echo to-stderr >&2; head -c %d /dev/zero | tr '\0' x; pwd; uname -r
		echo written >from-guest; touch /usr/x 2>/dev/null && echo the host may be written; exit 7`, size), func(m *machine) { m.Share = share })
	b.want(t, endExited, 7)
	for _, want := range []string{"to-stdout\n" + strings.Repeat("x", size) + share + "\n6.12."} {
		if !strings.HasPrefix(b.stdout, want) {
			t.Errorf("stdout of %d bytes begins %.60q", len(b.stdout), b.stdout)
		}
	}
	if b.stderr != "to-stderr\n" || strings.Contains(b.stdout, "may be written") {
		t.Errorf("stderr %q", b.stderr)
	}
	if text, err := os.ReadFile(filepath.Join(share, "from-guest")); err != nil || string(text) != "written\n" {
		t.Errorf("the guest's file: %q, %v", text, err)
	}
	t.Logf("proved: output whole and apart, exit status 7, a file written back, the host's root read-only; %.1f s to boot", b.results[0].Boot.Seconds())
}

func TestTimeLimitOfALivingGuestIsReportedAsSuch(t *testing.T) {
	b := boot(t, "echo begun; sleep 600", func(m *machine) { m.Limit = 4 * time.Second })
	b.want(t, endLimit, exitLimit)
	if b.stdout != "begun\n" {
		t.Errorf("output before the limit: %q", b.stdout)
	}
}

func TestKernelPanicIsReportedAsSuch(t *testing.T) {
	b := boot(t, "echo begun; sleep 1; echo 1 >/proc/sys/kernel/sysrq; echo c >/proc/sysrq-trigger; sleep 30", nil)
	b.want(t, endPanic, exitLost)
	if r := b.results[0]; !strings.Contains(r.Detail, "sysrq triggered crash") || r.Boots != 1 {
		t.Errorf("detail %q, boots %d: a guest whose command had begun is not booted again", r.Detail, r.Boots)
	}
}

// The processors are taken by real-time loops, with the share that the kernel keeps for other processes taken away.
func TestHangIsReportedAsSuch(t *testing.T) {
	b := boot(t, `echo begun; sleep 1; echo -1 >/proc/sys/kernel/sched_rt_runtime_us
		mount -t debugfs debugfs /sys/kernel/debug
		for cpu in /sys/kernel/debug/sched/fair_server/cpu*; do echo 0 >$cpu/runtime; done
		for i in 1 2 3 4; do chrt -f 99 sh -c 'while :; do :; done' & done; sleep 600`,
		func(m *machine) { m.Quiet = 8 * time.Second })
	b.want(t, endHang, exitLost)
}

func TestGuestThatEndsWithoutAWordIsReportedAsSuch(t *testing.T) {
	b := boot(t, "echo 1 >/proc/sys/kernel/sysrq; echo b >/proc/sysrq-trigger; sleep 30", nil)
	b.want(t, endDied, exitLost)
}

func TestEarlyDeathIsRepeatedOnceAndTold(t *testing.T) {
	b := boot(t, "true", func(m *machine) { m.Append = "rdinit=/absent root=none" })
	b.want(t, endPanic, exitLost)
	if b.results[0].Boots != 2 || strings.Count(b.remarks, "booting once more") != 1 {
		t.Errorf("boots %d, remarks %q", b.results[0].Boots, b.remarks)
	}
}

func TestOlderKernelBootsWithItsRails(t *testing.T) {
	b := boot(t, "uname -r; rdma link", func(m *machine) { m.Net, m.Kernel.name = "two", "6.1" })
	b.want(t, endExited, 0)
	if !strings.HasPrefix(b.stdout, "6.1.") || strings.Count(b.stdout, "state ACTIVE") != 2 {
		t.Errorf("stdout %q", b.stdout)
	}
	t.Log("proved: kernel", strings.Fields(b.stdout)[0], "boots with rxe0 and rxe1")
}

func TestTwoGuestsOnTwoWires(t *testing.T) {
	b := boot(t, `set -e
		for wire in 0 1; do
			gid=$(rail gid rxe$wire fd90:$wire::$ORBITTE_VM_NODE)
			if [ $ORBITTE_VM_NODE = 1 ]; then
				ibv_rc_pingpong -d rxe$wire -g $gid -n 50 -p 1900$wire
			else
				tries=0
				until ibv_rc_pingpong -d rxe$wire -g $gid -n 50 -p 1900$wire 10.90.$wire.1; do
					tries=$((tries + 1)); [ $tries -lt 20 ]; sleep 0.5
				done
			fi
		done`, func(m *machine) { m.Net, m.Wires, m.Memory, m.Limit = "pair", 2, 384, 6*time.Minute })
	b.want(t, endExited, 0)
	for _, node := range []string{"1| 50 iters", "2| 50 iters"} {
		if strings.Count(b.stdout, node) != 2 {
			t.Errorf("%q is not there twice:\n%s\n%s", node, b.stdout, b.stderr)
		}
	}
	t.Log("proved: reliable connections over IPv6 GIDs between two guests, on each of two wires")
}

// One guest, two wires: what rail does, and perftest's figures.
func TestRailsCanBeTroubledAndCounted(t *testing.T) {
	b := boot(t, `set -e
		ls /sys/class/infiniband
		rail count 18599
		baseline 1
		rail counts
		pingpong() {
			ibv_rc_pingpong -d rxe2 -g $(rail gid rxe2 10.90.1.1) -n $1 >/dev/null & sleep 1
			ibv_rc_pingpong -d rxe3 -g $(rail gid rxe3 10.90.1.2) -n $1 10.90.1.1 | sed -n 's/.* \([0-9]*\)\.[0-9]* usec.iter/\1/p'; wait
		}
		rail netem rxe2 delay 40ms; pingpong 10; rail clear rxe2
		rail netem rxe2 loss 10%; pingpong 100 >&2; tc -s qdisc show dev ve2 | sed -n 's/.*dropped \([0-9]*\).*/\1/p'; rail clear rxe2
		rail down rxe0; cat /sys/class/infiniband/rxe[0123]/ports/1/state
		rail up rxe0; sleep 1; cat /sys/class/infiniband/rxe0/ports/1/state`,
		func(m *machine) { m.Net, m.Wires, m.Limit = "two", 2, 8*time.Minute })
	b.want(t, endExited, 0)
	lines := strings.Split(strings.TrimSpace(b.stdout), "\n")
	if len(lines) != 4+4+1+1+1+5 || !slices.Equal(lines[:4], []string{"rxe0", "rxe1", "rxe2", "rxe3"}) {
		t.Fatalf("lines: %q", lines)
	}
	for _, line := range lines[4:8] {
		t.Log("proved: figure", line)
	}
	checkCounts(t, lines[8])
	if each, err := strconv.Atoi(lines[9]); err != nil || each < 40_000 {
		t.Errorf("a round trip over 40 ms of delay: %s µs", lines[9])
	}
	if dropped, err := strconv.Atoi(lines[10]); err != nil || dropped == 0 {
		t.Errorf("packets dropped at a loss of 10%%: %s", lines[10])
	}
	if got := strings.Join(lines[11:], ", "); got != "1: DOWN, 1: DOWN, 4: ACTIVE, 4: ACTIVE, 4: ACTIVE" {
		t.Errorf("states of rxe0 down (rxe0 to rxe3) and up: %s", got)
	}
	t.Log("proved: a link goes down with its other end, the other wire stays, and it comes back; delay and loss work")
}

func checkCounts(t *testing.T, line string) {
	t.Helper()
	var counts map[string]struct{ Packets, Bytes int64 }
	if err := json.Unmarshal([]byte(line), &counts); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	const moved = 2 * (1000<<16 + 64<<20) // by the two tools
	if roce, tcp := counts["roce"].Bytes, counts["all_tcp"].Bytes; roce < moved || tcp == 0 || tcp > moved/1000 {
		t.Errorf("of %d bytes of payload, RoCE carried %d and TCP %d", moved, roce, tcp)
	}
	if other, ok := counts["tcp_18599"]; !ok || other.Bytes != 0 {
		t.Errorf("the port that nobody uses: %+v", counts)
	}
	t.Log("proved: counters tell RoCE from TCP:", line)
}

func TestKilledRunLeavesNoGuest(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "vm")
	build := exec.Command("go", "build", "-buildvcs=false", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, signal := range []os.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		cmd := exec.CommandContext(t.Context(), binary, "run", "-net", "none", "--", "sleep", "600")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var children []string
		await(t, "a guest to boot", func() bool {
			children = childrenOf(t, cmd.Process.Pid)
			return len(children) == 1 && strings.Contains(read("/proc/"+children[0]+"/comm"), "qemu")
		})
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // ended by the signal
		await(t, "QEMU to end after "+signal.String(), func() bool {
			stat := read("/proc/" + children[0] + "/stat")
			return stat == "" || strings.Contains(stat, ") Z ")
		})
	}
}

// await polls processes, which tell nobody.
func await(t *testing.T, what string, now func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !now(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain for " + what)
		}
	}
}

// read gives a file of a process, empty when that is gone.
func read(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return string(text)
}

func childrenOf(t *testing.T, pid int) (children []string) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		children = append(children, strings.Fields(string(text))...)
	}
	return children
}
