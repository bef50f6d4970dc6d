package arch

import (
	"fmt"
	"strings"
	"testing"
)

// bad holds, for each rule, code that breaks it; each must be caught by that rule and by no other.
var bad = []struct{ rule, path, text string }{
	{"import", "budgets/a.go", `import _ "github.com/orbitte/orbitte/netproto"`},
	{"import", "lanes/tcp/a.go", `import _ "github.com/orbitte/orbitte/lanes/rdma"`},
	{"import", "reactor/epoll/a.go", `import _ "github.com/orbitte/orbitte/reactor/uring"`},
	{"import", "lanes/a.go", `import _ "github.com/orbitte/orbitte/test/leak"`},
	{"import", "a.go", `import _ "github.com/orbitte/orbitte/verbs/libibverbs"`},
	{"import", "budgets/a_test.go", `import _ "github.com/orbitte/orbitte/segments"`},
	{"import", "test/consumer/a.go", `import _ "github.com/orbitte/orbitte/segments"`},
	{"dot-import", "segments/a.go", `import . "fmt"`},
	{"dependency", "lanes/tcp/a.go", `import _ "github.com/rs/zerolog"`},
	{"dependency", "a.go", `import _ "example.com/novelty"`},
	{"clock", "segments/a.go", `import "time"; var x = time.Now`},
	{"clock", "a.go", `import clock "time"; func f() { <-clock.After(1) }`},
	{"clock", "reactor/a.go", `import "time"; func f() { time.Sleep(1) }`},
	{"go", "lanes/tcp/a.go", `func f() { go f() }`},
	{"go", "reactor/uring/a_unsafe.go", `func f() { go f() }`},
	{"thread", "reactor/uring/a.go", `import "runtime"; func f() { runtime.LockOSThread() }`},
	{"lock", "segments/a.go", `import "sync"; type t struct { sync.Mutex }`},
	{"lock", "lanes/control/a.go", `import "sync"; var mu sync.RWMutex`},
	{"wait-group", "reactor/a.go", `import "sync"; var w sync.WaitGroup`},
	{"once", "lanes/a.go", `import "sync"; var o sync.Once`},
	{"cgo", "verbs/a_unsafe.go", `import "C"`},
	{"cgo", "verbs/libibverbs/a.go", `import "C"`},
	{"unsafe", "segments/a.go", `import "unsafe"; var p unsafe.Pointer`},
	{"unsafe", "netproto/a_unsafe.go", `import "unsafe"; var p unsafe.Pointer`},
	{"linkname", "reactor/a.go", "//go:linkname f runtime.f\nfunc f()"},
	{"raw-call", "reactor/epoll/a.go", `import "syscall"; func f() { syscall.RawSyscall6(1, 0, 0, 0, 0, 0, 0) }`},
	{"raw-call", "reactor/a.go", `import "golang.org/x/sys/unix"; var n = unix.SYS_READ`},
	{"cleanup", "lanes/tcp/a.go", `import "runtime"; func f(p *int) { runtime.SetFinalizer(p, nil) }`},
	{"cleanup", "reactor/a.go", `import "runtime"; func f(p *int) { runtime.AddCleanup(p, f, nil) }`},
	{"chance", "lanes/a.go", `import _ "math/rand/v2"`},
	{"chance", "a.go", `import _ "math/rand"`},
	{"exit", "a.go", `import "os"; func f() { os.Exit(1) }`},
	{"print", "segments/a.go", `import "fmt"; func f() { fmt.Println() }`},
	{"log", "a.go", `import _ "log"`},
	{"net", "lanes/tcp/a.go", `import _ "net"`},
	{"context", "lanes/tcp/a.go", `import _ "context"`},
	{"system", "netproto/a.go", `import _ "os"`},
	{"system", "budgets/a.go", `import _ "syscall"`},
	{"process", "a.go", `import _ "os/exec"`},
	{"testing", "lanes/a.go", `import _ "testing"`},
	{"leftover", "lanes/a.go", "// TO" + "DO: later\nvar x int"},
	{"leftover", "lanes/a_test.go", "func f() {\n\t// FIX" + "ME\n}"},
	{"function-lines", "lanes/a.go", "func f() {" + strings.Repeat("\n", functionLinesMax) + "}"},
	{"function-lines", "cmd/orbitte/a.go", "var f = func() {" + strings.Repeat("\n", functionLinesMax) + "}"},
	{"file-lines", "lanes/a.go", strings.Repeat("\n", fileLinesMax)},
	{"machine-import", "lanes/tcp/a_machine.go", `import _ "github.com/orbitte/orbitte/reactor"`},
	{"machine-import", "segments/a_machine.go", `import _ "os"`},
	{"machine-import", "lanes/tcp/a_machine.go", `import _ "sync/atomic"`},
	{"machine-import", "lanes/tcp/a_machine.go", `import _ "maps"`},
	{"machine-time", "lanes/tcp/a_machine.go", `import "time"; var x time.Time`},
	{"machine-channel", "lanes/tcp/a_machine.go", `var c chan int`},
	{"machine-channel", "lanes/tcp/a_machine.go", `func f() { select {} }`},
	{"machine-map-range", "lanes/tcp/a_machine.go", `var m = map[int]int{}; func f() { for range m {} }`},
	{"machine-map-range", "lanes/tcp/a_machine.go", `type t struct { m map[int]int }; func (x *t) f() { for range x.m {} }`},
	{"machine-map-range", "lanes/tcp/a_machine.go", `func f(m map[int]int) { for range m {} }`},
	{"machine-map-range", "lanes/tcp/a_machine.go", `func f() { m := make(map[int]int); for range m {} }`},
	{"machine-map-range", "lanes/tcp/a_machine.go", `type s map[int]int; func f(m s) { for range m {} }`},
	{"machine-map-range", "lanes/tcp/a_machine.go", `type t struct { m map[int]int }; func f(x t) { m := x.m; for range m {} }`},
	{"machine-map-range", "lanes/tcp/a_machine.go", `func g() map[int]int { return nil }; func f() { for range g() {} }`},
	{"doc", "lanes/doc.go", ``},
	{"doc", "lanes/other.go", `var x int`},
}

// good holds code that no rule may report.
var good = []struct{ path, text string }{
	{"lanes/tcp/a.go", `import _ "github.com/orbitte/orbitte/lanes/control"`},
	{"reactor/uring/a.go", `import _ "github.com/orbitte/orbitte/reactor/socket"`},
	{"lanes/tcp/a_test.go", `import _ "github.com/orbitte/orbitte/reactor/simkernel"; func f() { go f() }`},
	{"lanes/tcp/a_test.go", `import "time"; import _ "math/rand"; var x = time.Now()`},
	{"segments/a_unsafe.go", `import "unsafe"; var p unsafe.Pointer`},
	{"reactor/epoll/a.go", `import "time"; var x = time.Now`},
	{"reactor/a.go", `import "time"; type clock struct{}; func (clock) Now() int { return 0 }; func f(d time.Duration) { var time clock; time.Now() }`},
	{"a.go", `import "sync"; var mu sync.Mutex; func f() { go f() }`},
	{"segments/a.go", `import "sync/atomic"; var x atomic.Int64`},
	{"reactor/a.go", `import "fmt"; func f() string { return fmt.Sprint("TO" + "DO") }`},
	{"lanes/tcp/a_machine.go", `import "time"; import _ "github.com/orbitte/orbitte/lanes"; const d time.Duration = time.Second`},
	{"lanes/tcp/a_machine.go", `type t struct { m map[int]int; s []int }; func (x *t) f() { for range x.s {}; m := []int{}; for range m {}; for range 3 {} }`},
	{"examples/one/a.go", `import "fmt"; func f() { fmt.Println() }`},
}

// all runs every rule that looks at a file. The documentation rule looks at a folder, so it joins
// only where the snippet is about it.
func all(f *file, doc bool) []finding {
	pkg := []*file{f}
	found := checkImports(f)
	found = append(found, checkWords(f)...)
	found = append(found, checkShapes(f)...)
	found = append(found, checkMachine(f, pkg)...)
	if doc {
		found = append(found, checkDoc(f.room, pkg)...)
	}
	return found
}

func snippet(t *testing.T, path, text string) *file {
	t.Helper()
	f, err := parse(path, []byte("package p\n"+text+"\n"))
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return f
}

func TestEveryRuleCatchesItsBadExample(t *testing.T) {
	for i, b := range bad {
		t.Run(fmt.Sprintf("%s/%d", b.rule, i), func(t *testing.T) {
			found := all(snippet(t, b.path, b.text), b.rule == "doc")
			if len(found) == 0 {
				t.Fatalf("rule %s misses, in %s:\n%s", b.rule, b.path, b.text)
			}
			hit := false
			for _, f := range found {
				hit = hit || f.rule == b.rule
				if f.remedy == "" || f.what == "" || f.file == "" {
					t.Errorf("finding without file, text or remedy: %v", f)
				}
				// A machine's import is often also one its room may not have.
				if f.rule != b.rule && !strings.HasPrefix(b.rule, "machine-") {
					t.Errorf("unexpected finding beside %s: %v", b.rule, f)
				}
			}
			if !hit {
				t.Errorf("rule %s misses, in %s; found %v", b.rule, b.path, found)
			}
		})
	}
}

func TestGoodExamplesPassEveryRule(t *testing.T) {
	for _, g := range good {
		report(t, all(snippet(t, g.path, g.text), false))
	}
}

// TestEveryWordHasABadExample keeps the tables and the self-test together.
func TestEveryWordHasABadExample(t *testing.T) {
	caught := map[string]bool{}
	for _, b := range bad {
		caught[b.rule] = true
	}
	for _, w := range words {
		if !caught[w.rule] {
			t.Errorf("no bad example breaks the rule %q (%s)", w.rule, w.path)
		}
	}
}

func TestFoldersOutsideThePlanAreReported(t *testing.T) {
	for _, folder := range []string{"internal", "lanes/pigeon", "lanes/tcp/helpers", "reactor/kqueue", "test/misc", "testdata", "examples/one/two"} {
		if len(checkFolder(folder)) == 0 {
			t.Errorf("folder %s passes", folder)
		}
	}
	for _, folder := range []string{".", ".ci", "cmd", "cmd/orbitte", "lanes", "lanes/tcp", "lanes/tcp/testdata/fuzz/FuzzX", "examples/one", "test", "test/arch"} {
		report(t, checkFolder(folder))
	}
}

func TestTopLevelEntriesOutsideTheListAreReported(t *testing.T) {
	ignored := ignoredNames("/bin/\n*.test\n/dist/\n")
	for _, name := range []string{"docs", "internal", "vendor", "notes.txt", "go.work", "x.test"} {
		if len(checkTop(name, ignored)) == 0 {
			t.Errorf("entry %s passes", name)
		}
	}
	for _, name := range []string{"bin", "dist", "engine.go", "go.mod", "README.md", ".ci", "LICENSE"} {
		report(t, checkTop(name, ignored))
	}
}
