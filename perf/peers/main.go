package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
)

func main() {
	debug.SetGCPercent(400) // as in the source process of the engine
	err := fmt.Errorf("usage: peers gnet | grpc | version | grpc-client ADDRESS")
	if len(os.Args) >= 2 {
		switch os.Args[1] {
		case "version":
			err = versions()
		case "gnet":
			err = serveGnet()
		case "grpc":
			err = serveGRPC()
		case "grpc-client":
			if len(os.Args) == 3 {
				err = clientGRPC(os.Args[2])
			}
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// versions prints the modules that were built in, by path.
func versions() error {
	found := map[string]string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			found[m.Path] = m.Version
		}
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}
