package orbitte

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/orbitte/orbitte/reactor"
)

// A request over TCP waits at the source for a range that a grant holds, and the word that ends the grant waits behind it on
// the peer's one control stream. The range is free when every key has ended, so neither waits for the other.
//
// proves R-13, M-9
func TestARequestOverTCPThatWaitsForAGrantedRangeDoesNotKeepTheGrantFromItsEnd(t *testing.T) {
	for i, c := range []struct{ over, tcp Operation }{{Write, Write}, {Write, Read}, {Read, Write}} {
		t.Run(fmt.Sprint(c.over, c.tcp), func(t *testing.T) {
			p := newRDMAPair(t, 970+uint64(i), Config{}, Config{}, 2<<20)
			pattern(p.local, 3)
			over := p.overRDMA(c.over, 0, 1<<20)
			tcp := p.request(c.tcp, 0, 1<<20)
			tcp.Local += 1 << 20 // local ranges do not conflict
			p.behind(over, tcp)
			if c.tcp == Read && !bytes.Equal(p.local.Bytes()[1<<20:], p.local.Bytes()[:1<<20]) {
				t.Error("the READ brought other bytes than were written before")
			}
		})
	}
}

// behind asks for one over TCP when the grants of another are out, and expects both to end soon.
func (p *rdmaPair) behind(over, tcp Request) {
	p.t.Helper()
	began := p.Now()
	first, err := p.requester.Submit(soon(p.t), []Request{over})
	must(p.t, err)
	p.granted()
	second, err := p.requester.Submit(soon(p.t), []Request{tcp})
	must(p.t, err)
	p.soonOver(began, first, second)
}

func (p *rdmaPair) soonOver(began reactor.Instant, batches ...*Batch) {
	p.t.Helper()
	for _, b := range batches {
		if report, err := b.Wait(soon(p.t)); err != nil {
			p.t.Errorf("%+v: %v", report, err)
		}
		must(p.t, b.Free())
	}
	if took := time.Duration(p.Now() - began); took > time.Second {
		p.t.Errorf("it took %v", took)
	}
}

// The same at the requester: a WRITE over TCP that has the stream waits for the local range of a READ over RDMA, which waits
// for the stream to hear that the source has ended its grants.
//
// proves R-13, M-9
func TestARequestOverTCPThatWaitsForALocalRangeDoesNotKeepTheGrantFromItsEnd(t *testing.T) {
	p := newRDMAPair(t, 980, Config{}, Config{}, 2<<20)
	over, tcp := p.overRDMA(Read, 0, 1<<20), p.request(Write, 0, 1<<20)
	tcp.Remote += 1 << 20
	p.behind(over, tcp)
	if !bytes.Equal(p.remote.Bytes()[1<<20:], p.remote.Bytes()[:1<<20]) {
		t.Error("the WRITE sent other bytes than were read before")
	}
}

// A WRITE over TCP has the stream and waits for the local range, which a READ over RDMA has leased that waits for the stream.
//
// proves M-9, T-9
func TestAReadOverRDMAThatWaitsForTheStreamGivesItsRangeToWhoeverHasIt(t *testing.T) {
	p := newRDMAPair(t, 990, Config{}, Config{}, 2<<20)
	over, tcp := p.overRDMA(Read, 0, 1<<20), p.request(Write, 0, 4096)
	tcp.Remote += 1 << 20
	_, err := p.requester.SubmitAndWait(soon(t), []Request{over}) // builds the connections
	must(t, err)
	began := p.Now()
	second, err := p.requester.Submit(soon(t), []Request{tcp})
	must(t, err)
	first, err := p.requester.Submit(soon(t), []Request{over})
	must(t, err)
	p.soonOver(began, first, second)
}
