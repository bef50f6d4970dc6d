package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// linesKept is how many of its last events of each peer a failure report shows.
const linesKept = 60

// A child is one life of one peer, a process.
type child struct {
	peer    int
	life    int
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	stderr  *os.File
	heard   atomic.Int64 // when the last line came, in ns since the run began
	stopped atomic.Bool  // true exactly between SIGSTOP and SIGCONT
	killed  atomic.Bool  // true exactly when the parent ended it
	bye     atomic.Bool  // true exactly when it said that it has ended well
	reaped  chan struct{}
	mu      sync.Mutex
	last    []string
}

func (c *child) name() string { return fmt.Sprintf("p%d.%d", c.peer, c.life) }

// childVariable says in a child's environment which peer it is: name, life, seed, lives of engines to skip.
const childVariable = "ORBITTE_SOAK_PEER"

// start begins a life. Lines of its standard output go to take, one at a time.
func startChild(peer, life int, spec, dir string, take func(*child, string)) (*child, error) {
	c := &child{peer: peer, life: life, reaped: make(chan struct{})}
	var err error
	if c.stderr, err = os.Create(filepath.Join(dir, c.name()+".stderr")); err != nil {
		return nil, err
	}
	c.cmd = exec.Command("/proc/self/exe", "-test.run=^$")
	c.cmd.Env = append(os.Environ(), childVariable+"="+spec, "GORACE=exitcode=66 "+os.Getenv("GORACE"), "GOTRACEBACK=all")
	c.cmd.Stderr = c.stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go c.read(stdout, take)
	return c, nil
}

// read takes every line, then reaps.
func (c *child) read(stdout io.Reader, take func(*child, string)) {
	lines := bufio.NewScanner(stdout)
	lines.Buffer(make([]byte, 64<<10), 4<<20)
	for lines.Scan() {
		c.mu.Lock()
		if c.last = append(c.last, lines.Text()); len(c.last) > 2*linesKept {
			c.last = append(c.last[:0], c.last[linesKept:]...)
		}
		c.mu.Unlock()
		take(c, lines.Text())
	}
	_ = c.cmd.Wait() // how it ended is judged by complaint
	close(c.reaped)
}

// tell gives the child a line; one that has ended needs none.
func (c *child) tell(format string, args ...any) { fmt.Fprintf(c.stdin, format+"\n", args...) }

func (c *child) signal(s syscall.Signal) {
	_ = c.cmd.Process.Signal(s) // fails only when it has ended, which the reaping finds
}

// kill ends the process as a crash would, and returns once it is none any more.
func (c *child) kill() {
	c.killed.Store(true)
	c.signal(syscall.SIGKILL)
	<-c.reaped
}

// complaint is why a reaped child did not end as it should: everything but SIGKILL by the parent, or the end that it
// was asked for; a race report or a panic in any case. Its own failures it has told before.
func (c *child) complaint() string {
	text, err := os.ReadFile(c.stderr.Name())
	if err != nil {
		return err.Error()
	}
	c.stderr.Close() // only written by the child
	switch {
	case bytes.Contains(text, []byte("DATA RACE")):
		return "the race detector has found something:\n" + tailOf(text)
	case bytes.Contains(text, []byte("panic:")), bytes.Contains(text, []byte("fatal error:")):
		return "crashed:\n" + tailOf(text)
	case !c.killed.Load() && !c.bye.Load():
		return fmt.Sprintf("ended by itself: %v\n%s", c.cmd.ProcessState, tailOf(text))
	}
	if len(text) == 0 {
		os.Remove(c.stderr.Name()) // a folder full of empty files helps nobody
	}
	return ""
}

func tailOf(text []byte) string {
	const most = 24 << 10
	if len(text) > most { // the report begins with what matters
		text = append(append([]byte(nil), text[:most]...), "\n…"...)
	}
	return string(text)
}

// alive is true exactly while the process is the parent's to act on; its number is somebody else's later.
func (c *child) alive() bool {
	select {
	case <-c.reaped:
		return false
	default:
		return !c.killed.Load()
	}
}

// silent is how long the child has said nothing, unless it is stopped.
func (c *child) silent(began time.Time) time.Duration {
	if c.stopped.Load() {
		return 0
	}
	return time.Since(began) - time.Duration(c.heard.Load())
}

func (c *child) events() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.last[max(0, len(c.last)-linesKept):], "\n")
}
