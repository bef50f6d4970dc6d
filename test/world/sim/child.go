package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/orbitte/orbitte/test/world"
)

// answer is what a child says about one seed.
type answer struct {
	Seed      uint64
	Violation *world.Violation `json:",omitempty"`
	Counts    map[string]int
	Turns     int
	Requests  int
}

// serve runs the seeds that stand in from, one in a line.
func serve(from io.Reader, to io.Writer, turns int) int {
	lines, out := bufio.NewScanner(from), json.NewEncoder(to)
	for lines.Scan() {
		var seed uint64
		if _, err := fmt.Sscan(lines.Text(), &seed); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
		r := world.Run(world.Generate(seed, turns), world.Options{Quiet: true})
		if err := out.Encode(answer{seed, r.Violation, r.Counts, r.Turns, r.Requests}); err != nil {
			return 2
		}
	}
	return 0
}

// child is one process that serves seeds.
type child struct {
	command *exec.Cmd
	in      io.WriteCloser
	out     *json.Decoder
	errors  *tail
}

func startChild(turns int) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{command: exec.Command(self, "-child", "-turns", fmt.Sprint(turns)), errors: &tail{}}
	c.command.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=400")
	c.command.Stderr = c.errors
	if c.in, err = c.command.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = json.NewDecoder(out)
	return c, c.command.Start()
}

// run asks for one seed. An answer that does not come within patience, or a child that dies, is a violation; the
// child is gone then.
func (c *child) run(seed uint64, patience time.Duration) (a answer, alive bool) {
	hung := false
	var mu sync.Mutex
	timer := time.AfterFunc(patience, func() {
		mu.Lock()
		hung = true
		mu.Unlock()
		c.command.Process.Kill()
	})
	defer timer.Stop()
	_, err := fmt.Fprintln(c.in, seed)
	if err == nil {
		err = c.out.Decode(&a)
	}
	if err == nil {
		return a, true
	}
	c.command.Process.Kill()
	_ = c.command.Wait() // its status says no more than what follows
	what := fmt.Sprintf("the process died: %v\n%s", err, c.errors)
	mu.Lock()
	if hung {
		what = fmt.Sprintf("no answer within %v", patience)
	}
	mu.Unlock()
	return answer{Seed: seed, Violation: &world.Violation{Oracle: world.OracleHang, What: what}}, false
}

func (c *child) stop() {
	c.in.Close()
	_ = c.command.Wait() // it has answered all that it was asked
}

// tail keeps the first bytes of what a child says in its trouble.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailBytes = 8 << 10

// Write (io.Writer).
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b[:min(len(b), tailBytes-len(t.text))]...)
	return len(b), nil
}

// String is what was kept.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
