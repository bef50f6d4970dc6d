package orbitte

import (
	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/segments"
)

var (
	errDeviceHPTCP = lacking("HP-TCP carries host memory only, and this memory is on a GPU",
		"leave OverHPTCP away where memory on a GPU is registered, and name TransportTCP for it, which stages through pinned host memory")
)

// placing says which sides of a request are on a GPU, and of them which the RDMA devices reach themselves.
type placing struct{ here, there, hereDirect, thereDirect bool }

func (p placing) any() bool { return p.here || p.there }

// placingOf looks at both sides.
func (e *Engine) placingOf(r *Request, local *segments.Registration, region *netproto.Region) placing {
	p := placing{here: local.Backing().Kind() == segments.Device, there: region.Memory == netproto.MemoryCUDA}
	if p.any() && r.Transport == TransportRDMA && !r.Segment.Local() {
		p.hereDirect = p.here && e.config.RDMA.DeviceMemory == DeviceDirect
		p.thereDirect = p.there && r.RemoteSlots == 0 && gpuDirect(r.Segment.view().Descriptor().Capabilities, region) != ""
	}
	return p
}

// refuse says why a transport cannot carry device memory; nil: it can. Nothing is copied through the host that did not
// ask for it: over TCP that is the documented way, over RDMA each side's policy says so, HP-TCP refuses (field case F-69).
func (p placing) refuse(t Transport) error {
	switch {
	case !p.any():
		return nil
	case t == TransportHPTCP:
		return &Error{Class: ErrUnavailable, Cause: errDeviceHPTCP}
	}
	return nil
}

// way adds to a path what happens to device memory on it.
func (p placing) way(path string, local bool) string {
	switch {
	case !p.any():
		return path
	case local && p.here && p.there:
		return path + ", device to device"
	case local:
		return path + ", device and host"
	case p.here && p.there && p.hereDirect == p.thereDirect:
		return path + ", " + served(p.hereDirect) + " on both sides"
	}
	if p.here {
		path += ", " + served(p.hereDirect) + " here"
	}
	if p.there {
		path += ", " + served(p.thereDirect) + " there"
	}
	return path
}

func served(direct bool) string {
	if direct {
		return "GPUDirect"
	}
	return "staged through pinned host memory"
}

// PathOf is Path for one request with its addresses: it also says what happens to memory on GPUs, such as "tcp, staged
// through pinned host memory here". The error is what the request would be refused with.
func (s *Segment) PathOf(r Request) (string, error) {
	r.Segment = s
	var resolved resolved
	if err := resolved.resolve(s.engine, &r); err != nil {
		if _, own := err.(*Error); !own {
			err = &Error{Class: classOf(err), Cause: err}
		}
		return "", aboutPeer("PathOf", s.endpoint, unindexed(err))
	}
	defer resolved.release()
	path, err := s.path(r.Operation, r.Transport, resolved.placing)
	if err != nil {
		return "", aboutPeer("PathOf", s.endpoint, err)
	}
	return resolved.placing.way(path+slotsWay(int(resolved.slots)), s.Local()), nil
}
