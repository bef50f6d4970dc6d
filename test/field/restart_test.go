package field

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/orbitte/orbitte"
)

const (
	pageBytes    = 4096
	restartPages = 8 // of a batch; the first half is read, the second written
)

// restarts is one requester that outlives a row of sources on one port.
type restarts struct {
	t        *testing.T
	kernel   orbitte.KernelChoice
	endpoint string
	engine   *orbitte.Engine
	local    *orbitte.Memory
	lives    uint64
	refused  int // with the old epoch
	lost     int // because the source died
	whole    int // batches that succeeded
}

// proves G-1; field case F-5
func TestARestartedSourceInheritsNothing(t *testing.T) {
	t.Parallel()
	onKernels(t, func(t *testing.T, kernel orbitte.KernelChoice) {
		t.Parallel()
		seed := rand.Uint64()
		t.Logf("SEED=%d (delays before the kills; replace rand.Uint64 to replay)", seed)
		dice := rand.New(rand.NewPCG(seed, 0))
		r := &restarts{t: t, kernel: kernel, endpoint: fmt.Sprintf("127.5.0.%d:7005", kernel+1)}
		r.engine = openEngine(t, orbitte.Config{Kernel: kernel, RequestTimeout: 10 * time.Second})
		r.local = buffer(t, r.engine, restartPages*pageBytes)
		n := scaled(120)
		spares := make(chan *child, 1)
		go func() { // the next process starts while this one serves
			defer close(spares)
			for i := range n {
				spares <- spawn(t, fmt.Sprintf("source %d", i))
			}
		}()
		var old *orbitte.Segment
		for c := range spares {
			old = r.live(c, old, time.Duration(dice.IntN(3000))*time.Microsecond)
			if t.Failed() {
				break
			}
		}
		for range spares {
		}
		if old != nil {
			r.close(old)
		}
		t.Logf("%d restarts: %d batches succeeded, %d were cut off, %d requests were refused for the old epoch", n, r.whole, r.lost, r.refused)
		if r.refused < n-1 || r.lost < n/2 || r.whole == 0 {
			t.Errorf("the case did not happen often enough")
		}
	})
}

// live is one life of the source: opened on the port of the one before, refused to its segment, used, killed in the
// middle of a batch.
func (r *restarts) live(c *child, old *orbitte.Segment, delay time.Duration) *orbitte.Segment {
	r.t.Helper()
	src := readySource(r.t, c, settings{Kernel: r.kernel, Bind: r.endpoint}, restartPages*pageBytes)
	if old != nil {
		r.refuse(src, old)
		r.close(old)
	}
	segment := openSegment(r.t, r.engine, r.endpoint, src.Epoch)
	ended, first := make(chan error, 1), make(chan struct{}, 1)
	go func() { ended <- r.work(segment, src.Address, first) }()
	if r.lives%2 == 0 { // every other life has time for a whole batch, however busy the machine is
		<-first
	}
	r.lives++
	time.Sleep(delay)
	src.kill()
	if err := <-ended; err != nil {
		r.t.Errorf("batches against the killed source: %v", err)
	}
	return segment
}

// refuse asserts that the new process takes no request of the old segment, and holds its own bytes only.
func (r *restarts) refuse(src *source, old *orbitte.Segment) {
	r.t.Helper()
	for _, operation := range []orbitte.Operation{orbitte.Read, orbitte.Write} {
		stamp(r.local.Bytes(), old.Epoch())
		_, err := submit(r.engine, 10*time.Second, r.request(old, operation, 0, old.Regions()[0].Address))
		if !errors.Is(err, orbitte.ErrStaleEpoch) {
			r.t.Errorf("%v with the epoch of the process before: %v", operation, err)
		}
		if !stamped(r.local.Bytes(), old.Epoch()) {
			r.t.Errorf("a refused %v changed the local range", operation)
		}
		r.refused++
	}
	for page := range restartPages {
		segment := openSegment(r.t, r.engine, r.endpoint, src.Epoch)
		if _, err := submit(r.engine, 10*time.Second, r.request(segment, orbitte.Read, page, src.Address)); err != nil {
			r.t.Error(err)
		}
		if !stamped(r.page(page), src.Epoch) {
			r.t.Errorf("page %d of the new process holds foreign bytes", page)
		}
		r.close(segment)
	}
}

func (r *restarts) page(n int) []byte { return r.local.Bytes()[n*pageBytes : (n+1)*pageBytes] }

func (r *restarts) request(s *orbitte.Segment, operation orbitte.Operation, page int, remote uint64) orbitte.Request {
	at := uint64(page * pageBytes)
	return orbitte.Request{Operation: operation, Segment: s, Local: r.local.Address() + at, Remote: remote + at, Length: pageBytes}
}

// work submits batches until the source is gone. A page that was read is the source's own, whatever came later.
func (r *restarts) work(s *orbitte.Segment, remote uint64, first chan<- struct{}) error {
	defer close(first)
	var requests []orbitte.Request
	for page := range restartPages {
		operation := orbitte.Read
		if page >= restartPages/2 {
			operation = orbitte.Write
			stamp(r.page(page), s.Epoch())
		}
		requests = append(requests, r.request(s, operation, page, remote))
	}
	for {
		clear(r.local.Bytes()[:restartPages/2*pageBytes])
		var report orbitte.Report
		err := within(10*time.Second, func(ctx context.Context) (err error) {
			report, err = r.engine.SubmitAndWait(ctx, requests)
			return err
		})
		for page := range min(report.Completed, restartPages/2) {
			if !stamped(r.page(page), s.Epoch()) {
				return fmt.Errorf("page %d was read with success and holds foreign bytes", page)
			}
		}
		switch {
		case err == nil:
			r.whole++
			select {
			case first <- struct{}{}:
			default:
			}
		case errors.Is(err, orbitte.ErrDisconnected), errors.Is(err, orbitte.ErrUnreachable):
			r.lost++
			return nil
		default:
			return err
		}
	}
}

func (r *restarts) close(s *orbitte.Segment) {
	r.t.Helper()
	err := within(10*time.Second, func(ctx context.Context) error { return r.engine.CloseSegment(ctx, s) })
	if err != nil {
		r.t.Error(err)
	}
}
