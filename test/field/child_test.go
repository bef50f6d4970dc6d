package field

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// order is one line to a child, answer one line from it; answers come in any order.
type order struct {
	ID   int
	Do   string
	Args json.RawMessage
}

type answer struct {
	ID     int
	Class  string // of the error: the text of orbitte's class, or "error"
	Error  string
	Result json.RawMessage
}

// childError is an error of a child's engine. errors.Is finds its class.
type childError struct{ class, text string }

func (e *childError) Error() string        { return e.text }
func (e *childError) Is(target error) bool { return target.Error() == e.class }

var errChildGone = errors.New("the child has ended")

// patience bounds one order, so that a hanging child fails its test and not the whole run.
const patience = 60 * time.Second

// child is a process of this test binary.
type child struct {
	t      testing.TB
	name   string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stderr *tail
	mu     sync.Mutex
	next   int
	open   map[int]chan answer
	ended  chan struct{} // closed when its output has ended
	reaped chan struct{} // closed when it is no process any more
}

// tail keeps the last bytes of a child's standard error.
type tail struct {
	mu    sync.Mutex
	bytes []byte
	raced bool // true exactly when the race detector has spoken
}

const tailBytesMax = 16 << 10

func (w *tail) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.raced = w.raced || bytes.Contains(b, []byte("DATA RACE"))
	w.bytes = append(w.bytes, b...)
	if over := len(w.bytes) - tailBytesMax; over > 0 {
		w.bytes = append(w.bytes[:0], w.bytes[over:]...)
	}
	return len(b), nil
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(bytes.TrimSpace(w.bytes))
}

// spawn starts a child; "NAME=value" texts go into its environment. It is killed when the test ends.
func spawn(t testing.TB, name string, environment ...string) *child {
	t.Helper()
	return spawnAs(t, name, nil, environment...)
}

func spawnAs(t testing.TB, name string, credential *syscall.Credential, environment ...string) *child {
	t.Helper()
	c := &child{t: t, name: name, stderr: &tail{}, open: map[int]chan answer{}, ended: make(chan struct{}), reaped: make(chan struct{})}
	c.cmd = exec.Command("/proc/self/exe", "-test.run=^$")
	c.cmd.Env = append(append(os.Environ(), childVariable+"="+name), environment...)
	c.cmd.Stderr = c.stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	stdin, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.stdin = stdin
	if err := c.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go c.read(stdout)
	t.Cleanup(c.end)
	return c
}

// read hands answers to whoever asked, and reaps the child after its last one.
func (c *child) read(stdout io.Reader) {
	lines := bufio.NewReader(stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		var a answer
		if json.Unmarshal(line, &a) != nil {
			_, _ = c.stderr.Write(line) // not ours: the testing package's, perhaps
			continue
		}
		c.mu.Lock()
		to := c.open[a.ID]
		delete(c.open, a.ID)
		c.mu.Unlock()
		if to != nil {
			to <- a
		}
	}
	close(c.ended)
	_ = c.cmd.Wait() // a killed child's status is no news; other ends are found by the orders that fail
	close(c.reaped)
}

// kill ends the child as a crash would, and returns once it is no process any more.
func (c *child) kill() {
	_ = c.cmd.Process.Signal(syscall.SIGCONT) // both fail only when it has ended
	_ = c.cmd.Process.Kill()
	<-c.reaped
}

func (c *child) signal(s syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Fatalf("%v to %s: %v", s, c.name, err)
	}
}

// end is the test's clean-up.
func (c *child) end() {
	c.kill()
	if c.stderr.raced { // nobody writes any more
		c.t.Errorf("%s: the race detector has found something", c.name)
	}
	if text := c.stderr.String(); c.t.Failed() && text != "" {
		c.t.Logf("%s said:\n%s", c.name, text)
	}
}

// send gives an order; the answer comes through the channel.
func (c *child) send(do string, args any) (<-chan answer, error) {
	text, err := json.Marshal(args)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next++
	to := make(chan answer, 1)
	c.open[c.next] = to
	line, err := json.Marshal(order{ID: c.next, Do: do, Args: text})
	if err != nil {
		return nil, err
	}
	_, err = c.stdin.Write(append(line, '\n'))
	return to, err
}

// try gives an order and waits for its result.
func try[R any](c *child, do string, args any) (result R, err error) {
	to, err := c.send(do, args)
	if err != nil {
		return result, fmt.Errorf("%s: %s: %w: %w", c.name, do, errChildGone, err)
	}
	select {
	case a := <-to:
		return decode[R](a)
	case <-c.ended:
		select {
		case a := <-to:
			return decode[R](a)
		default:
			return result, fmt.Errorf("%s: %s: %w", c.name, do, errChildGone)
		}
	case <-time.After(patience):
		return result, fmt.Errorf("%s: %s: no answer in %v", c.name, do, patience)
	}
}

func decode[R any](a answer) (result R, err error) {
	if a.Error != "" {
		return result, &childError{a.Class, a.Error}
	}
	return result, json.Unmarshal(a.Result, &result)
}

// ask is try for orders that must succeed; on the test's own goroutine.
func ask[R any](c *child, do string, args any) R {
	c.t.Helper()
	result, err := try[R](c, do, args)
	if err != nil {
		c.t.Fatalf("%s: %s: %v", c.name, do, strings.TrimSpace(err.Error()))
	}
	return result
}
