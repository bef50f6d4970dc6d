package main

import (
	"os"
	"testing"
	"time"

	"github.com/orbitte/orbitte/perf/baselines"
)

// TestMain lets the test's own program be each of the peers.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "gnet" || os.Args[1] == "grpc" || os.Args[1] == "grpc-client") {
		main()
		return
	}
	os.Exit(m.Run())
}

func start(t *testing.T, args ...string) *baselines.Program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := baselines.StartProgram(args[0], self, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func TestGnetStaysInStepWithItsClient(t *testing.T) {
	s, err := baselines.Connect(start(t, "gnet").Hello())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	block := make([]byte, baselines.WorkingBytes)
	for range 2 {
		for _, size := range []uint64{64, 4096, 1 << 20} {
			if _, err := s.PullAsked(baselines.Command{What: baselines.Pull, Count: 9, Size: size}, size, 3, block); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Bulk(baselines.Command{What: baselines.Push, Count: 9, Size: size}, block); err != nil {
				t.Fatal(err)
			}
			times := 0
			if err := s.PingPong(baselines.Command{What: baselines.PingPong, Count: 9, Size: size}, block, func(time.Duration) { times++ }); err != nil || times != 9 {
				t.Fatalf("%d round trips, %v", times, err)
			}
		}
	}
}

func TestGRPCAnswersEachKindOfCall(t *testing.T) {
	client := start(t, "grpc-client", start(t, "grpc").Hello())
	for _, size := range []uint64{64, 1 << 20} {
		for _, what := range []byte{baselines.Pull, baselines.Push} {
			for _, stream := range []bool{false, true} {
				var a baselines.GRPCAnswer
				if err := client.Ask(baselines.GRPCAsk{What: what, Stream: stream, Count: 5, Size: size}, &a); err != nil || a.Nanos <= 0 {
					t.Errorf("order %d, streaming %v, %d bytes: %+v, %v", what, stream, size, a, err)
				}
			}
		}
		var a baselines.GRPCAnswer
		if err := client.Ask(baselines.GRPCAsk{What: baselines.PingPong, Count: 5, Size: size}, &a); err != nil || len(a.Times) != 5 {
			t.Errorf("ping-pong of %d bytes: %+v, %v", size, a, err)
		}
	}
	if err := client.Ask(baselines.GRPCAsk{What: 9, Count: 1}, nil); err == nil {
		t.Error("an unknown order was taken")
	}
}
