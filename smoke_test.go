package orbitte_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/orbitte/orbitte"
)

func TestSmoke(t *testing.T) {
	for _, k := range []orbitte.KernelChoice{orbitte.Epoll, orbitte.IOUring} {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		src, err := orbitte.Open(orbitte.Config{Kernel: k})
		if err != nil {
			t.Fatal(err)
		}
		dst, err := orbitte.Open(orbitte.Config{Kernel: k})
		if err != nil {
			t.Fatal(err)
		}
		a, _ := orbitte.Allocate(3 << 20)
		b, _ := orbitte.Allocate(3 << 20)
		for i := range a.Bytes() {
			a.Bytes()[i] = byte(i * 7)
		}
		ra, err := src.Register(a, 0, 3<<20, orbitte.ReadWrite)
		if err != nil {
			t.Fatal(err)
		}
		rb, _ := dst.Register(b, 0, 3<<20, orbitte.LocalOnly)
		seg, err := dst.OpenSegment(ctx, src.Endpoint(), src.Epoch())
		if err != nil {
			t.Fatal(err)
		}
		rep, err := dst.SubmitAndWait(ctx, []orbitte.Request{{Operation: orbitte.Read, Segment: seg, Local: b.Address(), Remote: a.Address(), Length: 3 << 20}})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v", rep)
		if !bytes.Equal(a.Bytes(), b.Bytes()) {
			t.Fatal("differs")
		}
		clear(b.Bytes()[:1<<20])
		rep, err = dst.SubmitAndNotify(ctx, []orbitte.Request{{Operation: orbitte.Write, Segment: seg, Local: b.Address(), Remote: a.Address(), Length: 3 << 20}}, orbitte.Notification{"x", "y"})
		if err != nil || !bytes.Equal(a.Bytes(), b.Bytes()) {
			t.Fatal(err)
		}
		t.Logf("%+v %v", rep, src.ReceiveNotifications())
		if err := dst.CloseSegment(ctx, seg); err != nil {
			t.Fatal(err)
		}
		if err := dst.Unregister(ctx, rb); err != nil {
			t.Fatal(err)
		}
		if err := src.Unregister(ctx, ra); err != nil {
			t.Fatal(err)
		}
		if err := dst.Close(ctx); err != nil {
			t.Fatal(err)
		}
		if err := src.Close(ctx); err != nil {
			t.Fatal(err)
		}
		a.Close()
		b.Close()
		for _, g := range append(src.Stats().Gauges, dst.Stats().Gauges...) {
			if g.Used != 0 {
				t.Errorf("%+v", g)
			}
		}
	}
}
