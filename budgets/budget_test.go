package budgets

import (
	"errors"
	"math"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func mustTake(t *testing.T, b *Budget, n int64) Charge {
	t.Helper()
	c, err := b.Take(n)
	if err != nil {
		t.Fatalf("Take(%d): %v", n, err)
	}
	return c
}

// mustPanic runs f and returns what it panicked with.
func mustPanic(t *testing.T, f func()) (message string) {
	t.Helper()
	defer func() {
		t.Helper()
		r := recover()
		if r == nil {
			t.Fatal("no panic")
		}
		message, _ = r.(string)
	}()
	f()
	return ""
}

// proves U-1
func TestChargeIsVisibleFromTakeUntilRepay(t *testing.T) {
	b := New("payload", "bytes", 100)
	c := mustTake(t, b, 60)
	if !c.Held() || c.Amount() != 60 || b.Used() != 60 {
		t.Fatalf("held %v amount %d used %d", c.Held(), c.Amount(), b.Used())
	}
	d := c.Move()
	if c.Held() || c.Amount() != 0 || !d.Held() || d.Amount() != 60 || b.Used() != 60 {
		t.Fatalf("after Move: old %+v new %+v used %d", c, d, b.Used())
	}
	d.Repay()
	if d.Held() || d.Amount() != 0 || b.Used() != 0 || b.Peak() != 60 {
		t.Fatalf("after Repay: %+v used %d peak %d", d, b.Used(), b.Peak())
	}
}

// proves U-1
func TestChargeIsRepaidExactlyOnce(t *testing.T) {
	b := New("slots", "slots", 4)
	keep := mustTake(t, b, 1)
	c := mustTake(t, b, 1)
	moved := c.Move()
	for name, f := range map[string]func(){"Repay": c.Repay, "Move": func() { c.Move() }} {
		if m := mustPanic(t, f); !strings.Contains(m, name) || !strings.Contains(m, "empty, want held") {
			t.Errorf("%s of a moved charge: %q", name, m)
		}
	}
	moved.Repay()
	mustPanic(t, moved.Repay)
	var zero Charge
	mustPanic(t, zero.Repay)
	if b.Used() != 1 {
		t.Fatalf("used %d after the refused repays, want 1", b.Used())
	}
	copied := keep
	keep.Repay()
	if m := mustPanic(t, copied.Repay); !strings.Contains(m, "slots") {
		t.Errorf("repaid copy: %q", m)
	}
}

// proves U-3
func TestTakePastTheLimitNamesBudgetLimitAndUse(t *testing.T) {
	b := New("handlers", "requests", 4)
	c := mustTake(t, b, 3)
	refused, err := b.Take(2)
	var e *Exhausted
	if !errors.As(err, &e) || !errors.Is(err, ErrExhausted) || refused.Held() {
		t.Fatalf("err %v, refused %+v", err, refused)
	}
	if *e != (Exhausted{Budget: "handlers", Unit: "requests", Asked: 2, Used: 3, Limit: 4}) {
		t.Fatalf("%+v", *e)
	}
	for _, want := range []string{"handlers", "asked 2", "in use 3", "limit 4 requests", "nothing was begun", "wait"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
	if b.Used() != 3 || b.Refusals() != 1 || b.Peak() != 3 {
		t.Fatalf("used %d refusals %d peak %d", b.Used(), b.Refusals(), b.Peak())
	}
	if _, err := b.Take(5); !strings.Contains(err.Error(), "can never fit") {
		t.Errorf("over the whole limit: %v", err)
	}
	c.Repay()
	last := mustTake(t, b, 4)
	last.Repay()
}

func TestTakeDoesNotOverflow(t *testing.T) {
	b := New("huge", "bytes", math.MaxInt64)
	c := mustTake(t, b, math.MaxInt64)
	if _, err := b.Take(1); err == nil {
		t.Fatal("one more than the largest limit was taken")
	}
	if _, err := b.Take(math.MaxInt64); err == nil {
		t.Fatal("twice the largest limit was taken")
	}
	none := mustTake(t, b, 0)
	if !none.Held() {
		t.Fatal("a charge of zero is not held")
	}
	none.Repay()
	c.Repay()
}

func TestOwnMistakesPanic(t *testing.T) {
	b := New("a", "bytes", 1)
	mustPanic(t, func() { New("b", "bytes", -1) })
	mustPanic(t, func() { _, _ = b.Take(-1) })
	var l Ledger
	l.Add(b)
	mustPanic(t, func() { l.Add(New("a", "slots", 1)) })
}

func TestLimitHoldsUnderConcurrentUse(t *testing.T) {
	const limit, workers, rounds = 10, 8, 50_000 // enough for a lost update to show
	b := New("shared", "slots", limit)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range rounds {
				c, err := b.Take(int64(1 + (w+i)%4))
				if used := b.Used(); used > limit || used < 0 {
					t.Errorf("used %d of %d", used, limit)
				}
				if err == nil {
					c.Repay()
				}
			}
		})
	}
	wg.Wait()
	if b.Used() != 0 || b.Peak() > limit || b.Peak() == 0 {
		t.Fatalf("used %d peak %d", b.Used(), b.Peak())
	}
}

// A random history of takes, moves and repays is compared with a plain sum.
func TestUsedEqualsTheSumOfHeldCharges(t *testing.T) {
	seeded(t)
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(0, 50).Draw(t, "limit")
		b := New("model", "units", limit)
		var held []Charge
		var sum, peak int64
		var refusals uint64
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				n := rapid.Int64Range(0, 60).Draw(t, "n")
				c, err := b.Take(n)
				if fits := sum+n <= limit; fits != (err == nil) {
					t.Fatalf("Take(%d) with %d of %d used: %v", n, sum, limit, err)
				}
				if err != nil {
					refusals++
					return
				}
				held, sum = append(held, c), sum+n
				peak = max(peak, sum)
			},
			"move and repay": func(t *rapid.T) {
				if len(held) == 0 {
					t.Skip("nothing held")
				}
				last := &held[len(held)-1]
				c := last.Move()
				held, sum = held[:len(held)-1], sum-c.Amount()
				c.Repay()
			},
			"": func(t *rapid.T) {
				want := Snapshot{Name: "model", Unit: "units", Used: sum, Peak: peak, Limit: limit, Refusals: refusals}
				if got := b.Snapshot(); got != want {
					t.Fatalf("got %+v want %+v", got, want)
				}
			},
		})
	})
}

// The end of every engine test asks Owed whether each gauge is back at zero.
func TestLedgerListsWhatIsOwedInOrder(t *testing.T) {
	var l Ledger
	if l.Owed() != nil || len(l.Snapshot()) != 0 {
		t.Fatal("an empty ledger is not empty")
	}
	a, b, c := l.Add(New("a", "bytes", 9)), l.Add(New("b", "slots", 9)), l.Add(New("c", "slots", 9))
	ca, cc := mustTake(t, a, 1), mustTake(t, c, 2)
	all := l.Snapshot()
	if len(all) != 3 || all[0].Name != "a" || all[1] != b.Snapshot() || all[2].Used != 2 {
		t.Fatalf("%+v", all)
	}
	owed := l.Owed()
	if len(owed) != 2 || owed[0].Name != "a" || owed[1].Name != "c" {
		t.Fatalf("%+v", owed)
	}
	ca.Repay()
	cc.Repay()
	if owed := l.Owed(); owed != nil {
		t.Fatalf("%+v", owed)
	}
}

func TestTakeAndRepayDoNotAllocate(t *testing.T) {
	b := New("hot", "bytes", 100)
	if n := testing.AllocsPerRun(100, func() {
		c, _ := b.Take(7)
		d := c.Move()
		d.Repay()
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func BenchmarkTakeRepay(b *testing.B) {
	budget := New("hot", "bytes", 100)
	for b.Loop() {
		c, _ := budget.Take(7)
		c.Repay()
	}
}
