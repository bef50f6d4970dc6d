package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

type status string

const (
	passed status = "passed"
	failed status = "failed"
	absent status = "absent"
)

// result is what became of one part.
type result struct {
	Part    string          `json:"part"`
	What    string          `json:"what"`
	Status  status          `json:"status"`
	Reason  string          `json:"reason,omitempty"` // of what is not passed
	Seconds float64         `json:"seconds"`
	Counts  string          `json:"counts,omitempty"` // of a Go test
	Data    json.RawMessage `json:"data,omitempty"`   // what the part measured
}

// gate runs parts.
type gate struct {
	out    string
	driver string
	end    time.Time
	text   io.Writer // standard output and gpu.txt
	file   *os.File
	all    []result
}

func newGate(out string, limit time.Duration, driver string) (*gate, error) {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, err
	}
	file, err := os.Create(filepath.Join(out, "gpu.txt"))
	if err != nil {
		return nil, err
	}
	return &gate{out: out, driver: driver, end: time.Now().Add(limit), text: io.MultiWriter(os.Stdout, file), file: file}, nil
}

func (g *gate) say(format string, args ...any) { fmt.Fprintf(g.text, format+"\n", args...) }

// run returns the exit status.
func (g *gate) run(parts []part, only []string) int {
	began := time.Now()
	g.say("%s, commit %s", machine(), commit)
	for _, name := range only {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			g.say("no part %q", name)
			return 2
		}
	}
	reason := "" // why there is no GPU
	for _, p := range parts {
		if len(only) > 0 && !slices.Contains(only, p.name) {
			continue
		}
		r := result{Part: p.name, What: p.what, Status: absent, Reason: reason}
		if reason == "" {
			r = g.part(p)
		}
		if p.name == "driver" && r.Status == absent {
			word, _, _ := strings.Cut(r.Reason, ":")
			reason = word + ": as part driver says"
		}
		g.all = append(g.all, r)
		g.say("== %s: %s in %.1f s%s", r.Part, r.Status, r.Seconds, dash(r.Counts)+dash(r.Reason))
		g.save(began) // after each, so that a machine that goes away leaves what there is
	}
	return g.sum()
}

func dash(text string) string {
	if text == "" {
		return ""
	}
	return ": " + text
}

// sum prints the table.
func (g *gate) sum() int {
	counts := map[status]int{}
	g.say("")
	for _, r := range g.all {
		counts[r.Status]++
		g.say("%-12s %-7s %6.1f s  %s%s", r.Part, r.Status, r.Seconds, r.What, dash(r.Reason))
	}
	g.say("%d passed, %d failed, %d absent; %s", counts[passed], counts[failed], counts[absent], g.out)
	_ = g.file.Close()
	if counts[failed] > 0 {
		return 1
	}
	return 0
}

// save writes gpu.json.
func (g *gate) save(began time.Time) {
	text, err := json.MarshalIndent(map[string]any{
		"began": began.UTC().Format(time.RFC3339), "machine": machine(), "commit": commit, "parts": g.all,
	}, "", "  ")
	if err == nil {
		err = os.WriteFile(filepath.Join(g.out, "gpu.json"), append(text, '\n'), 0o644)
	}
	if err != nil {
		g.say("gpu.json: %v", err)
	}
}

// part runs one part to its end, or to its limit.
func (g *gate) part(p part) result {
	r := result{Part: p.name, What: p.what, Status: failed}
	path := p.program
	if path == "" {
		path, _ = os.Executable()
	} else if !filepath.IsAbs(path) {
		path = beside(path)
	}
	if _, err := os.Stat(path); err != nil {
		r.Status, r.Reason = absent, "not-built: "+path
		return r
	}
	left := time.Until(g.end)
	limit := min(p.limit, left)
	if left < time.Second {
		r.Reason = "no time is left"
		return r
	}
	data := filepath.Join(g.out, "part.json")
	_ = os.Remove(data)
	g.say("== %s: %s (%s %s, at most %s)", p.name, p.what, path, strings.Join(p.args, " "), limit.Round(time.Second))
	c := exec.Command(path, p.args...)
	c.Env = append(os.Environ(), "ORBITTE_GPU_DATA="+data, "ORBITTE_GPU_DRIVER="+g.driver)
	began := time.Now()
	output, timeout, err := g.drive(c, p.name, limit)
	r.Seconds = time.Since(began).Seconds()
	r.judge(p, output, timeout, err, limit)
	if text, err := os.ReadFile(data); err == nil && json.Valid(text) {
		r.Data = text
	}
	_ = os.Remove(data)
	return r
}

// drive runs a command in a process group of its own and shows what it prints.
func (g *gate) drive(c *exec.Cmd, name string, limit time.Duration) (output []string, timeout bool, err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, false, err
	}
	c.Stdout, c.Stderr, c.SysProcAttr = write, write, &syscall.SysProcAttr{Setpgid: true}
	err = c.Start()
	_ = write.Close()
	if err != nil {
		_ = read.Close()
		return nil, false, err
	}
	stop := make(chan bool, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewScanner(read)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			output = append(output, lines.Text())
			g.say("%s| %s", name, lines.Text())
		}
	}()
	group := -c.Process.Pid
	timer := time.AfterFunc(limit, func() {
		stop <- true
		_ = syscall.Kill(group, syscall.SIGQUIT) // a Go program shows its stacks
		time.Sleep(3 * time.Second)
		_ = syscall.Kill(group, syscall.SIGKILL)
	})
	err = c.Wait()
	timeout = !timer.Stop() && len(stop) == 1
	_ = syscall.Kill(group, syscall.SIGKILL) // what it left running would hold the pipe
	<-done
	_ = read.Close()
	return output, timeout, err
}

var verdict = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): (\S+)`)

// judge says what a part's end means.
func (r *result) judge(p part, output []string, timeout bool, err error, limit time.Duration) {
	counts := map[string]int{}
	skipped := false
	for _, line := range output {
		if m := verdict.FindStringSubmatch(line); m != nil {
			counts[m[1]]++
			skipped = skipped || m[1] == "SKIP" && m[2] == p.test
		}
	}
	if len(counts) > 0 {
		r.Counts = fmt.Sprintf("%d tests passed, %d failed, %d skipped", counts["PASS"], counts["FAIL"], counts["SKIP"])
	}
	last := ""
	for _, line := range output {
		if strings.TrimSpace(line) != "" && line != "PASS" && !verdict.MatchString(line) {
			last = strings.TrimSpace(line)
		}
	}
	var exit *exec.ExitError
	switch {
	case timeout:
		r.Reason = fmt.Sprintf("not done after %s", limit.Round(time.Second))
	case errors.As(err, &exit) && exit.ExitCode() == absentStatus:
		r.Status, r.Reason = absent, last
	case err != nil:
		r.Reason = fmt.Sprintf("%v; its last line: %s", err, last)
	case skipped:
		r.Status, r.Reason = absent, last
	case p.test != "" && counts["PASS"] == 0:
		r.Reason = "no test ran"
	default:
		r.Status = passed
	}
}
