package simcuda

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/orbitte/orbitte/cuda"
)

// String writes a fault as text that ParsePlan reads: (fail-call (call cuMemcpyAsync) (index 1) (effect maybe)).
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
	number("device", f.Device)
	number("stream", f.Stream)
	word("call", f.Call.String())
	number("index", f.Index)
	number("count", f.Count)
	if f.Result != cuda.Success {
		word("result", resultName(f.Result))
	}
	if f.Effect != cuda.None {
		word("effect", effectWords[f.Effect])
	}
	if f.By != 0 {
		word("by", f.By.String())
	}
	if f.At != 0 {
		word("at", f.At.String())
	}
	return b.String() + ")"
}

var effectWords = []string{"none", "maybe"}

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
	if needs := f.Kind == FailCall || f.Kind == SlowCall; needs != (f.Call != callNone) {
		return f, fmt.Errorf("%s with call %q", f.Kind, f.Call)
	}
	return f, nil
}

func find[K ~uint8](into *K, names []string, name string) bool {
	for i, n := range names {
		if n == name && name != "" {
			*into = K(i)
			return true
		}
	}
	return false
}

// set gives a field its value.
func (f *Fault) set(name, value string) (err error) {
	numbers := map[string]*int{"device": &f.Device, "stream": &f.Stream, "index": &f.Index, "count": &f.Count}
	durations := map[string]*time.Duration{"by": &f.By, "at": &f.At}
	switch {
	case numbers[name] != nil:
		*numbers[name], err = strconv.Atoi(value)
	case durations[name] != nil:
		*durations[name], err = time.ParseDuration(value)
	case name == "call":
		if !find(&f.Call, callNames[:], value) {
			err = fmt.Errorf("no call %q", value)
		}
	case name == "effect":
		if !find(&f.Effect, effectWords, value) {
			err = fmt.Errorf("no effect %q", value)
		}
	case name == "result":
		f.Result, err = parseResult(value)
	default:
		err = fmt.Errorf("no field %q", name)
	}
	if err != nil {
		return fmt.Errorf("(%s %s): %w", name, value, err)
	}
	return nil
}

// results are those that the driver calls return, by name.
var results = []struct {
	name   string
	result cuda.Result
}{
	{"CUDA_SUCCESS", cuda.Success}, {"CUDA_ERROR_INVALID_VALUE", cuda.InvalidValue}, {"CUDA_ERROR_OUT_OF_MEMORY", cuda.OutOfMemory},
	{"CUDA_ERROR_NOT_INITIALIZED", cuda.NotInitialized}, {"CUDA_ERROR_DEINITIALIZED", cuda.Deinitialized},
	{"CUDA_ERROR_NO_DEVICE", cuda.NoDevice}, {"CUDA_ERROR_INVALID_DEVICE", cuda.InvalidDevice},
	{"CUDA_ERROR_INVALID_CONTEXT", cuda.InvalidContext}, {"CUDA_ERROR_ECC_UNCORRECTABLE", cuda.ECCUncorrectable},
	{"CUDA_ERROR_INVALID_HANDLE", cuda.InvalidHandle}, {"CUDA_ERROR_NOT_FOUND", cuda.NotFound}, {"CUDA_ERROR_NOT_READY", cuda.NotReady},
	{"CUDA_ERROR_ILLEGAL_ADDRESS", cuda.IllegalAddress}, {"CUDA_ERROR_CONTEXT_IS_DESTROYED", cuda.ContextDestroyed},
	{"CUDA_ERROR_LAUNCH_FAILED", cuda.LaunchFailed}, {"CUDA_ERROR_NOT_PERMITTED", cuda.NotPermitted},
	{"CUDA_ERROR_NOT_SUPPORTED", cuda.NotSupported}, {"CUDA_ERROR_SYSTEM_NOT_READY", cuda.SystemNotReady},
	{"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", cuda.DriverMismatch}, {"CUDA_ERROR_UNKNOWN", cuda.Unknown},
}

func resultName(r cuda.Result) string {
	for _, known := range results {
		if known.result == r {
			return known.name
		}
	}
	return strconv.Itoa(int(r))
}

func parseResult(text string) (cuda.Result, error) {
	for _, known := range results {
		if known.name == text && known.result != cuda.Success {
			return known.result, nil
		}
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("no error %q", text)
	}
	return cuda.Result(n), nil
}
