package orbitte

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// field cases F-48, F-74: 64 goroutines at once; the race detector finds what the assertions do not
func TestSixtyFourGoroutinesUseAndCloseOneEngine(t *testing.T) {
	eachKernel(t, func(t *testing.T, c Config) {
		c.Lanes = 2
		c.Limits = Limits{Submissions: 256, SubmittedBytes: 256 << 20, SourceHandlers: 64, SourceQueue: 64}
		p := newPair(t, c, c, 256<<10)
		other := newEngine(t, c)
		registered(t, other, p.remote, ReadWrite)
		var wait sync.WaitGroup
		var ran atomic.Int64
		stop := make(chan struct{})
		seed := uint64(time.Now().UnixNano())
		t.Logf("SEED=%d", seed)
		jobs := []func(*rand.Rand) error{
			func(r *rand.Rand) error { return registerSome(t, p, r) },
			func(r *rand.Rand) error {
				at := r.IntN(200) << 10
				return second(p.requester.SubmitAndWait(soon(t), []Request{p.request(Read, at, 4096), p.request(Write, at, 100)}))
			},
			func(*rand.Rand) error {
				return second(p.requester.SubmitAndNotify(soon(t), []Request{p.request(Read, 0, 64)}, Notification{"a", "b"}))
			},
			func(*rand.Rand) error {
				p.source.ReceiveNotifications()
				return second(p.requester.SendNotification(soon(t), p.segment, Notification{"c", "d"}))
			},
			func(r *rand.Rand) error { return batchSome(t, p, r) },
			func(*rand.Rand) error {
				s, err := p.requester.OpenSegment(soon(t), other.Endpoint(), other.Epoch())
				if err == nil {
					err = p.requester.CloseSegment(soon(t), s)
				}
				return err
			},
			func(*rand.Rand) error { return p.segment.Refresh(soon(t)) },
			func(*rand.Rand) error {
				p.requester.Stats()
				p.requester.RetainedResources()
				time.Sleep(time.Millisecond) // a loop without an end of its own would take a CPU from the others
				return nil
			},
		}
		for i := range 64 {
			wait.Go(func() {
				random := rand.New(rand.NewPCG(seed, uint64(i)))
				for {
					select {
					case <-stop:
						return
					default:
					}
					err := jobs[i%len(jobs)](random)
					if errors.Is(err, ErrClosed) {
						return // the engine is closing
					}
					if err != nil && !errors.Is(err, ErrExhausted) { // a full inbox is a fair answer
						t.Error(err)
						return
					}
					ran.Add(1)
				}
			})
		}
		time.Sleep(300 * time.Millisecond)
		closeEngine(t, p.requester) // while all of them are at it
		close(stop)
		wait.Wait()
		if ran.Load() < 64 {
			t.Fatalf("only %d calls ran", ran.Load())
		}
	})
}

func registerSome(t *testing.T, p *pair, r *rand.Rand) error {
	handle, err := p.requester.Register(p.local, uint64(r.IntN(1000)), uint64(1+r.IntN(1000)), LocalOnly)
	if err == nil {
		err = p.requester.Unregister(soon(t), handle)
	}
	return err
}

func batchSome(t *testing.T, p *pair, r *rand.Rand) error {
	b, err := p.requester.Submit(soon(t), []Request{p.request(Read, 0, 1<<10), p.request(Read, 4096, 32<<10)}, NotifyAfter(Notification{"e", "f"}))
	if err != nil {
		return err
	}
	if r.IntN(2) == 0 {
		b.Cancel()
	}
	if r.IntN(3) > 0 {
		if _, err = b.Wait(soon(t)); errors.Is(err, ErrCancelled) {
			err = nil
		}
	}
	return errors.Join(err, b.Free())
}

// lines collects what a logger writes.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(strings.TrimSpace(l.text.String()), "\n")
}

// proves L-1: the kernel and the reason for it are in the log
func TestLogIsStructuredAndCompleteWhenCloseReturns(t *testing.T) {
	eachMode(t, func(t *testing.T, c Config) {
		var out lines
		logger := zerolog.New(&out)
		c.Logger = &logger
		e := newEngine(t, c)
		closeEngine(t, e)
		all := out.all()
		if len(all) != 2 {
			t.Fatalf("lines: %q", all)
		}
		for i, parts := range [][]string{
			{`"message":"engine open"`, `"kernel":"` + e.Stats().Kernel + `"`, `"reason":"`, `"epoch":"` + e.Epoch().String(), `"engine":"` + e.Endpoint(), `"lanes":1`},
			{`"message":"engine closed"`},
		} {
			for _, part := range parts {
				if !strings.Contains(all[i], part) {
					t.Errorf("no %s in %s", part, all[i])
				}
			}
		}
	})
}

// field case F-67: fault lines are rate-limited, and nothing is written without a logger
func TestFaultLinesAreRateLimited(t *testing.T) {
	eachKernel(t, func(t *testing.T, c Config) {
		var out lines
		logger := zerolog.New(&out)
		c.Logger = &logger
		e := newEngine(t, c)
		const bad = 200
		for range bad {
			nonsense(t, e.Endpoint())
		}
		deadline := time.Now().Add(5 * time.Second)
		for e.Stats().Totals.FramesRefused < bad && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
		closeEngine(t, e)
		var faults []string
		for _, line := range out.all() {
			if strings.Contains(line, "broke the protocol") {
				faults = append(faults, line)
			}
		}
		if len(faults) == 0 || len(faults) > 3 {
			t.Fatalf("%d lines for %d faults", len(faults), bad)
		}
		for _, part := range []string{`"where":"127.0.0.1:`, `"times":`, `"error":"`, `"remedy":"`, `"lane":0`, `"level":"warn"`} {
			if !strings.Contains(faults[0], part) {
				t.Errorf("no %s in %s", part, faults[0])
			}
		}
	})
}
