package rdma

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/orbitte/orbitte/netproto"
	"github.com/orbitte/orbitte/verbs"
)

// Device is one NIC of the engine: its context, its protection domain, and where it is in the machine. All lanes share
// it; it ends with the transport (SPEC R-2). Windows are allocated and parked on the cold loop only.
type Device struct {
	NIC     uint8 // stable ID
	Name    string
	Context *verbs.Context
	Domain  *verbs.Domain
	// Identity names the life of the domain on the wire; never zero.
	Identity uint64
	Spot     verbs.Spot
	// NoSource is why the device serves no grants; nil: it does. Then it is the requester's only: peers are not told of it,
	// and memory has no parent region there.
	NoSource error

	transport *Transport
	load      atomic.Int64 // payload bytes in flight that are charged to it (SPEC R-3)
	traffic   struct{ read, written, served, stored flow }
}

// flow counts one kind of payload.
type flow struct{ slices, bytes atomic.Uint64 }

func (f *flow) add(bytes uint64) {
	f.slices.Add(1)
	f.bytes.Add(bytes)
}

// Flow is slices that ended well, and their bytes.
type Flow struct{ Slices, Bytes uint64 }

// Traffic is what a device carried: for this engine's READs and WRITEs, and for those of its peers.
type Traffic struct{ Read, Written, Served, Stored Flow }

// Traffic reads the lifetime counts; any goroutine.
func (d *Device) Traffic() Traffic {
	get := func(f *flow) Flow { return Flow{f.slices.Load(), f.bytes.Load()} }
	t := &d.traffic
	return Traffic{Read: get(&t.read), Written: get(&t.written), Served: get(&t.served), Stored: get(&t.stored)}
}

// Charge adds payload bytes in flight to the device, Discharge takes them back; any lane.
func (d *Device) Charge(bytes uint64) { d.load.Add(int64(bytes)) }

// Discharge is called when the bytes are with their receiver, or will never be.
func (d *Device) Discharge(bytes uint64) {
	if left := d.load.Add(-int64(bytes)); left < 0 {
		panic(fmt.Sprintf("rdma: Discharge of %d bytes leaves %d on %s, want 0 or more", bytes, left, d.Name))
	}
}

// Active is true exactly when the device takes new connections.
func (d *Device) Active() bool {
	state, _ := d.Context.State()
	return state == verbs.Active
}

// State is where the device stands, and why it is not active; any goroutine.
func (d *Device) State() (verbs.ContextState, string) { return d.Context.State() }

func (d *Device) link() netproto.LinkLayer {
	if d.Context.Route().Ethernet {
		return netproto.LinkEthernet
	}
	return netproto.LinkInfiniBand
}

// wireName is the name as descriptors carry it.
func wireName(name string) string {
	for len(name) > netproto.PathNameSize {
		name = name[:len(name)-1]
	}
	return name
}

// path is what the descriptor says about the device (SPEC R-4).
func (d *Device) path() netproto.Path {
	route := d.Context.Route()
	p := netproto.Path{
		NIC: d.NIC, Port: route.Port, Link: d.link(), NUMA: netproto.NUMAUnknown,
		GUID: d.Context.Device().GUID, PD: d.Identity, GID: route.GID.GID, Name: wireName(d.Name),
	}
	if d.Active() {
		p.State = netproto.PathActive
	}
	if d.Spot.Node >= 0 {
		p.NUMA = uint32(d.Spot.Node)
	}
	return p
}

// local is what choosing a path needs of the device.
func (d *Device) local() LocalNIC {
	return LocalNIC{NIC: d.NIC, Active: d.Active(), Link: d.link(), GID: d.Context.Route().GID.GID, Name: wireName(d.Name)}
}

// locate finds the device in the machine.
func (d *Device) locate() {
	d.Spot = verbs.Spot{Node: d.Context.Device().NUMANode}
	if fs := d.transport.config.Sysfs; fs != nil {
		if spot, err := verbs.LocateNIC(fs, d.Name); err == nil {
			d.Spot = spot
		}
	}
}

// adopt makes the device of an opened context: its domain and identity. On failure the context is closed again, or
// stays with the domain that could not be freed.
func (t *Transport) adopt(c *verbs.Context) (*Device, error) {
	d := &Device{NIC: uint8(c.NIC()), Name: c.Device().Name, Context: c, transport: t}
	domain, err := c.AllocateDomain(t.config.KeyIndices)
	if err != nil {
		c.Fence("it has no protection domain: " + err.Error())
		_ = c.Close() // a refusal is in its book
		return nil, err
	}
	d.Domain, d.NoSource = domain, c.MaySource()
	d.Identity = t.identity()
	d.locate()
	return d, nil
}

// identity is a random number that is not zero.
func (t *Transport) identity() uint64 {
	for {
		var b [8]byte
		t.config.Random(b[:])
		if v := binary.BigEndian.Uint64(b[:]); v != 0 {
			return v
		}
	}
}

// incarnation is a new name for one end of a connection.
func (t *Transport) incarnation() netproto.Incarnation {
	for {
		var i netproto.Incarnation
		t.config.Random(i[:])
		if !i.IsZero() {
			return i
		}
	}
}
