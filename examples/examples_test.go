package examples

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// says is what each example shows; every folder here is one.
var says = map[string][]string{
	"tcp_roundtrip":   {"WRITE 1048576 bytes over tcp", "READ  1048576 bytes over tcp", "same bytes"},
	"external_host":   {"foreign memory", "is refused", "its owner's again"},
	"manual_mode":     {"1048576 bytes over tcp", "read 1048576 bytes in 1 READs", "registered bytes: 1048576 of 1073741824"},
	"notifications":   {"sent 4 blocks, 262144 bytes; notification delivered", `received "blocks": "request 17 is ready"`, "notification skipped"},
	"async_batch":     {"16 of 16 tasks, 4194304 bytes over tcp", "the memory is quiet"},
	"restart_fencing": {"answers: the first life", "the old segment is refused", "answers: the second life"},
	"cuda_copy": {"over TCP (tcp, staged through pinned host memory there): 8 callers", "inside the engine (local copy, device and host)",
		"5242883 bytes went from GPU to GPU and back (tcp, staged through pinned host memory on both sides)", "was given back"},
	"hptcp_bulk":   {"read 50331648 bytes over hptcp, crc32c", "in 48 requests", "verified: the same bytes, 0 chunks"},
	"hptcp_blocks": {"1500 scattered blocks, 24576000 bytes over hptcp in one request", "head 3 of 2048 tokens, 262144 bytes"},
	"rdma_peer":    {"the way is rdma, direct", "the way is rdma, staged here", "1048593 bytes went there and came back"},
}

// asked is what an example is run with: most machines have no GPU and no RDMA device.
var asked = map[string][]string{"cuda_copy": {"-twin", "1"}, "rdma_peer": {"-twin"}}

// proves G-1, M-1, M-2, N-3, B-4; field case F-5, F-70
func TestEachExampleRunsAndShowsWhatItTeaches(t *testing.T) {
	programs := t.TempDir()
	build := exec.Command("go", "build", "-o", programs+"/", "./...")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	folders, err := filepath.Glob("*/main.go")
	if err != nil || len(folders) != len(says) {
		t.Fatalf("%d examples, %d are tested: %v, %v", len(folders), len(says), folders, err)
	}
	// Most machines have no device: then it says so, and what to do.
	if out, err := exec.Command(filepath.Join(programs, "rdma_peer")).CombinedOutput(); err != nil && !strings.Contains(string(out), "libibverbs") && !strings.Contains(string(out), "orbitte devices") {
		t.Errorf("it fails without a remedy: %v\n%s", err, out)
	}
	for _, wrong := range [][]string{{"foo"}, {"-twin", "source", "127.0.0.1:0"}} {
		if out, err := exec.Command(filepath.Join(programs, "rdma_peer"), wrong...).CombinedOutput(); err == nil || !strings.Contains(string(out), "unknown arguments") {
			t.Errorf("%q: %v\n%s", wrong, err, out)
		}
	}
	for wrong, says := range map[string]string{
		"-twin source": "cuda_copy [-twin]", "-twin peer 127.0.0.1:1": "cuda_copy [-twin]", "-twin source 127.0.0.1:0 0 1": "cuda_copy [-twin]",
		"source 127.0.0.1:0 -twin": "Flags come first", "-twin 7": "no such GPU", "-twin -remote-slots 17": "must be 1 to 16",
		"-twin -rdma source 127.0.0.1:0": "no other process",
	} {
		out, err := exec.Command(filepath.Join(programs, "cuda_copy"), strings.Fields(wrong)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), says) {
			t.Errorf("cuda_copy %s: %v\n%s", wrong, err, out)
		}
	}
	for flags, says := range map[string]string{
		"-rdma": "over RDMA (rdma, staged there", "-remote-slots 4": "over TCP (tcp, remote staging, pipelined", "-rdma -remote-slots 1": "remote staging, serial",
	} {
		out, err := exec.Command(filepath.Join(programs, "cuda_copy"), append([]string{"-twin"}, append(strings.Fields(flags), "1")...)...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), says) || !strings.Contains(string(out), "was given back") {
			t.Errorf("cuda_copy %s: %v\n%s", flags, err, out)
		}
	}
	for name, words := range says {
		t.Run(name, func(t *testing.T) {
			out, err := exec.Command(filepath.Join(programs, name), asked[name]...).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, word := range words {
				if !strings.Contains(string(out), word) {
					t.Errorf("does not say %q:\n%s", word, out)
				}
			}
		})
	}
}

// Memory of one process's GPU goes to that of another one and back, byte for byte, and both give all of it back. Without a
// driver the program says what is missing and what to do.
//
// field case F-70
func TestGPUsOfTwoProcessesExchangeMemory(t *testing.T) {
	for _, flags := range [][]string{{"-twin"}, {"-twin", "-remote-slots", "4"}} {
		exchange(t, flags)
	}
}

func exchange(t *testing.T, flags []string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "cuda_copy")
	if out, err := exec.Command("go", "build", "-o", program, "./cuda_copy").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	source := exec.Command(program, append(flags, "source", "127.0.0.1:0", "1")...)
	pipe, err := source.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := source.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(pipe)
	lines.Scan()
	words := strings.Fields(lines.Text()) // cuda_copy peer ENDPOINT EPOCH
	out, err := exec.Command(program, append(flags, words[1:]...)...).CombinedOutput()
	if err != nil || strings.Count(string(out), "from GPU to GPU and back") != 3 || strings.Contains(string(out), "remote staging") != (len(flags) > 1) || !strings.Contains(string(out), "was given back") {
		t.Errorf("the peer: %v\n%s", err, out)
	}
	if err := source.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	lines.Scan()
	if last := lines.Text(); !strings.Contains(last, "was given back") {
		t.Errorf("the source ends with %q", last)
	}
	if err := source.Wait(); err != nil {
		t.Errorf("the source: %v", err)
	}
	if out, err := exec.Command(program, "0").CombinedOutput(); err != nil && !strings.Contains(string(out), "libcuda") {
		t.Errorf("it fails without a remedy: %v\n%s", err, out)
	}
}

// An example is read from top to bottom: it stays short, and it explains itself.
func TestExamplesStayShortAndAreCommented(t *testing.T) {
	for name := range says {
		text, err := os.ReadFile(filepath.Join(name, "main.go"))
		if err != nil {
			t.Fatal(err)
		}
		lines, comments := strings.Count(string(text), "\n"), strings.Count(string(text), "// ")
		if lines < 40 || lines > 120 || comments < 5 {
			t.Errorf("%s/main.go has %d lines and %d comment lines", name, lines, comments)
		}
	}
}
