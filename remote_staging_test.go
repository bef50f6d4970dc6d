package orbitte

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/orbitte/orbitte/cuda"
	"github.com/orbitte/orbitte/cuda/simcuda"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/delegate"
)

// slotted is the configuration of small slots on both sides.
func slotted(slots int) Config {
	return Config{Limits: small, RemoteStaging: &RemoteStagingConfig{Slots: slots}}
}

// directed is a request that directs the peer's staging.
func (p *cudaPair) directed(op Operation, offset, n, slots int) Request {
	r := p.request(op, offset, n)
	r.RemoteSlots = slots
	return r
}

// Requests with remote slots, 1 and more, move exactly the range from and to a peer's GPU; the path says so before and
// after, the peer's Stats count it, and nothing stays charged.
//
// proves C-8, U-1, U-2
func TestRemoteSlotsMoveExactlyTheRange(t *testing.T) {
	for _, here := range []bool{false, true} {
		const size = 20 << 10
		s := newCUDAPair(t, 1, slotted(16), slotted(16), size, true, here)
		copies := uint64(0)
		for i, n := range []int{1, 1008, 1009, 1010, 2019, 7 * 1009, size - 5003} {
			for k, op := range []Operation{Read, Write, Read} {
				slots := []int{1, 2, 16}[(i+k)%3]
				report := s.exactly(t, s.sourceDriver, s.requesterDriver, s.directed(op, 5003-i, n, slots), i)
				mentions(t, report.Path, "tcp, remote staging, "+map[bool]string{true: "serial", false: "pipelined"}[slots == 1])
				copies += uint64(n+1008) / 1009
			}
		}
		g := gauge(t, s.source, slotsBudget)
		if x := s.source.Stats().RemoteStaging; x.Pinned != 21 || x.Copied != copies || x.Copies != copies || x.Pins+x.Slots+x.Retained != 0 || x.Failed != 0 || g.Used != 0 || g.Peak != 16 || g.Limit != 16 {
			t.Errorf("%+v, %d copies wanted; %+v", x, copies, g)
		}
		if p := gauge(t, s.source, "pinned staging"); p.Used != 20*1009 || p.Limit != 20*1009 {
			t.Errorf("%+v", p)
		}
	}
}

// A request goes through remote slots only if it says so, and only where both sides have opted in; otherwise it is refused
// before anything is posted, and no other way is taken.
//
// proves C-8, G-4
func TestRemoteSlotsAreRefusedWhereSomethingIsMissing(t *testing.T) {
	plain := Config{Limits: small}
	for name, x := range map[string]struct {
		source, requester Config
		change            func(*Request)
		class             error
		word              string
	}{
		"at the requester": {slotted(4), plain, func(*Request) {}, ErrUnavailable, "Config.RemoteStaging is not set"},
		"at the source":    {plain, slotted(4), func(*Request) {}, ErrUnavailable, "offers no remote staging"},
		"too many":         {slotted(4), slotted(4), func(r *Request) { r.RemoteSlots = 17 }, ErrInvalid, "0 to 16"},
		"negative":         {slotted(4), slotted(4), func(r *Request) { r.RemoteSlots = -1 }, ErrInvalid, "0 to 16"},
		"HP-TCP":           {slotted(4), slotted(4), func(r *Request) { r.Transport = TransportHPTCP }, ErrUnavailable, "TransportTCP"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newCUDAPair(t, 1, x.source, x.requester, 4096, true, false)
			r := s.directed(Read, 0, 100, 2)
			x.change(&r)
			before := s.source.Stats().Totals
			_, err := s.requester.SubmitAndWait(soon(t), []Request{r})
			wants(t, err, x.class)
			mentions(t, err.Error(), x.word)
			_, err = s.segment.PathOf(r)
			wants(t, err, x.class)
			if s.source.Stats().Totals != before {
				t.Error("something was posted")
			}
			r = s.request(Read, 0, 100) // without slots it goes the usual way
			report, err := s.requester.SubmitAndWait(soon(t), []Request{r})
			must(t, err)
			if bytes.Contains([]byte(report.Path), []byte("remote staging")) || s.source.Stats().RemoteStaging != nil && s.source.Stats().RemoteStaging.Pinned != 0 {
				t.Errorf("slots that nobody asked for: %q", report.Path)
			}
		})
	}
	s := newCUDAPair(t, 1, slotted(4), slotted(4), 4096, false, true)
	_, err := s.requester.SubmitAndWait(soon(t), []Request{s.directed(Read, 0, 100, 2)})
	wants(t, err, ErrUnavailable)
	mentions(t, err.Error(), "host memory")
	own := opened(t, s.requester, s.requester)
	_, err = s.requester.SubmitAndWait(soon(t), []Request{{Operation: Read, Segment: own, Local: s.local.Address(), Remote: s.local.Address() + 200, Length: 100, RemoteSlots: 1}})
	wants(t, err, ErrUnavailable)
	mentions(t, err.Error(), "own")
}

// Values of the configuration that make no sense are refused by name; slots are dealt out to the lanes in equal parts.
func TestRemoteStagingConfigIsChecked(t *testing.T) {
	for _, c := range []RemoteStagingConfig{{Slots: -1}, {Slots: 1}, {Slots: 1 << 20}, {PeerSlots: -1}} {
		config := Config{RemoteStaging: &c}
		if err := config.completeRemoteStaging(2); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	config := Config{RemoteStaging: &RemoteStagingConfig{Slots: 9}, CUDA: simcuda.New(1, simcuda.Options{})}
	must(t, config.completeRemoteStaging(4))
	if got := *config.RemoteStaging; got != (RemoteStagingConfig{Slots: 8, PeerSlots: 2}) || config.laneSlots(4) != 2 {
		t.Errorf("%+v", got)
	}
}

// A batch of requests with and without remote slots runs in its order, and many submissions at once share what slots there
// are: all succeed.
//
// proves C-8, G-3, B-1
func TestManyRequestsShareFewSlots(t *testing.T) {
	const size, part = 64 << 10, 4 << 10
	s := newCUDAPair(t, 1, slotted(2), slotted(2), size, true, false)
	shareFewSlots(t, s.pair, s.sourceDriver, s.requesterDriver, part, func(i, k, offset int) Request { return s.directed(Read, offset, part/4, (i+k)%5) })
}

// shareFewSlots reads all of the peer's memory with many submissions at once, each of one part in four requests, and checks that
// two slots were enough.
func shareFewSlots(t *testing.T, p *pair, source, requester *simcuda.Driver, part int, request func(i, k, offset int) Request) {
	t.Helper()
	put(t, source, p.remote, 7)
	var batches []*Batch
	asked := uint64(0)
	for i := range p.remote.Len() / part {
		var requests []Request
		for k := range 4 {
			r := request(i, k, i*part+k*part/4)
			requests = append(requests, r)
			asked += uint64(min(r.RemoteSlots, 1))
		}
		b, err := p.requester.Submit(soon(t), requests)
		must(t, err)
		batches = append(batches, b)
	}
	for i, b := range batches {
		report, err := b.Wait(soon(t))
		if err != nil || report.Completed != 4 || report.Bytes != uint64(part) {
			t.Fatalf("batch %d: %+v, %v", i, report, err)
		}
		must(t, b.Free())
	}
	if !bytes.Equal(content(t, requester, p.local), content(t, source, p.remote)) {
		t.Error("other bytes arrived")
	}
	if g := gauge(t, p.source, slotsBudget); g.Used != 0 || g.Peak != 2 {
		t.Errorf("%+v", g)
	}
	if n := p.source.Stats().RemoteStaging.Pinned; n != asked {
		t.Errorf("%d requests got slots, and %d asked for them", n, asked)
	}
}

// A copy that fails at the source fails its request as the peer's failure; the effects are in the report.
//
// proves C-8, T-10
func TestFailedCopyThroughRemoteSlotsIsThePeers(t *testing.T) {
	for _, op := range []Operation{Read, Write} {
		s := newCUDAPair(t, 1, slotted(4), slotted(4), 9000, true, false)
		s.sourceDriver.Plan(simcuda.Fault{Kind: simcuda.FailCall, Call: simcuda.CallCopy, Index: 1, Result: cuda.InvalidValue})
		report, err := s.requester.SubmitAndWait(s.within(time.Minute), []Request{s.directed(op, 0, 9000, 2)})
		wants(t, err, ErrPeer)
		if !report.LocallyDrained || op == Write && report.Remote != EffectUnknown || op == Read && report.Local != EffectPartial {
			t.Errorf("%+v", report)
		}
		report, err = s.requester.SubmitAndWait(s.within(time.Minute), []Request{s.directed(op, 0, 9000, 2)})
		if err != nil || report.Bytes != 9000 {
			t.Errorf("the next one: %+v, %v", report, err)
		}
	}
}

// Closing the source while a peer directs its staging takes the slots back; the call is told which side ended it.
//
// proves C-8, G-6
func TestCloseSourceTakesRemoteSlotsBack(t *testing.T) {
	for _, op := range []Operation{Read, Write} {
		s := newCUDAPair(t, 1, slotted(4), slotted(4), 9000, true, false)
		s.sourceDriver.Plan(simcuda.Fault{Kind: simcuda.SlowCopy, By: 100 * time.Millisecond, Count: 100})
		b, err := s.requester.Submit(s.within(time.Minute), []Request{s.directed(op, 0, 9000, 4)})
		must(t, err)
		s.until(time.Second, func() bool { return s.source.Stats().CUDA.CopiesInFlight > 0 })
		s.Link(hostB, hostA).BlackHole(true) // nobody gives the slots back
		began := s.Now()
		must(t, s.source.CloseSource(s.within(10*time.Second)))
		if took := time.Duration(s.Now() - began); took > 2*time.Second {
			t.Errorf("closed after %v", took)
		}
		s.Link(hostB, hostA).BlackHole(false)
		if x := s.source.Stats(); x.RemoteStaging.Slots != 0 || x.CUDA.CopiesInFlight != 0 {
			t.Errorf("closed with %+v, %d copies under way", x.RemoteStaging, x.CUDA.CopiesInFlight)
		}
		report, err := b.Wait(s.within(time.Minute))
		wants(t, err, ErrClosed)
		if !report.LocallyDrained || op == Write && report.Remote == EffectComplete {
			t.Errorf("%+v", report)
		}
		must(t, b.Free())
	}
}

// A pin that the source took back is told as the peer's doing, with what to do.
func TestSlotsThatWereTakenBackAreNamed(t *testing.T) {
	err := error(&lanes.Fault{Cause: lanes.Refused, Stage: "unpin", Err: fmt.Errorf("gone: %w", delegate.ErrTakenBack)})
	own := &Error{Index: -1, Class: classOf(err), Cause: err}
	if !errors.Is(own, ErrPeer) {
		t.Error(own)
	}
	mentions(t, own.Error(), "SourceTimeout")
}

// Callers at once direct a peer's staging over real sockets, with fewer slots than they ask for; every byte is checked, and
// all is given back.
//
// proves C-8, U-2
func TestManyCallersDirectAPeersStagingOverRealSockets(t *testing.T) {
	eachKernel(t, func(t *testing.T, c Config) {
		const callers, slot = 6, 40 << 10
		here, there := realTwin(t, simcuda.Options{}), realTwin(t, simcuda.Options{})
		c.Lanes, c.Limits = 2, Limits{StagingChunkBytes: 4093, PinnedStagingBytes: 2 * 4 * 4093 * 2}
		c.RemoteStaging = &RemoteStagingConfig{Slots: 6, PeerSlots: 3}
		source, requester := c, c
		source.CUDA, requester.CUDA = there, here
		p := &pair{source: newEngine(t, source), requester: newEngine(t, requester)}
		p.remote, p.local = onGPU(t, there, 0, callers*slot), allocated(t, callers*slot)
		p.export, p.own = registered(t, p.source, p.remote, ReadWrite), registered(t, p.requester, p.local, ReadWrite)
		p.segment = opened(t, p.requester, p.source)
		ctx := within(t, time.Minute)
		var group sync.WaitGroup
		for i := range callers {
			group.Go(func() {
				if err := director(ctx, p, i*slot, slot, i); err != nil {
					t.Errorf("caller %d: %v", i, err)
				}
			})
		}
		group.Wait()
		if s := p.source.Stats().RemoteStaging; s.Pinned != callers*4*2 || s.Pins+s.Slots != 0 || s.Copied != s.Copies || s.Failed != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// director moves its range to the peer's GPU and back, through 1 to 16 slots, and compares.
func director(ctx context.Context, p *pair, at, slot, i int) error {
	return directorBy(ctx, p, TransportTCP, at, slot, i)
}

func directorBy(ctx context.Context, p *pair, transport Transport, at, slot, i int) error {
	mine := p.local.Bytes()[at : at+slot]
	for round := range 4 {
		n := slot - 5 - round*4093
		for k := range mine {
			mine[k] = byte(k*5 + k>>8 + i + round)
		}
		want := bytes.Clone(mine)
		r := Request{
			Operation: Write, Transport: transport, Segment: p.segment, Local: p.local.Address() + uint64(at+3), Remote: p.remote.Address() + uint64(at+3), Length: uint64(n),
			RemoteSlots: []int{1, 2, 5, 16}[(round+i)%4],
		}
		if _, err := p.requester.SubmitAndWait(ctx, []Request{r}); err != nil {
			return err
		}
		clear(mine[3 : 3+n])
		r.Operation = Read
		if _, err := p.requester.SubmitAndWait(ctx, []Request{r}); err != nil {
			return err
		}
		if !bytes.Equal(mine, want) {
			return fmt.Errorf("round %d: the bytes differ", round)
		}
	}
	return nil
}
