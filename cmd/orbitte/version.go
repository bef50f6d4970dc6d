package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/orbitte/orbitte/netproto"
)

const versionHelp = `usage: orbitte version [--json]

Shows the version of the module this tool was built from (for one built in a checkout a version made of
the commit's time and hash, with +dirty if something was changed, or "(devel)" if git was not asked), the
version of Go, the platform, and the version of the wire protocol, which must be the same on both sides.

  --json               print it as one line of JSON

exit status: 0 shown, 2 wrong command line
`

// versions is what version prints.
type versions struct {
	Module   string `json:"module"`
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"` // of the checkout, when it was stamped
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Protocol int    `json:"protocol"`
}

func versionsNow() versions {
	v := versions{Version: "(unknown)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Protocol: netproto.Version}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.Module = info.Main.Path
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Revision = s.Value
		}
	}
	return v
}

func version(_ context.Context, c *console, args []string) error {
	f := bareFlags("version")
	operands, err := f.read(c, args)
	if err != nil {
		return err
	}
	if len(operands) > 0 {
		return usage("version takes no operands")
	}
	v := versionsNow()
	if f.json {
		c.result = v
		return nil
	}
	revision := ""
	if v.Revision != "" {
		revision = ", commit " + v.Revision
	}
	_, err = fmt.Fprintf(c.out, "orbitte %s (%s)%s, %s, %s, protocol %d\n", v.Version, v.Module, revision, v.Go, v.Platform, v.Protocol)
	return err
}
