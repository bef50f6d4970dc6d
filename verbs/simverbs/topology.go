package simverbs

import (
	"fmt"
	"time"

	"github.com/orbitte/orbitte/verbs"
)

// DeviceSpec describes a device of a host. Zero values choose the defaults named with each field.
type DeviceSpec struct {
	Name       string
	GUID       uint64 // 0: made from the name and the host
	NUMANode   int
	PCI        string
	Accessible error      // why processes cannot open it; nil: they can
	NoWindows  bool       // it has no memory windows of type 2B, as many adapters that are no InfiniBand or RoCE ones
	Ports      []PortSpec // none: one port on the network "rail<n>", n being the device's place on the host
}

// PortSpec describes a port.
type PortSpec struct {
	Network       string // ports of one network reach each other
	InfiniBand    bool   // link layer; false: Ethernet
	Down          bool   // at the start
	MTU           int    // active; 0: Options.MTU
	LID           uint16
	TableSize     int              // of the GID table; 0: 16
	GIDs          []verbs.GIDEntry // nil: a link-local and an IPv4 RoCEv2 entry, made from the host's and port's places
	BitsPerSecond uint64           // 0: 100 Gbit/s
}

// Host is one machine. Its devices are shared by its processes.
type Host struct {
	fabric    *Fabric
	name      string
	place     int
	devices   []*Device
	processes []*Process
}

// Host adds a host, or returns the one that has this name (the devices are then left as they are). Without devices it
// has two: mlx5_0 and mlx5_1, or rxe0 and rxe1, each on a network of its own.
func (f *Fabric) Host(name string, devices ...DeviceSpec) *Host {
	f.enter()
	defer f.leave()
	for _, h := range f.hosts {
		if h.name == name {
			return h
		}
	}
	h := &Host{fabric: f, name: name, place: len(f.hosts) + 1}
	f.hosts = append(f.hosts, h)
	if len(devices) == 0 {
		format := "mlx5_%d"
		if f.soft() {
			format = "rxe%d"
		}
		devices = []DeviceSpec{{Name: fmt.Sprintf(format, 0)}, {Name: fmt.Sprintf(format, 1)}}
	}
	for _, spec := range devices {
		h.add(spec)
	}
	return h
}

// Name is the name that the host was given.
func (h *Host) Name() string { return h.name }

func (h *Host) add(spec DeviceSpec) {
	d := &Device{host: h, place: len(h.devices), spec: spec, keys: keyTable{owners: map[uint32]keyOwner{}}, pairs: map[verbs.PairNumber]*pair{}}
	d.limits = h.fabric.limits()
	if spec.NoWindows {
		d.limits.WindowsType2B, d.limits.Windows = false, 0
	}
	d.nextPair = verbs.PairNumber(16 + h.fabric.random.IntN(1<<16))
	d.keys.fresh = 1 + uint32(h.fabric.random.IntN(1<<12))
	if d.spec.GUID == 0 {
		d.spec.GUID = 0x02a0_0000_0000_0000 | uint64(h.place)<<16 | uint64(d.place+1)
	}
	ports := spec.Ports
	if len(ports) == 0 {
		ports = []PortSpec{{Network: fmt.Sprintf("rail%d", d.place)}}
	}
	for i, p := range ports {
		d.addPort(i, p)
	}
	d.limits.Ports = len(d.ports)
	h.devices = append(h.devices, d)
}

func (d *Device) addPort(i int, spec PortSpec) {
	f := d.host.fabric
	if spec.MTU == 0 {
		spec.MTU = f.options.MTU
	}
	if spec.TableSize == 0 {
		spec.TableSize = 16
	}
	if spec.BitsPerSecond == 0 {
		spec.BitsPerSecond = 100e9
	}
	p := &Port{device: d, number: uint8(i + 1), spec: spec, state: verbs.PortActive}
	if spec.Down {
		p.state = verbs.PortDown
	}
	p.gids = append(p.gids, spec.GIDs...)
	if spec.GIDs == nil {
		p.gids = p.defaultGIDs()
	}
	d.ports = append(d.ports, p)
}

func (p *Port) defaultGIDs() []verbs.GIDEntry {
	network := byte(p.device.place*8 + int(p.number))
	host := byte(p.device.host.place)
	link := verbs.GID{0: 0xfe, 1: 0x80, 8: 2, 13: network, 15: host}
	if p.spec.InfiniBand {
		return []verbs.GIDEntry{{Index: 0, GID: link, Type: verbs.GIDInfiniBand}}
	}
	name := fmt.Sprintf("eth%d", p.device.place)
	v4 := verbs.GID{10: 0xff, 11: 0xff, 12: 10, 13: 77, 14: network, 15: host}
	return []verbs.GIDEntry{{Index: 0, GID: link, Type: verbs.GIDRoCEv2, Interface: name}, {Index: 1, GID: v4, Type: verbs.GIDRoCEv2, Interface: name}}
}

// Device is one device of a host.
type Device struct {
	host     *Host
	place    int
	spec     DeviceSpec
	limits   verbs.Limits
	ports    []*Port
	removed  bool
	contexts []*context

	keys                keyTable
	pairs               map[verbs.PairNumber]*pair // live ones; looked up by key only
	nextPair, freedPair verbs.PairNumber
	counts              Live // whole device, against its limits
}

// Device returns the host's device of this name; it panics when there is none.
func (h *Host) Device(name string) *Device {
	if d := h.device(name); d != nil {
		return d
	}
	panic(fmt.Sprintf("simverbs: host %s has no device %s", h.name, name))
}

func (h *Host) device(name string) *Device {
	for _, d := range h.devices {
		if d.spec.Name == name {
			return d
		}
	}
	return nil
}

// Port returns the device's port of this number, from 1; it panics when there is none.
func (d *Device) Port(number int) *Port {
	if number < 1 || number > len(d.ports) {
		panic(fmt.Sprintf("simverbs: device %s has no port %d", d.spec.Name, number))
	}
	return d.ports[number-1]
}

// Remove takes the device out of the host: every process that has it open gets DEVICE_FATAL, every pair flushes, and
// only destroy calls still work.
func (d *Device) Remove() {
	d.host.fabric.enter()
	defer d.host.fabric.leave()
	d.remove()
}

func (d *Device) remove() {
	if d.removed {
		return
	}
	d.removed = true
	for _, p := range d.ports {
		p.state = verbs.PortDown
	}
	for _, c := range d.contexts {
		c.raise(verbs.AsyncEvent{Kind: verbs.AsyncDeviceFatal})
		for _, q := range c.process.pairsOf(c) {
			q.toError()
		}
	}
}

// Port is one port of a device.
type Port struct {
	device *Device
	number uint8
	spec   PortSpec
	state  verbs.PortState
	gids   []verbs.GIDEntry
}

// Down takes the port down: packets over it are lost, and every process that has the device open gets PORT_ERR.
func (p *Port) Down() { p.locked(p.down) }

// Up brings the port up again: PORT_ACTIVE, twice as rdma_rxe and some switches make it.
func (p *Port) Up() { p.locked(p.up) }

func (p *Port) locked(act func()) {
	p.device.host.fabric.enter()
	defer p.device.host.fabric.leave()
	act()
}

func (p *Port) down() {
	if p.state == verbs.PortDown {
		return
	}
	p.state = verbs.PortDown
	p.raise(verbs.AsyncPortError)
}

func (p *Port) up() {
	if p.state == verbs.PortActive || p.device.removed {
		return
	}
	p.state = verbs.PortActive
	p.raise(verbs.AsyncPortActive)
	p.raise(verbs.AsyncPortActive)
	if !p.spec.InfiniBand {
		p.raise(verbs.AsyncGIDChange)
	}
}

func (p *Port) raise(kind verbs.AsyncKind) {
	for _, c := range p.device.contexts {
		c.raise(verbs.AsyncEvent{Kind: kind, Port: p.number})
	}
}

// SetGID puts an entry into the table, in place of the one that has its index, and raises GID_CHANGE.
func (p *Port) SetGID(e verbs.GIDEntry) {
	p.locked(func() {
		p.insertGID(e)
		p.raise(verbs.AsyncGIDChange)
	})
}

func (p *Port) insertGID(e verbs.GIDEntry) {
	p.removeGID(e.Index)
	at := 0
	for at < len(p.gids) && p.gids[at].Index < e.Index {
		at++
	}
	p.gids = append(p.gids[:at], append([]verbs.GIDEntry{e}, p.gids[at:]...)...)
}

// RemoveGID empties an entry of the table and raises GID_CHANGE. Pairs that use it send nothing more.
func (p *Port) RemoveGID(index int) {
	p.locked(func() {
		if p.removeGID(index) {
			p.raise(verbs.AsyncGIDChange)
		}
	})
}

func (p *Port) removeGID(index int) bool {
	for i, e := range p.gids {
		if e.Index == index {
			p.gids = append(p.gids[:i:i], p.gids[i+1:]...)
			return true
		}
	}
	return false
}

func (p *Port) gid(index int) (verbs.GIDEntry, bool) {
	for _, e := range p.gids {
		if e.Index == index {
			return e, true
		}
	}
	return verbs.GIDEntry{}, false
}

func (p *Port) has(g verbs.GID) bool {
	for _, e := range p.gids {
		if e.GID == g {
			return true
		}
	}
	return false
}

// find returns the port of p's network that has an address.
func (p *Port) find(g verbs.GID) *Port {
	return p.search(func(other *Port) bool { return other.has(g) })
}

// findLID returns the port of p's network that has a LID.
func (p *Port) findLID(lid uint16) *Port {
	return p.search(func(other *Port) bool { return other.spec.LID == lid })
}

func (p *Port) search(fits func(*Port) bool) *Port {
	for _, h := range p.device.host.fabric.hosts {
		for _, d := range h.devices {
			for _, other := range d.ports {
				if other.spec.Network == p.spec.Network && !d.removed && fits(other) {
					return other
				}
			}
		}
	}
	return nil
}

// link is the way from one port to another.
type link struct {
	from, to           *Port
	cut                bool
	delayMin, delayMax time.Duration
}

func (f *Fabric) link(from, to *Port) *link {
	for _, l := range f.links {
		if l.from == from && l.to == to {
			return l
		}
	}
	l := &link{from: from, to: to, delayMin: f.options.DelayMin, delayMax: f.options.DelayMax}
	f.links = append(f.links, l)
	return l
}

// Cut makes packets between two ports vanish without a word, or ends that.
func (f *Fabric) Cut(a, b *Port, cut bool) {
	f.enter()
	defer f.leave()
	f.link(a, b).cut, f.link(b, a).cut = cut, cut
}

// Delay sets how long packets travel between two ports from now on.
func (f *Fabric) Delay(a, b *Port, shortest, longest time.Duration) {
	f.enter()
	defer f.leave()
	for _, l := range []*link{f.link(a, b), f.link(b, a)} {
		l.delayMin, l.delayMax = shortest, max(shortest, longest)
	}
}
