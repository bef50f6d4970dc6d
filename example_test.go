package orbitte_test

import (
	"context"
	"fmt"
	"time"

	"github.com/orbitte/orbitte"
)

func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()

	// The source publishes memory. Endpoint and epoch are what its owner hands to peers.
	source, err := orbitte.Open(orbitte.Config{})
	check(err)
	defer source.Close(ctx)
	published, err := orbitte.Allocate(1 << 20)
	check(err)
	defer published.Close()
	copy(published.Bytes(), "hello from the source")
	region, err := source.Register(published, 0, 1<<20, orbitte.RemoteRead)
	check(err)
	defer source.Unregister(ctx, region)

	// The requester, usually in another process, reads it into memory of its own.
	requester, err := orbitte.Open(orbitte.Config{})
	check(err)
	defer requester.Close(ctx)
	local, err := orbitte.Allocate(1 << 20)
	check(err)
	defer local.Close()
	window, err := requester.Register(local, 0, 1<<20, orbitte.LocalOnly)
	check(err)
	defer requester.Unregister(ctx, window)
	segment, err := requester.OpenSegment(ctx, source.Endpoint(), source.Epoch())
	check(err)
	report, err := requester.SubmitAndWait(ctx, []orbitte.Request{{
		Operation: orbitte.Read, Segment: segment, Local: local.Address(), Remote: region.Address(), Length: 1 << 20,
	}})
	check(err)
	fmt.Printf("%d bytes over %s: %s\n", report.Bytes, report.Path, local.Bytes()[:21])
	// Output: 1048576 bytes over tcp: hello from the source
}

// check stands for the caller's own handling of errors.
func check(err error) {
	if err != nil {
		panic(err)
	}
}
