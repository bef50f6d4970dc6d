package simverbs_test

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

func randomFault(r *rand.Rand) simverbs.Fault {
	pick := func(n int) int { return r.IntN(2) * r.IntN(n) }
	names := []string{"", "a", "mlx5_0", "host-2"}
	return simverbs.Fault{
		Kind: simverbs.FaultKind(r.IntN(22)), Host: names[r.IntN(4)], Process: names[r.IntN(4)], Device: names[r.IntN(4)],
		Port: pick(3), Pair: pick(99), Queue: pick(99), Call: simverbs.Call(pick(27)), Index: pick(50), Count: pick(9) - 1,
		Element: pick(20), Errno: syscall.Errno(pick(130)), Status: verbs.WorkStatus(pick(21)), GID: pick(16), To: pick(16),
		By: time.Duration(pick(1 << 40)), At: time.Duration(pick(1 << 40)),
	}
}

func TestPlansThatWereWrittenAreReadAsTheSame(t *testing.T) {
	r := rand.New(rand.NewPCG(seedOf(t), 1))
	for range 3000 {
		plan := []simverbs.Fault{randomFault(r), randomFault(r)}
		text := simverbs.FormatPlan(plan)
		got, err := simverbs.ParsePlan("; a comment\n\n" + text)
		if err != nil || !reflect.DeepEqual(got, plan) {
			t.Fatalf("%s was read as %+v: %v", text, got, err)
		}
	}
}

func TestAPlanReadsAsInADocument(t *testing.T) {
	const text = "(lose-completion (pair 2) (index 3))\n(fail-call (host a) (call ibv_reg_mr) (count -1) (errno ENOMEM))\n(port-down (device mlx5_0) (port 1) (at 5ms))\n"
	plan, err := simverbs.ParsePlan(text)
	if err != nil {
		t.Fatal(err)
	}
	want := []simverbs.Fault{
		{Kind: simverbs.LoseCompletion, Pair: 2, Index: 3},
		{Kind: simverbs.FailCall, Host: "a", Call: simverbs.CallRegister, Count: -1, Errno: syscall.ENOMEM},
		{Kind: simverbs.PortDown, Device: "mlx5_0", Port: 1, At: 5 * time.Millisecond},
	}
	if !reflect.DeepEqual(plan, want) {
		t.Errorf("read as %+v", plan)
	}
	if again := simverbs.FormatPlan(plan); again != text {
		t.Errorf("written as %s", again)
	}
}

func TestErrorsOfPlansNameTheLine(t *testing.T) {
	for text, word := range map[string]string{
		"(nonsense)": "nonsense", "lose-packet": "lose-packet", "(lose-packet (pair))": "(pair", "(lose-packet (pair x))": "pair",
		"(lose-packet (pear 1))": "pear", "(fail-call (call ibv_nothing))": "ibv_nothing", "(lose-packet (pair 1)": "pair",
		"(fail-call (errno EWHAT))": "EWHAT", "(late-completion (by 5))": "by", "(fail-work (status -))": "status", "(lose-packet ((pair 1))": "",
	} {
		_, err := simverbs.ParsePlan("\n\n" + text)
		var plan *simverbs.PlanError
		if !errors.As(err, &plan) || plan.Line != 3 || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func FuzzParsePlan(f *testing.F) {
	f.Add("(lose-completion (pair 2) (index 3))")
	f.Add("(fail-call (call ibv_reg_mr) (errno ENOMEM) (by 3ms))")
	f.Fuzz(func(t *testing.T, text string) {
		plan, err := simverbs.ParsePlan(text)
		if err != nil {
			return
		}
		again, err := simverbs.ParsePlan(simverbs.FormatPlan(plan))
		if err != nil || !reflect.DeepEqual(plan, again) {
			t.Fatalf("%q is %+v, then %+v: %v", text, plan, again, err)
		}
	})
}
