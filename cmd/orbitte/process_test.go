package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// asTool makes the test program the tool itself, so that each process is the code under test.
const asTool = "ORBITTE_TEST_AS_TOOL"

func TestMain(m *testing.M) {
	if os.Getenv(asTool) != "" {
		main()
	}
	os.Exit(m.Run())
}

func toolCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(program, args...)
	// A program with the race detector sleeps a second before it exits, unless it is told not to.
	c.Env = append(os.Environ(), asTool+"=1", "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	return c
}

// ended is a process that has ended.
type ended struct {
	code      int
	out, errs string
}

// tool runs the tool to its end.
func tool(t *testing.T, args ...string) ended {
	t.Helper()
	return finish(t, toolCommand(t, args...), nil)
}

// finish runs a command; during gets its process while it runs.
func finish(t *testing.T, c *exec.Cmd, during func(*os.Process)) ended {
	t.Helper()
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(time.Minute, func() { c.Process.Signal(unix.SIGQUIT) }) // shows where it hangs
	defer late.Stop()
	if during != nil {
		during(c.Process)
	}
	c.Wait()
	return ended{c.ProcessState.ExitCode(), out.String(), errs.String()}
}

// want checks the exit status and that standard error says each of the words.
func (e ended) want(t *testing.T, code int, words ...string) {
	t.Helper()
	if e.code != code {
		t.Errorf("exit status %d, want %d\n%s%s", e.code, code, e.out, e.errs)
	}
	for _, word := range words {
		if !strings.Contains(e.errs, word) {
			t.Errorf("standard error does not say %q:\n%s", word, e.errs)
		}
	}
}

// source is a running orbitte serve.
type source struct {
	servedView
	command *exec.Cmd
	errs    *bytes.Buffer
	over    bool
}

// startSource serves until the test ends, and then checks that SIGTERM ends it cleanly.
func startSource(t *testing.T, args ...string) *source {
	t.Helper()
	s := &source{command: toolCommand(t, append([]string{"serve", "--json"}, args...)...), errs: new(bytes.Buffer)}
	s.command.Stderr = s.errs
	pipe, err := s.command.StdoutPipe()
	if err == nil {
		err = s.command.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.stop(t) })
	line, err := bufio.NewReader(pipe).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &s.servedView)
	}
	if err != nil {
		s.kill()
		t.Fatalf("serve did not come up: %v\n%s", err, s.errs)
	}
	return s
}

func (s *source) stop(t *testing.T) {
	t.Helper()
	if s.over {
		return
	}
	s.over = true
	s.command.Process.Signal(unix.SIGTERM)
	if err := s.command.Wait(); err != nil {
		t.Errorf("serve ended by SIGTERM with %v\n%s", err, s.errs)
	}
}

func (s *source) kill() {
	if !s.over {
		s.over = true
		s.command.Process.Kill()
		s.command.Wait()
	}
}

// peerFlags are those that name the source.
func (s *source) peerFlags(flag string) []string {
	return []string{flag, s.Endpoint, "--epoch", s.Epoch, "--progress", "none"}
}

// direction of bytes through a relay.
type direction int

const (
	toSource direction = iota
	toRequester
)

// startRelay stands between requester and source. Each piece of bytes is shown to tamper before it goes on,
// with its place in all that went that way.
func startRelay(t *testing.T, target string, tamper func(d direction, at int64, b []byte)) string {
	t.Helper()
	return startRelayAt(t, "127.0.0.1", target, tamper)
}

// startRelayAt is startRelay at another address of this host.
func startRelayAt(t *testing.T, host, target string, tamper func(d direction, at int64, b []byte)) string {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	var passed [2]atomic.Int64
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", target)
			if err != nil {
				near.Close()
				continue
			}
			pass := func(d direction, to, from net.Conn) {
				defer to.Close()
				defer from.Close()
				b := make([]byte, 64<<10)
				for {
					n, err := from.Read(b)
					if n > 0 {
						tamper(d, passed[d].Add(int64(n))-int64(n), b[:n])
						if _, err := to.Write(b[:n]); err != nil {
							return
						}
					}
					if err != nil {
						return
					}
				}
			}
			go pass(toSource, far, near)
			go pass(toRequester, near, far)
		}
	}()
	return listener.Addr().String()
}

// flip damages the byte at a place.
func flip(want direction, place int64) func(direction, int64, []byte) {
	return func(d direction, at int64, b []byte) {
		if d == want && at <= place && place < at+int64(len(b)) {
			b[place-at] ^= 1
		}
	}
}

// file makes a file of pseudo-random bytes; equal names and sizes have equal bytes.
func file(t *testing.T, folder, name string, size int) (path string, content []byte) {
	t.Helper()
	content = make([]byte, size)
	random := rand.NewChaCha8(sha256.Sum256([]byte(name)))
	io.ReadFull(random, content)
	path = filepath.Join(folder, name)
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	return path, content
}

// same checks a file's bytes.
func same(t *testing.T, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	} else if !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes differ from the %d wanted", path, len(got), len(want))
	}
}

// holds checks which names a folder has, temporary ones included.
func holds(t *testing.T, folder string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("%s holds %q, want %q", folder, got, want)
	}
}
