package arch

import (
	"go/ast"
	"slices"
	"strings"
)

// A word is something from a package that only some rooms may say, in code that is shipped.
type word struct {
	rule    string
	path    string
	names   []string // what of the package; a trailing * matches any ending; empty: the import itself
	rooms   places   // may say it in any file
	guarded places   // may say it in *_unsafe.go
	why     string
	remedy  string
}

var (
	clockNames = []string{"Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "Sleep"}
	rawCalls   = []string{"SYS_*", "Syscall*", "RawSyscall*", "AllThreadsSyscall*"}
	// The twin of the verbs moves bytes between registered addresses, as a device does.
	unsafeRooms = join(kernels, natives, places{"segments", ".", "verbs/simverbs", "cuda/simcuda"})
	rawRooms    = join(kernels, natives, places{"reactor", "segments"})
)

var words = []word{
	{"clock", "time", clockNames, join(kernels, programs), nil,
		"decisions use the loop's one reading of the clock", "take the instant from the loop, arm a reactor.Timer, or use a context"},
	{"thread", "runtime", []string{"LockOSThread", "UnlockOSThread"}, join(checks, places{"reactor"}), nil,
		"threads belong to the loop", "run the code on a reactor.Loop"},
	{"lock", "sync", []string{"Mutex", "RWMutex", "Cond", "Locker", "NewCond", "Map", "Pool"}, join(programs, places{".", "reactor"}), nil,
		"nothing below the facade waits for a lock", "let one lane own the state, or use an atomic"},
	{"wait-group", "sync", []string{"WaitGroup"}, join(programs, places{"."}), nil,
		"only rooms that start goroutines wait for them", "post a letter to the loop, or move the waiting to the root"},
	{"once", "sync", []string{"Once", "OnceFunc", "OnceValue", "OnceValues"}, join(programs, kernels, natives, places{".", "reactor"}), nil,
		"one-time set-up belongs to kernels, native libraries and the root", "do it in the constructor"},
	{"cgo", "C", nil, nil, natives,
		"a TCP user links no C", "call through the room's Calls interface; C stays in *_unsafe.go of a lib room"},
	{"unsafe", "unsafe", nil, programs, unsafeRooms,
		"pointers are handled in few known files", "move it to a *_unsafe.go file of a kernel, a lib room, segments or the root"},
	{"raw-call", "syscall", rawCalls, programs, rawRooms,
		"a system-call number is ABI", "use a named wrapper of x/sys/unix, or a *_unsafe.go file of a kernel"},
	{"raw-call", "golang.org/x/sys/unix", rawCalls, programs, rawRooms,
		"a system-call number is ABI", "use a named wrapper of x/sys/unix, or a *_unsafe.go file of a kernel"},
	{"cleanup", "runtime", []string{"SetFinalizer", "AddCleanup"}, join(checks, places{"segments", "verbs", "cuda", "."}), nil,
		"collector cleanups only report lost owners", "end the object by its owner; memory a NIC may write is never freed by the collector"},
	{"chance", "math/rand", nil, join(twins, checks), nil,
		"the code that decides has no chance of its own", "pass the choice in, or use crypto/rand in the root"},
	{"chance", "math/rand/v2", nil, join(twins, checks), nil,
		"the code that decides has no chance of its own", "pass the choice in, or use crypto/rand in the root"},
	{"exit", "os", []string{"Exit"}, programs, nil,
		"a library never ends its host", "return a typed error"},
	{"print", "fmt", []string{"Print", "Printf", "Println"}, programs, nil,
		"a library is silent", "return a typed error, or log through Config.Logger in the root"},
	{"log", "log", nil, programs, nil,
		"a library is silent by default", "use Config.Logger in the root"},
	{"log", "log/slog", nil, programs, nil,
		"a library is silent by default", "use Config.Logger in the root"},
	{"net", "net", nil, join(programs, places{".", "reactor/socket"}), nil,
		"a lane's sockets belong to its kernel", "submit an operation to the kernel; names are looked up by the root's cold loop"},
	{"context", "context", nil, join(programs, places{"."}), nil,
		"lanes know instants, not contexts", "let the root turn the context into an instant and a cancel letter"},
	{"system", "os", nil, join(programs, kernels, natives, places{".", "reactor", "segments"}), nil,
		"bottom rooms, lanes and twins know no operating system", "pass the value in from the root"},
	{"system", "syscall", nil, join(programs, kernels, natives, twins, places{".", "reactor", "segments", "lanes/...", "verbs", "cuda"}), nil,
		"budgets and codecs know no operating system", "pass the value in from the root"},
	{"process", "os/exec", nil, programs, nil,
		"a library starts no processes", "move it to cmd or test"},
	{"process", "os/signal", nil, programs, nil,
		"signals belong to the host program", "move it to cmd"},
	{"testing", "testing", nil, checks, nil,
		"test code is not shipped", "move it to a _test.go file, reactor/kerneltest or test/"},
}

// goRooms may start goroutines.
var goRooms = join(programs, places{"."})

func (w *word) says(name string) bool {
	return slices.ContainsFunc(w.names, func(n string) bool {
		prefix, open := strings.CutSuffix(n, "*")
		return n == name || open && strings.HasPrefix(name, prefix)
	})
}

func (w *word) allowed(f *file) bool {
	return w.rooms.contains(f.room) || w.guarded.contains(f.room) && strings.HasSuffix(f.name, "_unsafe.go")
}

func (w *word) report(f *file, at node, said string) finding {
	return f.at(at, w.rule, f.room+" may not say "+said+": "+w.why, w.remedy)
}

// checkWords looks for words that the file's room may not say.
func checkWords(f *file) []finding {
	if f.test {
		return nil
	}
	var found []finding
	for _, spec := range f.tree.Imports {
		for i := range words {
			if w := &words[i]; w.names == nil && w.path == importPath(spec) && !w.allowed(f) {
				found = append(found, w.report(f, spec, "import \""+w.path+"\""))
			}
		}
	}
	ast.Inspect(f.tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			found = append(found, checkSelector(f, n)...)
		case *ast.GoStmt:
			if !goRooms.contains(f.room) {
				found = append(found, f.at(n, "go", f.room+" may not start goroutines: one thread owns a connection from submit to completion", "post a letter to a loop; the root starts the lanes"))
			}
		}
		return true
	})
	return append(found, checkLinkname(f)...)
}

func checkSelector(f *file, s *ast.SelectorExpr) []finding {
	path, name := f.selected(s)
	if path == "" {
		return nil
	}
	var found []finding
	for i := range words {
		if w := &words[i]; w.path == path && w.says(name) && !w.allowed(f) {
			found = append(found, w.report(f, s, path+"."+name))
		}
	}
	return found
}

func checkLinkname(f *file) []finding {
	w := word{rule: "linkname", guarded: unsafeRooms,
		why: "it breaks with the next release of Go", remedy: "use the public function, or a *_unsafe.go file of a kernel"}
	var found []finding
	for _, group := range f.tree.Comments {
		for _, c := range group.List {
			if strings.HasPrefix(c.Text, "//go:linkname") && !w.allowed(f) {
				found = append(found, w.report(f, c, "go:linkname"))
			}
		}
	}
	return found
}
