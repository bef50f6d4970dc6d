package orbitte

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Two goroutines drive one manual engine at the same time while others wait in their calls, which drive as well, and a third
// one closes it in the middle: whoever finds it driven returns at once, and nobody misses anything.
//
// proves L-4, G-6
func TestManyDriveOneManualEngineWhichIsClosedMeanwhile(t *testing.T) {
	const driveTimes = 20 // at least, each of the two
	eachKernel(t, func(t *testing.T, c Config) {
		c.Lanes, c.HPTCP = 2, &HPTCPConfig{}
		manual := c
		manual.Progress = Manual
		p := newFastPair(t, c, manual, 64<<10)
		var drove [2]atomic.Int64
		var asked, refused atomic.Int64
		var wait sync.WaitGroup
		over := make(chan struct{})
		for i := range drove {
			wait.Go(func() {
				for !closed(over) {
					if p.requester.Progress(time.Duration(i) * 20 * time.Microsecond) {
						drove[i].Add(1)
					} else {
						runtime.Gosched()
					}
				}
			})
		}
		for i := range 4 {
			wait.Go(func() {
				for {
					r := p.request(Operation(i%2)+Read, i*8192, 100+i*2000)
					r.Transport = []Transport{TransportTCP, TransportHPTCP}[i/2]
					err := p.ask(i < 2, r)
					if i < 2 { // it has driven: now the others, who find work since the requests by channel go on
						before := drove[i].Load()
						for again := true; again; again = before < driveTimes && drove[i].Load() == before && !closed(over) {
							time.Sleep(200 * time.Microsecond)
						}
					}
					if errors.Is(err, ErrClosed) {
						refused.Add(1)
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					asked.Add(1)
				}
			})
		}
		often := func() bool { return asked.Load() >= 1000 && min(drove[0].Load(), drove[1].Load()) >= driveTimes }
		for deadline := time.Now().Add(time.Minute); !often() && time.Now().Before(deadline); { // ends sooner; how soon is no claim
			time.Sleep(time.Millisecond)
		}
		closeEngine(t, p.requester)
		close(over)
		wait.Wait()
		if !often() || refused.Load() != 4 {
			t.Errorf("%d requests, %d refused, driven %d and %d times", asked.Load(), refused.Load(), drove[0].Load(), drove[1].Load())
		}
		if p.requester.Progress(0) {
			t.Error("a closed engine has work")
		}
	})
}

// ask waits for a request by a call that drives a manual engine, or by a channel, which drives nothing.
func (p *pair) ask(drives bool, r Request) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if drives {
		_, err := p.requester.SubmitAndWait(ctx, []Request{r})
		return err
	}
	b, err := p.requester.Submit(ctx, []Request{r})
	if err != nil {
		return err
	}
	<-b.Done()
	_, _, err = b.Poll()
	return errors.Join(err, b.Free())
}

// crowdBytes is what one peer of the crowd has for itself, at both ends.
const crowdBytes = 80 << 10

// crowd is three engines, each of which has the two others for peers under many addresses.
type crowd struct {
	t       *testing.T
	engines [3]*Engine
	remote  [3]*Memory
	local   [3]*Memory
	ended   atomic.Bool // true exactly from when an engine is closed
	good    atomic.Int64
	early   atomic.Int64
}

// member is one goroutine with a peer, and a stretch at both ends, of its own.
type member struct {
	*crowd
	own, other, place int
	random            *rand.Rand
	segment           *Segment
	far               *Registration // of the far stretch
	known             bool          // true exactly when the far stretch is filled with seed
	uncertain         bool          // true exactly when a WRITE whose effect is unknown may still come
	seed              byte
}

// Three engines with 66 peers among them, over TCP and HP-TCP at once: requests and batches, cancelled and run out of time at
// any moment, segments closed under them, in the end an engine closed under all of them. What succeeded is exact, what failed
// without effect changed nothing, what failed says why, and nothing is left. A WRITE whose effect is unknown may come behind
// later ones that succeeded, until its range's owner has unregistered it: then it comes no more.
//
// proves U-2, G-5, G-8, T-10; field cases F-48, F-74
func TestThreeEnginesWithManyPeersUnderCancelsAndCloses(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("SEED=%d", seed)
	eachKernel(t, func(t *testing.T, config Config) {
		config.Lanes, config.Bind, config.HPTCP = 2, "0.0.0.0:0", &HPTCPConfig{Bind: "0.0.0.0:0"}
		config.Limits = Limits{Submissions: 256, SourceHandlers: 64, SourceQueue: 64, Batches: 256}
		c := &crowd{t: t}
		const addresses = 11
		for i := range c.engines {
			c.engines[i] = newEngine(t, config)
			c.remote[i], c.local[i] = allocated(t, 2*addresses*crowdBytes), allocated(t, 2*addresses*crowdBytes)
			registered(t, c.engines[i], c.local[i], LocalOnly)
		}
		var wait sync.WaitGroup
		stop := make(chan struct{})
		for i := range 3 * 2 * addresses {
			own, place := i%3, i/3
			m := &member{crowd: c, own: own, other: (own + 1 + place%2) % 3, place: place, random: rand.New(rand.NewPCG(seed, uint64(i)))}
			wait.Go(func() {
				m.publish()
				m.open()
				for !closed(stop) && !t.Failed() && m.segment != nil {
					m.step()
				}
				m.close()
				m.withdraw()
			})
		}
		time.Sleep(2 * time.Second)
		c.ended.Store(true)
		closeEngine(t, c.engines[2]) // while all are at it
		time.Sleep(100 * time.Millisecond)
		close(stop)
		wait.Wait()
		if c.good.Load() < 200 || c.early.Load() < 20 {
			t.Errorf("%d requests were whole, %d ended early", c.good.Load(), c.early.Load())
		}
	})
}

// publish registers the far stretch; withdraw takes it back.
func (m *member) publish() {
	var err error
	m.far, err = m.engines[m.other].Register(m.remote[m.other], uint64(m.place*crowdBytes), crowdBytes, ReadWrite, OverHPTCP)
	m.fair(err)
}

func (m *member) withdraw() {
	if m.far != nil {
		m.fair(m.engines[m.other].Unregister(soon(m.t), m.far))
	}
}

func (m *member) open() {
	e := m.engines[m.other]
	_, port, err := net.SplitHostPort(e.Endpoint())
	must(m.t, err)
	m.segment, err = m.engines[m.own].OpenSegment(soon(m.t), net.JoinHostPort(fmt.Sprintf("127.0.1.%d", 1+m.place), port), e.Epoch())
	m.fair(err)
}

func (m *member) close() {
	if m.segment != nil {
		m.fair(m.engines[m.own].CloseSegment(soon(m.t), m.segment))
	}
}

// fair says whether a call went well; an error is one that cancels and closes explain.
func (m *member) fair(err error) bool {
	switch {
	case err == nil:
		return true
	case errors.Is(err, ErrCancelled), errors.Is(err, ErrDeadline):
		m.early.Add(1)
	case m.ended.Load() && (errors.Is(err, ErrClosed) || errors.Is(err, ErrDisconnected) || errors.Is(err, ErrUnreachable)):
	default:
		m.t.Errorf("engine %d to %d, place %d: %v", m.own, m.other, m.place, err)
	}
	return false
}

// stretch is what the member has of a memory.
func (m *member) stretch(of *Memory) []byte {
	return of.Bytes()[m.place*crowdBytes:][:crowdBytes]
}

func (m *member) request(op Operation, at, length int) Request {
	at += m.place * crowdBytes
	return Request{
		Operation: op, Transport: []Transport{TransportTCP, TransportHPTCP}[m.random.IntN(2)], Segment: m.segment,
		Local: m.local[m.own].Address() + uint64(at), Remote: m.remote[m.other].Address() + uint64(at), Length: uint64(length),
	}
}

func (m *member) step() {
	ctx, cancel := soon(m.t), context.CancelFunc(func() {})
	if m.random.IntN(3) == 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(m.random.IntN(2000))*time.Microsecond)
	}
	defer cancel()
	e := m.engines[m.own]
	switch m.random.IntN(8) {
	case 0: // close under what is asked
		b, err := e.Submit(ctx, []Request{m.request(Read, 0, crowdBytes), m.request(Read, 0, 100)})
		m.close()
		if m.fair(err) {
			_, _ = b.Wait(soon(m.t)) // either way
			m.fair(b.Free())
		}
		m.segment = nil
		m.open()
	case 1, 2:
		m.batch(ctx)
	case 3, 4:
		m.write(ctx)
	default:
		m.read(ctx)
	}
}

// settle makes the far stretch's owner take it back and publish it again, which ends what may still come.
func (m *member) settle() {
	m.withdraw()
	m.publish()
	m.fair(m.segment.Refresh(soon(m.t)))
	m.uncertain = false
}

// write fills the far stretch with a new seed.
func (m *member) write(ctx context.Context) {
	if m.uncertain {
		m.settle()
	}
	local := m.stretch(m.local[m.own])
	for i := range local {
		local[i] = m.seed + 1 + byte(i>>8)
	}
	report, err := m.engines[m.own].SubmitAndWait(ctx, []Request{m.request(Write, 0, crowdBytes)})
	if !report.LocallyDrained && !m.ended.Load() {
		m.t.Errorf("%+v, %v", report, err)
	}
	switch {
	case m.fair(err):
		m.known = true
		m.seed++
		m.good.Add(1)
	case report.Remote != EffectNone:
		m.known, m.uncertain = false, true
		m.seed++
	}
}

// read looks at some of it.
func (m *member) read(ctx context.Context) {
	at := m.random.IntN(crowdBytes)
	length := 1 + m.random.IntN(crowdBytes-at)
	local := m.stretch(m.local[m.own])
	clear(local)
	_, err := m.engines[m.own].SubmitAndWait(ctx, []Request{m.request(Read, at, length)})
	if !m.fair(err) {
		return
	}
	m.good.Add(1)
	want := make([]byte, length)
	for i := range want {
		want[i] = m.seed + byte((at+i)>>8)
	}
	if got := local[at:][:length]; m.known && !bytes.Equal(got, want) {
		m.t.Errorf("engine %d to %d, place %d: %d bytes at %d are not those of seed %d", m.own, m.other, m.place, length, at, m.seed)
	}
	if len(bytes.Trim(local[:at], "\x00"))+len(bytes.Trim(local[at+length:], "\x00")) > 0 {
		m.t.Errorf("engine %d to %d, place %d: bytes beside the range changed", m.own, m.other, m.place)
	}
}

// batch submits several and cancels them at some moment.
func (m *member) batch(ctx context.Context) {
	b, err := m.engines[m.own].Submit(ctx, []Request{m.request(Read, 0, 64), m.request(Read, 4096, 60_000), m.request(Read, 100, 100)})
	if !m.fair(err) {
		return
	}
	if m.random.IntN(2) == 0 {
		b.Cancel()
	}
	_, err = b.Wait(soon(m.t))
	m.fair(err)
	m.fair(b.Free())
}
