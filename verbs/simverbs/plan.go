package simverbs

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/orbitte/orbitte/verbs"
)

// String writes a fault as text that ParsePlan reads: (lose-completion (pair 2) (index 3)).
func (f Fault) String() string {
	var b strings.Builder
	b.WriteString("(" + f.Kind.String())
	word := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, " (%s %s)", name, value)
		}
	}
	number := func(name string, n int) {
		if n != 0 {
			word(name, strconv.Itoa(n))
		}
	}
	word("host", f.Host)
	word("process", f.Process)
	word("device", f.Device)
	number("port", f.Port)
	number("pair", f.Pair)
	number("queue", f.Queue)
	if f.Call != 0 {
		word("call", f.Call.String())
	}
	number("index", f.Index)
	number("count", f.Count)
	number("element", f.Element)
	if f.Errno != 0 {
		word("errno", errnoName(f.Errno))
	}
	number("status", int(f.Status))
	number("gid", f.GID)
	number("to", f.To)
	if f.By != 0 {
		word("by", f.By.String())
	}
	if f.At != 0 {
		word("at", f.At.String())
	}
	return b.String() + ")"
}

// FormatPlan writes faults one to a line.
func FormatPlan(plan []Fault) string {
	var b strings.Builder
	for _, f := range plan {
		b.WriteString(f.String() + "\n")
	}
	return b.String()
}

// A PlanError says what is wrong with the text of a plan.
type PlanError struct {
	Line int // from 1
	What string
}

func (e *PlanError) Error() string { return fmt.Sprintf("fault plan line %d: %s", e.Line, e.What) }

// ParsePlan reads faults, one to a line; an empty line and one that begins with a semicolon say nothing.
func ParsePlan(text string) ([]Fault, error) {
	var plan []Fault
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == ';' {
			continue
		}
		f, err := parseFault(line)
		if err != nil {
			return nil, &PlanError{i + 1, err.Error()}
		}
		plan = append(plan, f)
	}
	return plan, nil
}

func parseFault(line string) (f Fault, err error) {
	inner, ok := strings.CutPrefix(line, "(")
	inner, closed := strings.CutSuffix(inner, ")")
	if !ok || !closed {
		return f, fmt.Errorf("%q is not (kind (name value)…)", line)
	}
	parts := strings.Split(inner, "(")
	kind := strings.TrimSpace(parts[0])
	if !find(&f.Kind, faultNames[:], kind) {
		return f, fmt.Errorf("no fault %q", kind)
	}
	for _, part := range parts[1:] {
		body, closed := strings.CutSuffix(strings.TrimSpace(part), ")")
		words := strings.Fields(body)
		if !closed || len(words) != 2 || strings.Contains(body, ")") {
			return f, fmt.Errorf("%q is not (name value)", "("+part)
		}
		if err := f.set(words[0], words[1]); err != nil {
			return f, err
		}
	}
	return f, nil
}

func find[K ~uint8](into *K, names []string, name string) bool {
	for i, n := range names {
		if n == name {
			*into = K(i)
			return true
		}
	}
	return false
}

// set gives a field its value.
func (f *Fault) set(name, value string) (err error) {
	numbers := map[string]*int{
		"port": &f.Port, "pair": &f.Pair, "queue": &f.Queue, "index": &f.Index, "count": &f.Count, "element": &f.Element,
		"gid": &f.GID, "to": &f.To,
	}
	words := map[string]*string{"host": &f.Host, "process": &f.Process, "device": &f.Device}
	durations := map[string]*time.Duration{"by": &f.By, "at": &f.At}
	switch {
	case numbers[name] != nil:
		*numbers[name], err = strconv.Atoi(value)
	case words[name] != nil:
		*words[name] = value
	case durations[name] != nil:
		*durations[name], err = time.ParseDuration(value)
	case name == "call":
		if !find(&f.Call, callNames[:], value) {
			err = fmt.Errorf("no call %q", value)
		}
	case name == "errno":
		f.Errno, err = parseErrno(value)
	case name == "status":
		var n int
		n, err = strconv.Atoi(value)
		f.Status = verbs.WorkStatus(n)
	default:
		err = fmt.Errorf("no field %q", name)
	}
	if err != nil {
		return fmt.Errorf("(%s %s): %w", name, value, err)
	}
	return nil
}

// errnos are those that verbs calls return, by name.
var errnos = []struct {
	name  string
	errno syscall.Errno
}{
	{"EPERM", syscall.EPERM}, {"EINTR", syscall.EINTR}, {"EIO", syscall.EIO}, {"EAGAIN", syscall.EAGAIN}, {"ENOMEM", syscall.ENOMEM},
	{"EACCES", syscall.EACCES}, {"EFAULT", syscall.EFAULT}, {"EBUSY", syscall.EBUSY}, {"ENODEV", syscall.ENODEV},
	{"EINVAL", syscall.EINVAL}, {"ENFILE", syscall.ENFILE}, {"EMFILE", syscall.EMFILE}, {"ENOSPC", syscall.ENOSPC},
	{"ENODATA", syscall.ENODATA}, {"EOPNOTSUPP", syscall.EOPNOTSUPP}, {"ENETUNREACH", syscall.ENETUNREACH},
	{"ETIMEDOUT", syscall.ETIMEDOUT}, {"EHOSTUNREACH", syscall.EHOSTUNREACH},
}

func errnoName(e syscall.Errno) string {
	for _, known := range errnos {
		if known.errno == e {
			return known.name
		}
	}
	return strconv.Itoa(int(e))
}

func parseErrno(text string) (syscall.Errno, error) {
	for _, known := range errnos {
		if known.name == text {
			return known.errno, nil
		}
	}
	n, err := strconv.Atoi(text)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("no error %q", text)
	}
	return syscall.Errno(n), nil
}
