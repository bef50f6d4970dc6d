package field

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/netproto"
)

const (
	pipePayload = 8 << 20
	pipeRounds  = 30
)

// breakReads asks a source for much and closes while it sends, in a different way each time.
func breakReads(t *testing.T, endpoint string, epoch orbitte.Epoch) {
	t.Helper()
	for n := range pipeRounds {
		w := dial(t, endpoint)
		w.request(netproto.Request{Operation: netproto.OperationTCPRead, Epoch: epoch, Region: 1, Length: pipePayload})
		if r := w.reply(); r.Status != netproto.StatusSuccess {
			t.Fatalf("status %v", r.Status)
		}
		if _, err := io.CopyN(io.Discard, w, 100_000); err != nil {
			t.Fatal(err)
		}
		breakOff(w.TCPConn, n)
	}
}

// field case F-38
func TestAPeerThatClosesWhileWeSendRaisesNoSignal(t *testing.T) {
	t.Parallel()
	onKernels(t, func(t *testing.T, kernel orbitte.KernelChoice) {
		t.Run("source", func(t *testing.T) {
			t.Parallel()
			src := spawnSource(t, settings{Kernel: kernel, Limits: orbitte.Limits{SourceHandlers: 16, SourceQueue: 16}}, pipePayload, sigpipeVariable+"=kills")
			breakReads(t, src.Endpoint, src.Epoch)
			if !eventually(10*time.Second, func() bool {
				c, err := try[counters](src.child, "stats", engineOf{})
				return err == nil && c.Gauges["source handlers"] == 0
			}) {
				t.Error("frames that were broken off are still being served, or the source is gone")
			}
			src.closeClean()
		})
		t.Run("requester", func(t *testing.T) {
			t.Parallel()
			b := newBreaker(t, pipePayload)
			c := spawn(t, "requester", sigpipeVariable+"=kills")
			ask[opened](c, "open", settings{Kernel: kernel})
			local := ask[placed](c, "place", place{Bytes: pipePayload})
			s := ask[int](c, "segment", peerOf{Endpoint: b.listener.Addr().String(), Epoch: b.epoch, Timeout: patience / 2})
			for n := range pipeRounds {
				_, err := try[transfer](c, "transfer", transfer{
					Segment: s, Operation: orbitte.Write, Local: local.Address, Remote: breakerBase, Length: pipePayload, Timeout: patience / 2,
				})
				if !errors.Is(err, orbitte.ErrDisconnected) {
					t.Fatalf("WRITE %d that the peer broke off: %v", n, err)
				}
			}
			if left := ask[[]string](c, "close", engineOf{}); len(left) > 0 {
				t.Errorf("left after Close: %v", left)
			}
		})
	})
}

// field case F-38
func TestAPeerThatClosesWhileACProgramSendsRaisesNoSignal(t *testing.T) {
	t.Parallel()
	program := buildCProgram(t)
	onKernels(t, func(t *testing.T, kernel orbitte.KernelChoice) {
		t.Run("source", func(t *testing.T) {
			t.Parallel()
			c := startCProgram(t, program, "serve", strconv.Itoa(int(kernel)))
			var endpoint, text string
			var address uint64
			if _, err := fmt.Fscanln(c.out, &endpoint, &text, &address); err != nil {
				t.Fatalf("%v: %s", err, c.stderr.String())
			}
			epoch, err := orbitte.ParseEpoch(text)
			if err != nil {
				t.Fatal(err)
			}
			breakReads(t, endpoint, epoch)
			c.alive()
		})
		t.Run("requester", func(t *testing.T) {
			t.Parallel()
			b := newBreaker(t, pipePayload)
			c := startCProgram(t, program, "write", strconv.Itoa(int(kernel)), b.listener.Addr().String(), b.epoch.String(),
				strconv.Itoa(breakerBase), strconv.Itoa(pipeRounds))
			c.alive()
		})
	})
}

// buildCProgram links testdata/main.c with the engine as a C archive.
func buildCProgram(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no-gcc: a C program is to be linked")
	}
	folder := t.TempDir()
	program := filepath.Join(folder, "program")
	for _, args := range [][]string{
		{"go", "build", "-buildmode=c-archive", "-o", filepath.Join(folder, "engine.a"), "./testdata/chost"},
		{"gcc", "-o", program, "-I", folder, "testdata/main.c", filepath.Join(folder, "engine.a"), "-lpthread"},
	} {
		c := exec.Command(args[0], args[1:]...)
		c.Env = append(os.Environ(), "CGO_ENABLED=1")
		if text, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, text)
		}
	}
	return program
}

// cProgram is a running C program.
type cProgram struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.Closer
	out    *bufio.Reader
	stderr bytes.Buffer
}

func startCProgram(t *testing.T, name string, args ...string) *cProgram {
	t.Helper()
	c := &cProgram{t: t, cmd: exec.Command(name, args...)}
	c.cmd.Stderr = &c.stderr
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.in, c.out = in, bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill() // it has ended already, as a rule
		_ = c.cmd.Wait()
	})
	return c
}

// alive ends the program's input and asserts that it runs to its own end.
func (c *cProgram) alive() {
	c.t.Helper()
	if err := c.in.Close(); err != nil {
		c.t.Error(err)
	}
	said, err := io.ReadAll(c.out)
	if err != nil {
		c.t.Error(err)
	}
	if err := c.cmd.Wait(); err != nil || strings.TrimSpace(string(said)) != "alive" {
		c.t.Errorf("the C program ended with %v and said %q, %q", err, said, c.stderr.String())
	}
}
