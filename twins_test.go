package orbitte_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/test/twins"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// Engines of every kind of wait move bytes over a fabric, and between GPUs, that live by the real clock.
func TestEnginesRunOnTwinsOnTheRealClock(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, progress := range []orbitte.RDMAProgress{orbitte.RDMAPolling, orbitte.RDMAEventDriven} {
		fabric := twins.RDMA(1, simverbs.Options{})
		driver := twins.CUDA(1, simcuda.Options{})
		open := func(host string) *orbitte.Engine {
			e, err := orbitte.Open(orbitte.Config{
				CUDA: driver, Verbs: fabric.Host(host).Process(host), RDMA: &orbitte.RDMAConfig{Progress: progress},
			})
			if err != nil {
				t.Fatal(err)
			}
			return e
		}
		source, requester := open("source"), open("requester")
		device, err := orbitte.AllocateDevice(driver, 0, 4096)
		if err != nil {
			t.Fatal(err)
		}
		host, err := orbitte.Allocate(4096)
		if err != nil {
			t.Fatal(err)
		}
		var handles []*orbitte.Registration
		for _, r := range []struct {
			e *orbitte.Engine
			m *orbitte.Memory
		}{{source, device}, {requester, host}} {
			registration, err := r.e.Register(r.m, 0, 4096, orbitte.ReadWrite)
			if err != nil {
				t.Fatal(err)
			}
			handles = append(handles, registration)
		}
		segment, err := requester.OpenSegment(ctx, source.Endpoint(), source.Epoch())
		if err != nil {
			t.Fatal(err)
		}
		want := bytes.Repeat([]byte{7, 9}, 2048)
		copy(host.Bytes(), want)
		for _, transport := range []orbitte.Transport{orbitte.TransportTCP, orbitte.TransportRDMA} {
			for _, op := range []orbitte.Operation{orbitte.Write, orbitte.Read} {
				r := orbitte.Request{Operation: op, Transport: transport, Segment: segment, Local: host.Address(), Remote: segment.Regions()[0].Address, Length: 4096}
				if _, err := requester.SubmitAndWait(ctx, []orbitte.Request{r}); err != nil {
					t.Fatalf("%v %v: %v", transport, op, err)
				}
				if op == orbitte.Write {
					clear(host.Bytes())
				}
			}
			if !bytes.Equal(host.Bytes(), want) {
				t.Errorf("%v: other bytes came back", transport)
			}
		}
		for i, e := range []*orbitte.Engine{source, requester} {
			if err := e.Unregister(ctx, handles[i]); err != nil {
				t.Error(err)
			}
		}
		for _, e := range []*orbitte.Engine{requester, source} {
			if err := e.Close(ctx); err != nil {
				t.Error(err)
			}
		}
		device.Close()
		host.Close()
		if left := fabric.Live(); len(left) > 0 {
			t.Errorf("native objects are left: %+v", left)
		}
		driver.Kill()
	}
}
