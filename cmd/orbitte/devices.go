package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/libibverbs"
)

const devicesHelp = `usage: orbitte devices [--json]

Shows the RDMA devices and GPUs that an engine in this process would find, without moving a byte: the native
library, the limit of locked memory, each device with its NIC ID (the bit in RDMAConfig.DeviceMask, unless a
Whitelist or Blacklist leaves devices out: it counts those that are left), NUMA node and PCI address, each port with its state and link, and each GID in the order in which an engine that
pins none chooses, with the reason for its place. The first one of an active port is taken.

A device is usable when this process may open it, a port of it has an address, and it has memory windows
of type 2B, which a source needs for its grants. One whose port is down is found and waits for it.

GPUs are shown by their ordinal, with driver version, NUMA node and PCI address, memory, compute capability, what
the driver says about GPUDirect, and how far each RDMA device is (folders of both paths below /sys/devices that
are not shared; fewer is nearer). No context is made on any of them.

What is missing is named together with what to do: a library, a device, a permission, an address. TCP between host
memory needs none of it, and no request that names RDMA ever becomes TCP.

  --json               print it as one line of JSON; a failure is one more line, {"error":{…}}

exit status: 0 at least one RDMA device or GPU is usable, 1 none is, 2 wrong command line
`

// loadVerbs opens the native library; tests put a twin there.
var loadVerbs = libibverbs.Load

var (
	errNoRDMA   = errors.New("RDMA is not available")
	errNoDevice = errors.New("the library is there, but this process sees no RDMA device; load the adapter's driver (such as mlx5_ib), or make a " +
		"soft-RoCE device with `rdma link add rxe0 type rxe netdev eth0`; a container needs /dev/infiniband and /sys/class/infiniband")
)

// devicesView is what devices prints.
type devicesView struct {
	Library string       `json:"library,omitempty"`
	Path    string       `json:"path,omitempty"`
	Version string       `json:"version,omitempty"`
	Memlock memlockView  `json:"memlock"`
	Devices []deviceView `json:"devices"`
	Why     string       `json:"why,omitempty"` // there are no RDMA devices, or they cannot be looked at
	CUDA    cudaView     `json:"cuda"`

	json bool // printed as JSON: the failure is read without what stands above it
}

type memlockView struct {
	Bytes     uint64 `json:"bytes,omitempty"` // RLIMIT_MEMLOCK; absent when there is no limit
	Unlimited bool   `json:"unlimited"`
	Remedy    string `json:"remedy,omitempty"` // when the default budget of registered memory does not fit
}

type deviceView struct {
	NIC      int        `json:"nic"`
	Name     string     `json:"name"`
	GUID     string     `json:"guid"`
	NUMA     int        `json:"numa"` // -1: unknown
	PCI      string     `json:"pci,omitempty"`
	Firmware string     `json:"firmware,omitempty"`
	Usable   bool       `json:"usable"`
	Source   bool       `json:"source"`        // it can make grants, so that peers reach this host's memory through it
	Why      string     `json:"why,omitempty"` // not usable, not yet, or by requesters only
	Windows  string     `json:"windows,omitempty"`
	Limits   *limits    `json:"limits,omitempty"`
	Ports    []portView `json:"ports,omitempty"`
}

// limits are those of the device that bound an engine, shared by all processes of the host.
type limits struct {
	Pairs       int    `json:"queue_pairs"`
	PairWork    int    `json:"queue_pair_work"`
	Queues      int    `json:"completion_queues"`
	QueueDepth  int    `json:"completion_queue_entries"`
	Regions     int    `json:"memory_regions"`
	RegionBytes uint64 `json:"memory_region_bytes"`
	Windows     int    `json:"memory_windows"`
	Domains     int    `json:"protection_domains"`
}

type portView struct {
	Port          int       `json:"port"`
	State         string    `json:"state"`
	Link          string    `json:"link"`
	MTU           int       `json:"mtu"`
	BitsPerSecond uint64    `json:"bits_per_second,omitempty"`
	GIDs          []gidView `json:"gids"`
	Why           string    `json:"why,omitempty"` // it has no usable address
}

type gidView struct {
	Rank      int    `json:"rank"` // 1 is taken first
	Index     int    `json:"index"`
	GID       string `json:"gid"`
	Type      string `json:"type"`
	Interface string `json:"interface,omitempty"`
	Reason    string `json:"reason"`
}

func devices(_ context.Context, c *console, args []string) error {
	f := bareFlags("devices")
	operands, err := f.read(c, args)
	if err != nil {
		return err
	}
	if len(operands) > 0 {
		return usage("devices takes no operands")
	}
	view := devicesNow()
	view.json = f.json
	if f.json {
		err = json.NewEncoder(c.out).Encode(view) // also when none is usable: the failure is one more line
	} else {
		_, err = io.WriteString(c.out, view.text())
	}
	if err != nil {
		return err
	}
	return view.verdict()
}

// devicesNow looks at everything; what cannot be looked at says why.
func devicesNow() *devicesView {
	view := &devicesView{Memlock: memlockNow(), Devices: []deviceView{}}
	if err := view.lookAtNICs(); err != nil {
		view.Why = err.Error()
	}
	view.CUDA = gpusNow(view.Devices)
	return view
}

func (v *devicesView) lookAtNICs() error {
	calls, err := loadVerbs()
	if err != nil {
		return err
	}
	library := calls.Library()
	v.Library, v.Path, v.Version = library.Name, library.Path, library.Version
	seen, err := calls.Devices()
	if err != nil {
		return err
	}
	if len(seen) == 0 {
		return errNoDevice
	}
	ordered, err := verbs.Candidates(seen, verbs.Filter{}, verbs.Pins{})
	if err != nil {
		return err
	}
	for nic, info := range ordered {
		v.Devices = append(v.Devices, look(calls, nic, info))
	}
	return nil
}

// memlockNow reads RLIMIT_MEMLOCK, and asks whether the registered memory of an engine with the default budget fits.
func memlockNow() memlockView {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err != nil {
		return memlockView{Remedy: "it cannot be read: " + err.Error()}
	}
	m := memlockView{Bytes: r.Cur}
	if r.Cur == math.MaxUint64 {
		m = memlockView{Unlimited: true}
	}
	if err := libibverbs.MemoryLockAllows(64 << 20); err != nil {
		m.Remedy = err.Error()
	}
	return m
}

// look opens one device, reads it, and closes it again.
func look(calls verbs.Calls, nic int, info verbs.DeviceInfo) (v deviceView) {
	v = deviceView{NIC: nic, Name: info.Name, GUID: fmt.Sprintf("%016x", info.GUID), NUMA: info.NUMANode, PCI: info.PCI}
	if info.Accessible != nil {
		v.Why = "it cannot be opened: " + info.Accessible.Error()
		return v
	}
	handle, err := calls.OpenDevice(info.Name)
	if err != nil {
		v.Why = err.Error()
		return v
	}
	defer func() {
		if err := calls.CloseDevice(handle); err != nil && v.Why == "" {
			v.Usable, v.Why = false, err.Error()
		}
	}()
	l, err := calls.DeviceLimits(handle)
	if err != nil {
		v.Why = err.Error()
		return v
	}
	v.Firmware = l.Firmware
	v.Limits = &limits{l.Pairs, l.PairWork, l.Queues, l.QueueDepth, l.Regions, l.RegionBytes, l.Windows, l.Domains}
	v.Windows = "type 2B, as sources need"
	if !l.WindowsType2B {
		v.Windows = "no type 2B: usable as requester only"
	}
	for port := 1; port <= min(l.Ports, math.MaxUint8); port++ {
		v.Ports = append(v.Ports, lookAtPort(calls, handle, port))
	}
	v.Source = l.WindowsType2B
	v.judge(l.WindowsType2B)
	return v
}

func lookAtPort(calls verbs.Calls, handle verbs.DeviceHandle, port int) portView {
	v := portView{Port: port, GIDs: []gidView{}}
	info, err := calls.Port(handle, uint8(port))
	if err != nil {
		v.State, v.Why = "unknown", err.Error()
		return v
	}
	v.State, v.MTU, v.BitsPerSecond, v.Link = info.State.String(), info.MTU, info.BitsPerSecond, "InfiniBand"
	if info.Ethernet {
		v.Link = "Ethernet"
	}
	entries, err := calls.GIDs(handle, uint8(port))
	if err != nil {
		v.Why = err.Error()
		return v
	}
	for i, g := range verbs.RankGIDs(entries) {
		v.GIDs = append(v.GIDs, gidView{i + 1, g.Index, g.GID.String(), g.Type.String(), g.Interface, g.Class.String()})
	}
	if len(v.GIDs) == 0 {
		v.Why = "its GID table is empty: give the network interface an address"
	}
	return v
}

// judge says whether an engine can use the device.
func (v *deviceView) judge(windows bool) {
	addressed := false
	for _, p := range v.Ports {
		addressed = addressed || len(p.GIDs) > 0
		v.Usable = v.Usable || len(p.GIDs) > 0 && p.State == verbs.PortActive.String()
	}
	switch {
	case len(v.Ports) == 0:
		v.Why = "it has no ports"
	case !addressed:
		v.Why = "none of its ports has an address"
	case !v.Usable:
		v.Why = "no port with an address is active: an engine that finds another device keeps this one and waits for its port"
	case !windows:
		v.Why = (&verbs.NoWindowsError{Device: v.Name}).Error()
	}
}

// verdict is the failure of a host on which nothing is usable, neither device nor GPU.
func (v *devicesView) verdict() error {
	if v.CUDA.usable() {
		return nil
	}
	for _, d := range v.Devices {
		if d.Usable {
			return nil
		}
	}
	what, remedy := "there is neither an RDMA device nor a GPU", "do what is said above about what is missing, if this host should have one"
	if len(v.Devices)+len(v.CUDA.GPUs) > 0 {
		what, remedy = "no device is usable", "correct what is said above about one of the devices"
	}
	cause := error(errors.New(what))
	if v.json {
		cause = fmt.Errorf("%s: %s; %w: %s", what, v.reason(), errNoCUDA, v.CUDA.reason())
	}
	return &failure{class: errNoRDMA, cause: cause, known: "an engine with Config.RDMA or Config.CUDA does not open here; TCP between host memory needs none of this", remedy: remedy}
}

// reason says why no RDMA device is usable.
func (v *devicesView) reason() string {
	if v.Why != "" {
		return v.Why
	}
	var reasons []string
	for _, d := range v.Devices {
		reasons = append(reasons, d.Name+": "+d.Why)
	}
	return strings.Join(reasons, "; ")
}

func (v *devicesView) text() string {
	var text strings.Builder
	if v.Library != "" {
		fmt.Fprintf(&text, "library         %s\n", strings.TrimSpace(v.Library+" "+v.Version+" "+v.Path))
	}
	lock := "unlimited"
	if !v.Memlock.Unlimited {
		lock = strconv.FormatUint(v.Memlock.Bytes, 10) + " bytes"
	}
	fmt.Fprintf(&text, "locked memory   %s\n", lock)
	if v.Memlock.Remedy != "" {
		fmt.Fprintf(&text, "                %s\n", v.Memlock.Remedy)
	}
	if v.Why != "" {
		fmt.Fprintf(&text, "RDMA devices    none: %s\n", v.Why)
		text.WriteString(v.CUDA.text())
		return text.String()
	}
	rows := [][]string{{"\nNIC", "device", "usable", "NUMA", "PCI", "windows", "firmware"}}
	for _, d := range v.Devices {
		rows = append(rows, []string{strconv.Itoa(d.NIC), d.Name, yesNo(d.Usable), known(d.NUMA), dash(d.PCI), dash(d.Windows), dash(d.Firmware)})
	}
	text.WriteString(table(rows))
	for _, d := range v.Devices {
		text.WriteString(d.text())
	}
	text.WriteString(v.CUDA.text())
	return text.String()
}

func (d *deviceView) text() string {
	var text strings.Builder
	fmt.Fprintf(&text, "\n%s\n", d.Name)
	if d.Why != "" {
		fmt.Fprintf(&text, "  %s\n", d.Why)
	}
	if l := d.Limits; l != nil {
		fmt.Fprintf(&text, "  at most %d queue pairs of %d requests, %d completion queues of %d entries, %d memory regions of %d bytes, %d windows, %d domains\n",
			l.Pairs, l.PairWork, l.Queues, l.QueueDepth, l.Regions, l.RegionBytes, l.Windows, l.Domains)
	}
	for _, p := range d.Ports {
		fmt.Fprintf(&text, "  port %d: %s, %s, MTU %d, %s\n", p.Port, p.State, dash(p.Link), p.MTU, speed(p.BitsPerSecond))
		if p.Why != "" {
			fmt.Fprintf(&text, "    %s\n", p.Why)
		}
		if len(p.GIDs) == 0 {
			continue
		}
		rows := [][]string{{"rank", "index", "GID", "type", "interface", "reason"}}
		for _, g := range p.GIDs {
			rows = append(rows, []string{strconv.Itoa(g.Rank), strconv.Itoa(g.Index), g.GID, g.Type, dash(g.Interface), g.Reason})
		}
		for line := range strings.Lines(table(rows)) {
			text.WriteString("    " + line)
		}
	}
	return text.String()
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func known(node int) string {
	if node < 0 {
		return "unknown"
	}
	return strconv.Itoa(node)
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func speed(bits uint64) string {
	if bits == 0 {
		return "speed unknown"
	}
	return fmt.Sprintf("%g Gbit/s", float64(bits)/1e9)
}
