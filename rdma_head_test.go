package orbitte

import (
	"bytes"
	"fmt"
	"testing"
	"time"
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
			began := p.Now()
			first, err := p.requester.Submit(soon(t), []Request{over})
			must(t, err)
			p.granted()
			second, err := p.requester.Submit(soon(t), []Request{tcp})
			must(t, err)
			for _, b := range []*Batch{first, second} {
				if report, err := b.Wait(soon(t)); err != nil {
					t.Errorf("%+v: %v", report, err)
				}
				must(t, b.Free())
			}
			if took := time.Duration(p.Now() - began); took > time.Second {
				t.Errorf("it took %v", took)
			}
			if c.tcp == Read && !bytes.Equal(p.local.Bytes()[1<<20:], p.local.Bytes()[:1<<20]) {
				t.Error("the READ brought other bytes than were written before")
			}
		})
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
	began := p.Now()
	first, err := p.requester.Submit(soon(t), []Request{over})
	must(t, err)
	p.granted()
	second, err := p.requester.Submit(soon(t), []Request{tcp})
	must(t, err)
	for _, b := range []*Batch{first, second} {
		if report, err := b.Wait(soon(t)); err != nil {
			t.Errorf("%+v: %v", report, err)
		}
		must(t, b.Free())
	}
	if took := time.Duration(p.Now() - began); took > time.Second {
		t.Errorf("it took %v", took)
	}
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
	for _, b := range []*Batch{first, second} {
		if report, err := b.Wait(soon(t)); err != nil {
			t.Errorf("%+v: %v", report, err)
		}
		must(t, b.Free())
	}
	if took := time.Duration(p.Now() - began); took > time.Second {
		t.Errorf("it took %v", took)
	}
}
