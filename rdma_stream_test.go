package orbitte

import (
	"bytes"
	"testing"
)

// A question for grants that went out while a TCP WRITE of the same peer waited for READY was taken for its payload.
//
// proves W-14, T-5
func TestAQuestionForGrantsWaitsForTheWriteThatHasTheStream(t *testing.T) {
	p := newRDMAPair(t, 150, Config{}, Config{}, 64<<10)
	pattern(p.local, 5)
	for i := range 8 { // both begin in one turn, in either order
		write, err := p.requester.Submit(soon(t), []Request{p.request(Write, i*4096, 4096)})
		must(t, err)
		over, err := p.requester.Submit(soon(t), []Request{p.overRDMA(Write, 32<<10+i*4096, 4096)})
		must(t, err)
		for _, b := range []*Batch{write, over} {
			_, err := b.Wait(soon(t))
			must(t, err)
			must(t, b.Free())
		}
	}
	if !bytes.Equal(p.local.Bytes(), p.remote.Bytes()) {
		t.Error("other bytes arrived than were sent")
	}
}
