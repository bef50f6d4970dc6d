package baselines

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// Program is a process that answers lines of JSON with lines of JSON. One goroutine at a time.
type Program struct {
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
	name    string
	hello   string
	gone    error // what the first question said that it could not hear any more; the later ones say the same
}

// StartProgram starts a process and waits for its first line, the hello.
func StartProgram(name, path string, args ...string) (*Program, error) {
	p := &Program{command: exec.Command(path, args...), name: name}
	p.command.Stderr = os.Stderr
	var err error
	if p.in, err = p.command.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p.out = bufio.NewScanner(out)
	p.out.Buffer(nil, 1<<20)
	if !p.out.Scan() {
		p.Close()
		return nil, fmt.Errorf("%s ended before its first line", name)
	}
	p.hello = p.out.Text()
	return p, nil
}

// Hello is the first line.
func (p *Program) Hello() string { return p.hello }

// Pid is the process's; 0 for nil.
func (p *Program) Pid() int {
	if p == nil {
		return 0
	}
	return p.command.Process.Pid
}

// failure is an answer that reports an error.
type failure struct {
	Error string `json:"error"`
}

// Ask sends one question and reads one answer. An answer with an "error" is one.
func (p *Program) Ask(question, answer any) error {
	text, err := json.Marshal(question)
	if err != nil {
		return err
	}
	if p.gone != nil {
		return p.gone
	}
	if _, err := p.in.Write(append(text, '\n')); err != nil {
		p.gone = fmt.Errorf("%s ended: %w", p.name, err)
		return p.gone
	}
	if !p.out.Scan() {
		p.gone = fmt.Errorf("%s ended", p.name)
		return p.gone
	}
	var failed failure
	if err := json.Unmarshal(p.out.Bytes(), &failed); err != nil {
		return fmt.Errorf("%s answered %q: %w", p.name, p.out.Text(), err)
	}
	if failed.Error != "" {
		return fmt.Errorf("%s: %s", p.name, failed.Error)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(p.out.Bytes(), answer)
}

// Serve is the other side of Ask: it answers each line of standard input until its end.
func Serve(hello string, answer func(question []byte) (any, error)) error {
	fmt.Println(hello)
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for in.Scan() {
		a, err := answer(in.Bytes())
		switch {
		case err != nil:
			a = failure{err.Error()}
		case a == nil:
			a = struct{}{}
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
	return in.Err()
}

// Close ends the process: the end of its input asks it to, and two seconds later it is killed.
func (p *Program) Close() {
	if p == nil {
		return
	}
	p.in.Close()
	timer := time.AfterFunc(2*time.Second, func() { _ = p.command.Process.Kill() })
	defer timer.Stop()
	_ = p.command.Wait()
}

// ErrAbsent marks a program that cannot be used here; the text says why.
var ErrAbsent = errors.New("absent")

// absent is the reason alone.
type absent struct{ reason string }

func (a absent) Error() string        { return a.reason }
func (a absent) Is(target error) bool { return target == ErrAbsent }

// Absent makes an error that is ErrAbsent and reads as the reason.
func Absent(format string, args ...any) error { return absent{fmt.Sprintf(format, args...)} }
