package baselines

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// BuildPeers builds the nested module with gnet and grpc-go and returns the program's path. It needs the go tool, the
// checkout, and the modules in the cache or the proxy in reach; without them ErrAbsent says which was missing.
func BuildPeers(ctx context.Context, into string) (string, error) {
	if _, err := exec.LookPath("go"); err != nil {
		return "", Absent("gnet and grpc-go need the go tool to be built")
	}
	out, err := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", "github.com/orbitte/orbitte/perf/baselines").Output()
	if err != nil {
		return "", Absent("the sources of perf/peers are not here: run in the checkout of OrbitTE")
	}
	folder := filepath.Join(filepath.Dir(lastLine(string(out))), "peers")
	path := filepath.Join(into, "orbitbench-peers")
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "go", "build", "-o", path, ".")
	c.Dir, c.Env = folder, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if text, err := c.CombinedOutput(); err != nil {
		return "", Absent("perf/peers could not be built: %s", lastLine(string(text)))
	}
	return path, nil
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
