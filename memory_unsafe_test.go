package orbitte

import (
	"bytes"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/orbitte/orbitte/reactor/simkernel"
)

// proves M-2
func TestAdoptedPointerKeepsItsOwnerAliveAsLongAsARegistration(t *testing.T) {
	s := newSimPair(t, 40, simkernel.WorldOptions{}, Config{}, Config{}, 4096)
	released := make(chan struct{})
	adopt := func() (*Memory, error) {
		owner := &struct{ bytes []byte }{make([]byte, 4096)}
		for i := range owner.bytes {
			owner.bytes[i] = byte(i)
		}
		runtime.AddCleanup(owner, func(done chan struct{}) { close(done) }, released)
		return AdoptPointer(unsafe.Pointer(&owner.bytes[0]), 4096, owner)
	}
	m, err := adopt()
	must(t, err)
	r, err := s.source.Register(m, 0, 4096, RemoteRead)
	must(t, err)
	must(t, m.Close())
	for range 3 {
		runtime.GC()
	}
	select {
	case <-released:
		t.Fatal("the owner was collected under a registration")
	case <-time.After(20 * time.Millisecond):
	}
	must(t, s.segment.Refresh(soon(t)))
	_, err = s.requester.SubmitAndWait(soon(t), []Request{{Operation: Read, Segment: s.segment, Local: s.local.Address(), Remote: r.Address(), Length: 4096}})
	must(t, err)
	if want := byte(200); s.local.Bytes()[200] != want || bytes.Equal(s.local.Bytes(), make([]byte, 4096)) {
		t.Fatal("bytes differ")
	}
	must(t, s.source.Unregister(soon(t), r))
	m, r = nil, nil
	for range 50 {
		runtime.GC()
		select {
		case <-released:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
	t.Fatal("the owner is kept alive for ever")
}

func TestAdoptPointerRefusesNothingAtAll(t *testing.T) {
	var b [8]byte
	_, err := AdoptPointer(nil, 8, nil)
	wants(t, err, ErrInvalid)
	_, err = AdoptPointer(unsafe.Pointer(&b), 0, &b)
	wants(t, err, ErrInvalid)
}
