package simcuda_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
)

func TestPlansAreText(t *testing.T) {
	plan := []simcuda.Fault{
		{Kind: simcuda.FailCall, Call: simcuda.CallCopy, Index: 1, Effect: cuda.Maybe, Result: cuda.LaunchFailed},
		{Kind: simcuda.FailCall, Call: simcuda.CallFree, Device: 2, Count: -1, Result: cuda.Result(4711)},
		{Kind: simcuda.SlowCall, Call: simcuda.CallSynchronize, By: 3 * time.Second},
		{Kind: simcuda.LoseCallback, Stream: 7}, {Kind: simcuda.DoubleCallback}, {Kind: simcuda.LateCallback, By: time.Millisecond},
		{Kind: simcuda.SlowCopy, By: time.Hour, Index: 4}, {Kind: simcuda.LoseDevice, Device: 1, At: time.Minute, Result: cuda.ECCUncorrectable},
	}
	text := simcuda.FormatPlan(plan)
	again, err := simcuda.ParsePlan("; a note\n\n" + text)
	if err != nil || simcuda.FormatPlan(again) != text || len(again) != len(plan) {
		t.Errorf("%v\n%s\n%s", err, text, simcuda.FormatPlan(again))
	}
	for i := range again {
		if again[i] != plan[i] {
			t.Errorf("%v became %v", plan[i], again[i])
		}
	}
	if want := "(fail-call (call cuMemcpyAsync) (index 1) (result CUDA_ERROR_LAUNCH_FAILED) (effect maybe))\n"; !strings.HasPrefix(text, want) {
		t.Errorf("%s", text)
	}
}

func TestWrongPlansAreRefusedByLine(t *testing.T) {
	for _, line := range []string{
		"fail-call", "(fail)", "(fail-call)", "(slow-copy (call cuMemFree_v2))", "(slow-copy (by soon))", "(fail-call (call cuFoo))", "(slow-copy (index))",
		"(slow-copy (index x))", "(slow-copy (colour red))", "(lose-device (result CUDA_SUCCESS))", "(lose-device (result 0))", "(fail-call (call cuMemFree_v2) (effect done))", "(slow-copy (by 1s)",
	} {
		_, err := simcuda.ParsePlan("(lose-callback)\n" + line)
		var facts *simcuda.PlanError
		if !errors.As(err, &facts) || facts.Line != 2 || facts.What == "" {
			t.Errorf("%q: %v", line, err)
		}
	}
}
