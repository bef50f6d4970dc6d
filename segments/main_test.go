package segments

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/orbitte/orbitte/budgets"
)

// TestMain fails the run when a test leaves a goroutine or a memory object behind.
func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if left := Residents(); code == 0 && len(left) != 0 {
		fmt.Fprintln(os.Stderr, "memory objects left behind:", left)
		code = 1
	}
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// seeded chooses a seed for rapid unless -rapid.seed gave one, says how to replay, and returns it.
func seeded(t *testing.T) uint64 {
	t.Helper()
	if flag.Lookup("rapid.seed").Value.String() == "0" {
		if err := flag.Set("rapid.seed", strconv.FormatInt(time.Now().UnixNano(), 10)); err != nil {
			t.Fatal(err)
		}
	}
	text := flag.Lookup("rapid.seed").Value.String()
	t.Logf("SEED=%s replay: go test ./segments -run '^%s$' -rapid.seed=%s", text, t.Name(), text)
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return seed
}

// leavesNothing checks at the end of a test that it left no memory object.
func leavesNothing(t *testing.T) {
	t.Helper()
	count, bytes := Mappings()
	t.Cleanup(func() {
		if c, b := Mappings(); c != count || b != bytes {
			t.Errorf("memory objects: %d of %d bytes, before the test %d of %d bytes: %v", c, b, count, bytes, Residents())
		}
	})
}

func mapped(t *testing.T, length uint64) *Backing {
	t.Helper()
	b, err := Map(length)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func adopted(t *testing.T, length int) *Backing {
	t.Helper()
	b, err := AdoptSlice(make([]byte, length))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// panics returns what f panics with, as text.
func panics(t *testing.T, f func()) (text string) {
	t.Helper()
	defer func() { text = fmt.Sprint(recover()) }()
	f()
	t.Fatal("no panic")
	return ""
}

// ledger is the pair of budgets of a tracker under test, with a record of what ended.
type ledger struct {
	count, bytes *budgets.Budget
	ended        []uint64
}

func newLedger(count, bytes int64) *ledger {
	return &ledger{count: budgets.New("registrations", "ranges", count), bytes: budgets.New("registered bytes", "bytes", bytes)}
}

func (l *ledger) tracker() *Tracker {
	return NewTracker(l.count, l.bytes, func(r *Registration) { l.ended = append(l.ended, r.ID()) })
}

func (l *ledger) owes(t *testing.T, count, bytes int64) {
	t.Helper()
	if l.count.Used() != count || l.bytes.Used() != bytes {
		t.Fatalf("charged %d ranges, %d bytes, want %d, %d", l.count.Used(), l.bytes.Used(), count, bytes)
	}
}
