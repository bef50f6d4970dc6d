package baselines

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"
)

// BuildPeers builds the nested module with gnet and grpc-go and returns the program's path. It needs the go tool, the
// checkout, and the modules in the cache or the proxy in reach; without them ErrAbsent says which was missing.
func BuildPeers(ctx context.Context, into string) (string, error) {
	if _, err := exec.LookPath("go"); err != nil {
		return "", Absent("gnet and grpc-go need the go tool to be built")
	}
	folder, err := peersFolder(ctx)
	if err != nil {
		return "", err
	}
	path := filepath.Join(into, "orbitbench-peers")
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "go", "build", "-o", path, ".")
	c.Dir, c.Env = folder, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "GOWORK=off")
	if text, err := c.CombinedOutput(); err != nil {
		return "", Absent("perf/peers could not be built: %s", lastLine(string(text)))
	}
	return path, nil
}

// peersFolder finds the nested module from any working folder within the checkout, and otherwise where this program was
// built from.
func peersFolder(ctx context.Context) (string, error) {
	own := ""
	if out, err := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", "github.com/orbitte/orbitte/perf/baselines").Output(); err == nil {
		own = lastLine(string(out))
	} else if _, file, _, ok := runtime.Caller(0); ok {
		own = filepath.Dir(file)
	}
	folder := filepath.Join(filepath.Dir(own), "peers")
	if _, err := os.Stat(filepath.Join(folder, "go.mod")); err != nil || own == "" {
		return "", Absent("the sources of perf/peers are not here: run in the checkout of OrbitTE")
	}
	return folder, nil
}

// PeersModules are the modules that results name, by their usual names.
var PeersModules = map[string]string{"gnet": "github.com/panjf2000/gnet/v2", "grpc-go": "google.golang.org/grpc"}

// PeersVersions asks the program which modules it was built with.
func PeersVersions(path string) map[string]string {
	found := map[string]string{}
	if out, err := exec.Command(path, "version").Output(); err == nil {
		_ = json.Unmarshal(out, &found) // nothing found is shown as such
	}
	return found
}

// GRPCAsk is a question to the client of grpc-go, and GRPCAnswer what it took.
type GRPCAsk struct {
	What   byte   `json:"what"`
	Stream bool   `json:"stream"` // one call that streams, not one call for each block
	Count  uint32 `json:"count"`
	Size   uint64 `json:"size"`
}

// GRPCAnswer is the time of all, and of each round trip of a PingPong.
type GRPCAnswer struct {
	Nanos int64   `json:"nanos"`
	Times []int64 `json:"times,omitempty"`
}
