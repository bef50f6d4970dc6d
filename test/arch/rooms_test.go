package arch

import (
	"slices"
	"strings"
)

const module = "github.com/orbitte/orbitte"

// A room is one folder of the plan. A path that ends in "/*" stands for each folder one level below.
type room struct {
	path    string
	purpose string
	imports []string // rooms it may import in code that is shipped, in the notation of places
}

// places is a set of rooms: exact paths, "x/*" for each folder directly below x, "x/..." for x and
// everything below it.
type places []string

func (p places) contains(path string) bool {
	for _, place := range p {
		if matches(place, path) {
			return true
		}
	}
	return false
}

func matches(place, path string) bool {
	if below, ok := strings.CutSuffix(place, "/..."); ok {
		return path == below || strings.HasPrefix(path, below+"/")
	}
	if below, ok := strings.CutSuffix(place, "/*"); ok {
		rest, ok := strings.CutPrefix(path, below+"/")
		return ok && rest != "" && !strings.Contains(rest, "/")
	}
	return place == path
}

func join(lists ...places) places {
	var all places
	for _, list := range lists {
		all = append(all, list...)
	}
	return all
}

var (
	kernels  = places{"reactor/uring", "reactor/epoll", "reactor/socket"}
	twins    = places{"reactor/simkernel", "verbs/simverbs", "cuda/simcuda"}
	natives  = places{"verbs/libibverbs", "cuda/libcuda"}
	checks   = places{"perf/...", "test/...", "reactor/kerneltest", "verbs/verbstest", "cuda/cudatest"}
	programs = join(checks, places{"cmd/orbitte", "examples/*"})

	// shared is what every transport stands on; the bottom rooms below it import nothing of ours.
	shared = places{"budgets", "netproto", "reactor", "segments", "lanes"}
	house  = join(shared, kernels, twins, natives, places{".", "lanes/*", "verbs", "cuda", "reactor/kerneltest", "verbs/verbstest", "cuda/cudatest"})

	// testImports may be imported by any _test.go file, beside what its room may import: twins, and the rooms whose words
	// it takes to set one up.
	testImports = join(kernels, twins, natives, places{"reactor", "cuda", "reactor/kerneltest", "verbs/verbstest", "cuda/cudatest", "test/*"})
)

var rooms = []room{
	{"budgets", "what may be promised: named limits and receipts", nil},
	{"netproto", "what the bytes mean: pure codecs, incremental, bounded", nil},
	{"verbs", "the RDMA objects we own, and one flat interface of raw calls", nil},
	{"verbs/libibverbs", "the only code that knows the C ABI of RDMA", places{"verbs"}},
	{"verbs/simverbs", "a seeded fabric that refuses what hardware refuses", places{"verbs"}},
	{"verbs/verbstest", "one conformance suite for the library and its twin", places{"verbs"}},
	{"cuda", "the CUDA objects we own, and one flat interface of raw calls", nil},
	{"cuda/libcuda", "the only code that knows the driver's ABI", places{"cuda"}},
	{"cuda/simcuda", "a seeded device that refuses what hardware refuses", places{"cuda"}},
	{"cuda/cudatest", "one conformance suite for the driver and its twin", places{"cuda"}},
	{"reactor", "when things happen: one loop per locked thread", nil},
	{"reactor/socket", "what every real kernel does with a socket: options, non-blocking calls", places{"reactor"}},
	{"reactor/uring", "io_uring behind the loop", places{"reactor", "reactor/socket"}},
	{"reactor/epoll", "epoll behind the loop", places{"reactor", "reactor/socket"}},
	{"reactor/simkernel", "a virtual clock and a seeded network behind the loop", places{"reactor"}},
	{"reactor/kerneltest", "one conformance suite that runs on every kernel", places{"reactor"}},
	{"segments", "who may touch which bytes", places{"budgets", "netproto"}},
	{"lanes", "the words every transport agrees on", places{"budgets", "netproto", "reactor", "segments"}},
	{"lanes/control", "listener, channel per peer, describe, grant, notify and delegate machines, inbox", shared},
	{"lanes/staging", "bounded pool of pinned chunks, device ↔ host copy machine", join(shared, places{"cuda"})},
	{"lanes/tcp", "the TCP transport", join(shared, places{"lanes/control", "lanes/staging"})},
	{"lanes/rdma", "the RDMA transport", join(shared, places{"lanes/control", "lanes/staging", "verbs", "cuda"})},
	{"lanes/hptcp", "the fast TCP data plane", join(shared, places{"lanes/control", "lanes/staging"})},
	{"lanes/delegate", "a requester directs the staging of a source's device memory", join(shared, places{"lanes/control", "lanes/staging", "lanes/tcp", "lanes/rdma"})},
	{"lanes/shm", "shared memory between processes of one host", join(shared, places{"lanes/control"})},
	{"lanes/ipc", "CUDA IPC between processes of one host", join(shared, places{"lanes/control", "cuda"})},
	{"lanes/local", "a request of an engine to itself: a copy under the same checks, no socket", join(shared, places{"lanes/staging"})},
	{".", "what a user sees; the only stable API", join(shared, places{"lanes/*", "verbs", "cuda", "reactor/uring", "reactor/epoll"})},

	{"cmd/orbitte", "the operator's tool", house},
	{"examples/*", "one short program per job", join(house, places{"test/twins"})},
	{"perf", "the harness and its results, peers included", join(house, places{"perf/*", "test/*"})},
	{"perf/*", "a part of the harness", join(house, places{"perf/*", "test/*"})},
	{"test/arch", "this plan as a test", nil},
	{"test/spec", "every requirement has a test that names it", nil},
	{"test/summary", "runs the phases of make test and counts", nil},
	{"test/demo", "the script behind make demo", house},
	{"test/abi", "sizes and offsets against the C headers", join(house, places{"test/*"})},
	{"test/twins", "the twins of RDMA and CUDA on the real clock, for programs and tests", places{"verbs/simverbs", "cuda/simcuda"}},
	{"test/world", "many engines on twins from one seed", join(house, places{"test/*"})},
	{"test/world/fleet", "what a request costs against peers, regions, batch size and engines", join(house, places{"test/*"})},
	{"test/world/sim", "runs seeds, and scripts, and counts", places{"test/faults", "test/world", "test/world/shrink"}},
	{"test/world/planted", "mistakes that the world must find, and the programs built with them", nil},
	{"test/world/shrink", "a failing script made as short as it can be", places{"test/faults", "test/world"}},
	{"test/faults", "failure plans as text", join(house, places{"test/*"})},
	{"test/script", "golden scripts", join(house, places{"test/*"})},
	{"test/device", "gates on hardware", join(house, places{"test/*"})},
	{"test/vm", "the soft-RoCE gate", join(house, places{"test/*"})},
	{"test/netns", "checks in a network namespace", join(house, places{"test/*"})},
	{"test/field", "field cases that need several processes", join(house, places{"test/*"})},
	{"test/soak", "engines in real processes for a long time, under seeded faults", join(house, places{"test/*"})},
	{"test/graves", "who touches an object after it has told of its end", nil},
	{"test/leak", "nothing is left after a test: goroutines, descriptors, mappings, charges", join(house, places{"test/*"})},
	{"test/consumer", "a module that uses only the public API", places{"."}},
}

// topLevel lists every entry of the repository's first level. Go files of the root package and
// what .gitignore names are fine beside it.
var topLevel = places{
	".ci", ".git", ".gitattributes", ".gitignore", ".golangci.yml", ".golangci.yaml", "staticcheck.conf",
	"LICENSE", "Makefile", "README.md", "go.mod", "go.sum",
	"budgets", "cmd", "cuda", "examples", "lanes", "netproto", "perf", "reactor", "segments", "test", "verbs",
}

// dependencies lists the modules of others and who may use them. Code under test/ is not shipped.
var dependencies = []struct {
	path  string
	rooms places
	why   string
}{
	{"golang.org/x/sys", join(kernels, natives, checks, places{".", "reactor", "segments", "cmd/orbitte"}), "system calls belong to kernels, memory and programs"},
	{"github.com/rs/zerolog", join(programs, places{"."}), "logs leave the lane through a ring; only the root writes them"},
	{"github.com/panjf2000/gnet/v2/pkg/socket", join(kernels, checks), "socket options and addresses"},
	{"github.com/panjf2000/gnet/v2", checks, "a baseline to measure against"},
	{"google.golang.org/grpc", places{"perf/peers"}, "what a Go user would otherwise take; in a module of its own"},
	{"github.com/HdrHistogram/hdrhistogram-go", checks, "latency distributions"},
	{"github.com/prometheus/client_golang", programs, "metrics are a front end"},
	{"github.com/vishvananda/netlink", join(checks, places{".", "verbs/libibverbs", "cmd/orbitte"}), "RDMA links"},
	{"github.com/NVIDIA/go-nvml", places{"cuda/libcuda"}, "needs cgo, stays behind the CUDA packages"},
	{"pgregory.net/rapid", checks, "property tests"},
	{"go.uber.org/goleak", checks, "leak checks"},
}

func findRoom(path string) (room, bool) {
	for _, r := range rooms {
		if matches(r.path, path) {
			return r, true
		}
	}
	return room{}, false
}

// planned says whether a folder is a room, leads to one, or holds a room's test data.
func planned(folder string) bool {
	parts := strings.Split(folder, "/")
	if i := slices.Index(parts, "testdata"); i > 0 {
		return planned(strings.Join(parts[:i], "/"))
	}
	if folder == "." || folder == ".ci" {
		return true
	}
	if _, ok := findRoom(folder); ok {
		return true
	}
	for _, r := range rooms {
		if strings.HasPrefix(r.path, folder+"/") {
			return true
		}
	}
	return false
}

// checkFolder reports a folder that has no place in the plan.
func checkFolder(folder string) []finding {
	if planned(folder) {
		return nil
	}
	return []finding{{folder, 0, "plan", "this folder is in no plan", "put the code into the room whose words it speaks, or add the room with its purpose and imports to the table in test/arch/rooms_test.go"}}
}

// checkTop reports an entry of the first level that is not on the list.
func checkTop(name string, ignored places) []finding {
	if topLevel.contains(name) || ignored.contains(name) || strings.HasSuffix(name, ".go") {
		return nil
	}
	return []finding{{name, 0, "top", "the first level holds only the agreed entries", "move it below one of the rooms, cmd, test or perf"}}
}

// checkImports holds a file's imports against the plan.
func checkImports(f *file) []finding {
	var found []finding
	home, ok := findRoom(f.room)
	if !ok {
		return nil // reported by checkFolder
	}
	for _, spec := range f.tree.Imports {
		path := importPath(spec)
		if spec.Name != nil && spec.Name.Name == "." {
			found = append(found, f.at(spec, "dot-import", "dot import of "+path, "name the package, so that a word shows where it comes from"))
		}
		switch {
		case path == module || strings.HasPrefix(path, module+"/"):
			target := strings.TrimPrefix(strings.TrimPrefix(path, module), "/")
			if target == "" {
				target = "."
			}
			if target == f.room || places(home.imports).contains(target) || f.test && testImports.contains(target) {
				continue
			}
			found = append(found, f.at(spec, "import", f.room+" ("+home.purpose+") may not import "+target, "move the line to the room that may (DESIGN §3), or pass the value in from above"))
		case strings.Contains(strings.SplitN(path, "/", 2)[0], "."):
			found = append(found, checkDependency(f, spec.Path, path)...)
		}
	}
	return found
}

func checkDependency(f *file, at node, path string) []finding {
	for _, d := range dependencies {
		if path != d.path && !strings.HasPrefix(path, d.path+"/") {
			continue
		}
		if f.test || d.rooms.contains(f.room) {
			return nil
		}
		return []finding{f.at(at, "dependency", f.room+" may not import "+path+": "+d.why, "use it from "+strings.Join(d.rooms, ", "))}
	}
	return []finding{f.at(at, "dependency", path+" is no agreed dependency", "do without it, or add it to the table in test/arch/rooms_test.go with its rooms and the reason")}
}
