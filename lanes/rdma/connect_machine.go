package rdma

import (
	"fmt"

	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/netproto"
)

// operation is how the wire names a direction.
func operation(d lanes.Direction) netproto.Operation {
	if d == lanes.Read {
		return netproto.OperationRDMARead
	}
	return netproto.OperationRDMAWrite
}

func direction(o netproto.Operation) lanes.Direction {
	if o == netproto.OperationRDMARead {
		return lanes.Read
	}
	return lanes.Write
}

// MismatchError says that the other end of a connection is not what its descriptor, or this side's path, says it is
// (SPEC R-4). No queue pair was connected to it.
type MismatchError struct {
	Field     string
	Got, Want string
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("the connection's %s is %s, want %s; no queue pair was connected; open the segment again if the peer's devices changed", e.Field, e.Got, e.Want)
}

func mismatch(field string, got, want any) error {
	return &MismatchError{Field: field, Got: fmt.Sprint(got), Want: fmt.Sprint(want)}
}

// checkAnswer holds the source's end against what was asked, and against the path that its descriptor published.
func checkAnswer(asked, a *netproto.Connection, epoch netproto.Epoch, path *netproto.Path) error {
	switch {
	case a.Epoch != epoch:
		return mismatch("epoch", a.Epoch, epoch)
	case a.Peer != asked.Incarnation:
		return mismatch("requester's incarnation", fmt.Sprintf("%x", a.Peer), fmt.Sprintf("%x", asked.Incarnation))
	case a.NIC != path.NIC || a.PeerNIC != asked.NIC:
		return mismatch("pair of NICs", fmt.Sprintf("%d and %d", a.PeerNIC, a.NIC), fmt.Sprintf("%d and %d", asked.NIC, path.NIC))
	case asked.Profile == netproto.ProfileRegion && a.Domain == path.PD:
		return mismatch("domain", fmt.Sprintf("%#x", a.Domain), "one of its own, for memory on a GPU")
	case asked.Profile != netproto.ProfileRegion && a.Domain != path.PD || a.PeerDomain != asked.Domain:
		return mismatch("pair of domains", fmt.Sprintf("%#x and %#x", a.PeerDomain, a.Domain), fmt.Sprintf("%#x and %#x", asked.Domain, path.PD))
	case a.Port != path.Port || a.Link != path.Link:
		return mismatch("port and link", fmt.Sprintf("%d and %d", a.Port, a.Link), fmt.Sprintf("%d and %d", path.Port, path.Link))
	case a.GID != path.GID:
		return mismatch("GID", fmt.Sprintf("%x", a.GID), fmt.Sprintf("%x", path.GID))
	}
	return checkTerms(asked, a)
}

// checkTerms holds both ends to what they agree on.
func checkTerms(asked, a *netproto.Connection) error {
	switch {
	case a.Direction != asked.Direction || a.Profile != asked.Profile:
		return mismatch("direction and profile", fmt.Sprintf("%v and %d", a.Direction, a.Profile), fmt.Sprintf("%v and %d", asked.Direction, asked.Profile))
	case len(a.Pairs) != len(asked.Pairs):
		return mismatch("width", len(a.Pairs), len(asked.Pairs))
	}
	return nil
}

// checkOffer holds what a requester offers against the path of this source that it names; nil: the source has no such
// NIC. Known says that the requester's incarnation is in use already: whatever becomes of that one, this question
// changes nothing. Direct says that the source lets devices reach memory on GPUs.
func checkOffer(o *netproto.Connection, own *netproto.Path, width int, direct, known bool) (netproto.Status, error) {
	switch {
	case !o.Peer.IsZero():
		return netproto.StatusProtocolError, mismatch("source's incarnation", fmt.Sprintf("%x", o.Peer), "zero in a question")
	case known:
		return netproto.StatusProtocolError, mismatch("incarnation", "in use", "a new one for each question")
	case own == nil || own.PD != o.PeerDomain:
		return netproto.StatusBackendUnavailable, mismatch("domain", fmt.Sprintf("%#x of NIC %d", o.PeerDomain, o.PeerNIC), "one that this source published")
	case own.State != netproto.PathActive:
		return netproto.StatusBackendUnavailable, mismatch("path", "paused", "active")
	case own.Link != o.Link || o.Link == netproto.LinkEthernet && mapped(own.GID) != mapped(o.GID):
		return netproto.StatusBackendUnavailable, mismatch("link or address family", o.Link, own.Link)
	case o.Profile == netproto.ProfileRegion && !direct:
		return netproto.StatusBackendUnavailable, mismatch("profile", o.Profile, netproto.ProfileWindow)
	case o.Profile == netproto.ProfileRegion && len(o.Pairs) != 1:
		return netproto.StatusProtocolError, mismatch("width", len(o.Pairs), "1 for a grant on a GPU")
	case len(o.Pairs) > width:
		return netproto.StatusExhausted, mismatch("width", len(o.Pairs), fmt.Sprintf("at most %d", width))
	}
	return netproto.StatusSuccess, nil
}
