package main

import (
	"fmt"
	"os"
)

func main() {
	err := fmt.Errorf("usage: peers gnet | grpc | grpc-client ADDRESS")
	if len(os.Args) >= 2 {
		switch os.Args[1] {
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
