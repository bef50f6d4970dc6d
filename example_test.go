package orbitte_test

import (
	"context"
	"fmt"

	"github.com/orbitte/orbitte"
)

func Example_transfer() {
	ctx := context.Background()
	source, _ := orbitte.Open(orbitte.Config{}) // usually in another process, or on another host
	defer source.Close(ctx)
	weights, _ := orbitte.Adopt([]byte("weights of layer 7"))
	defer weights.Close()
	exported, _ := source.Register(weights, 0, 18, orbitte.RemoteRead)
	defer source.Unregister(ctx, exported)

	replica, _ := orbitte.Open(orbitte.Config{})
	defer replica.Close(ctx)
	memory, _ := orbitte.Allocate(18)
	defer memory.Close()
	own, _ := replica.Register(memory, 0, 18, orbitte.LocalOnly)
	defer replica.Unregister(ctx, own)

	peer, _ := replica.OpenSegment(ctx, source.Endpoint(), source.Epoch())
	defer replica.CloseSegment(ctx, peer)
	report, err := replica.SubmitAndWait(ctx, []orbitte.Request{{
		Operation: orbitte.Read, Segment: peer, Length: 18,
		Local: memory.Address(), Remote: peer.Regions()[0].Address,
	}})
	fmt.Println(report.Bytes, err, string(memory.Bytes()))
	// Output: 18 <nil> weights of layer 7
}
