package verbstest

import (
	"fmt"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/verbs"
)

var lifeCases = []conformance{
	{"DevicesAreListedAndDescribed", describeDevices},
	{"UnknownDevicesAndPortsAreRefused", unknownNames},
	{"NothingEndsBeforeWhatDependsOnIt", endOrder},
	{"RegistrationRefusesWhatTheKernelRefuses", refusedRegistrations},
	{"QueueDepthsHaveLimits", depthLimits},
	{"PairsFollowTheStateTable", stateTable},
	{"AddressesAreChecked", addresses},
	{"ObjectsComeAndGo", comeAndGo},
}

// describeDevices: ibv_get_device_list(3), ibv_query_device(3), ibv_query_port(3), ibv_query_gid_ex(3).
func describeDevices(r *rig) {
	if l := r.a.Library(); l.Name == "" {
		r.Error("the library has no name")
	}
	for _, s := range []*side{r.a, r.b} {
		devices, err := s.Devices()
		r.must(err)
		i := slices.IndexFunc(devices, func(d verbs.DeviceInfo) bool { return d.Name == s.where.Device })
		if i < 0 || devices[i].Accessible != nil || devices[i].GUID == 0 {
			r.Fatalf("device %s is not listed as accessible with a GUID: %+v", s.where.Device, devices)
		}
		l, err := s.DeviceLimits(s.device)
		r.must(err)
		if min(l.Pairs, l.PairWork, l.SGE, l.Queues, l.QueueDepth, l.Regions, l.Windows, l.Domains, l.ReadAtomic, l.Ports) < 1 || l.RegionBytes == 0 || !l.WindowsType2B {
			r.Errorf("limits of %s: %+v", s.where.Device, l)
		}
		if p := s.port; p.State != verbs.PortActive || p.MTU < 256 || p.GIDs < 1 || p.MaxMessage == 0 {
			r.Errorf("port %d of %s: %+v", s.where.Port, s.where.Device, p)
		}
		last := -1
		for _, e := range s.gids() {
			if e.Index <= last || e.Index >= s.port.GIDs || e.GID == (verbs.GID{}) {
				r.Errorf("GID entry %+v behind index %d in a table of %d", e, last, s.port.GIDs)
			}
			last = e.Index
		}
	}
}

func unknownNames(r *rig) {
	if d, err := r.a.OpenDevice("nonesuch_7"); err == nil {
		r.Error("a device that is not there was opened")
		_ = r.a.CloseDevice(d)
	}
	for _, port := range []uint8{0, 77} {
		_, err := r.a.Port(r.a.device, port)
		r.refused(fmt.Sprintf("port %d", port), err, syscall.EINVAL)
	}
}

// endOrder: ibv_alloc_pd(3), ibv_create_cq(3), ibv_create_comp_channel(3): EBUSY while something depends on it.
func endOrder(r *rig) {
	s := r.a
	d, err := s.AllocateDomain(s.device)
	r.must(err)
	c, err := s.CreateChannel(s.device)
	r.must(err)
	q, err := s.CreateQueue(s.device, 8, c)
	r.must(err)
	p, _, err := s.CreatePair(d, verbs.PairOptions{Sends: q, Receives: q, SendDepth: 4, ReceiveDepth: 4})
	r.must(err)
	r.refused("end of a queue with a pair", s.DestroyQueue(q), syscall.EBUSY)
	r.refused("end of a domain with a pair", s.FreeDomain(d), syscall.EBUSY)
	r.refused("end of a channel with a queue", s.DestroyChannel(c), syscall.EBUSY)
	r.must(s.DestroyPair(p))
	m := r.memory(4096, 0)
	region, _, _, err := s.Register(d, m.address, 4096, parent)
	r.must(err)
	r.refused("end of a domain with a region", s.FreeDomain(d), syscall.EBUSY)
	r.must(s.Deregister(region))
	w, _, err := s.AllocateWindow(d)
	r.must(err)
	r.refused("end of a domain with a window", s.FreeDomain(d), syscall.EBUSY)
	r.must(s.FreeWindow(w))
	r.must(s.FreeDomain(d))
	r.must(s.DestroyQueue(q))
	r.must(s.DestroyChannel(c))
}

// refusedRegistrations: ibv_reg_mr(3).
func refusedRegistrations(r *rig) {
	s, m := r.a, r.memory(3*4096, 0)
	try := func(what string, address, length uint64, a verbs.Access, errno syscall.Errno) {
		r.Helper()
		h, _, _, err := s.Register(s.domain, address, length, a)
		r.refused(what, err, errno)
		if err == nil {
			r.must(s.Deregister(h))
		}
	}
	try("length 0", m.address, 0, localOnly, syscall.EINVAL)
	try("remote writes without local writes", m.address, 4096, verbs.AccessRemoteWrite, syscall.EINVAL)
	try("a range that wraps", ^uint64(0)-100, 4096, localOnly, syscall.EINVAL)
	r.must(unix.Mprotect(m.bytes[4096:8192], unix.PROT_READ))
	try("a read-only page for local writes", m.address+4096, 100, localOnly, syscall.EFAULT)
	if h, _, _, err := s.Register(s.domain, m.address+4096, 100, verbs.AccessRemoteRead); err != nil {
		r.Errorf("a read-only page for reading: %v", err)
	} else {
		r.must(s.Deregister(h))
	}
	r.must(unix.Mprotect(m.bytes[4096:8192], unix.PROT_NONE))
	try("memory that cannot be read", m.address, 3*4096, localOnly, syscall.EFAULT)
}

// depthLimits: ibv_create_cq(3), ibv_create_qp(3): a device gives at least what was asked, or refuses.
func depthLimits(r *rig) {
	s := r.a
	l, err := s.DeviceLimits(s.device)
	r.must(err)
	for _, n := range []int{0, l.QueueDepth + 1} {
		if q, err := s.CreateQueue(s.device, n, 0); err == nil {
			r.Errorf("a completion queue of %d entries was made; the limit is %d", n, l.QueueDepth)
			r.must(s.DestroyQueue(q))
		}
	}
	q := s.queue(16, 0)
	if p, _, err := s.CreatePair(s.domain, verbs.PairOptions{Sends: q, Receives: q, SendDepth: l.PairWork + 1, ReceiveDepth: 1}); err == nil {
		r.Errorf("a pair of %d sends was made; the limit is %d", l.PairWork+1, l.PairWork)
		r.must(s.DestroyPair(p))
	}
}

// stateTable: ibv_modify_qp(3), IBTA 10.3.1.
func stateTable(r *rig) {
	o := shape{}
	o.complete()
	a, b := r.a.endpoint(o), r.b.endpoint(o)
	state := func(want verbs.PairState) {
		r.Helper()
		got, err := a.QueryPair(a.pair)
		r.must(err)
		if got != want {
			r.Errorf("the pair is in state %d, want %d", got, want)
		}
	}
	kept := 0 // sends that were refused and may be in the queue
	refuseSend := func() {
		r.Helper()
		n, err := a.PostSend(a.pair, []verbs.SendWork{{ID: uint64(kept), Operation: verbs.Send, Flags: verbs.Signaled}})
		r.refused("a send in this state", err, syscall.EINVAL)
		if n > 0 || n < 0 && r.Facts.CleanPostErrors.Holds {
			r.Errorf("%d sends accepted", n)
		}
		if n < 0 {
			kept++
		}
	}
	state(verbs.PairReset)
	r.refused("Reset to ReadyToReceive", a.ModifyPair(a.pair, a.receiving(o, b, 1)), syscall.EINVAL)
	r.refused("Reset to ReadyToSend", a.ModifyPair(a.pair, a.sending(o, 1)), syscall.EINVAL)
	refuseSend()
	wrong := a.initial(o)
	wrong.Port = 99
	r.refused("Init with port 99", a.ModifyPair(a.pair, wrong), syscall.EINVAL)
	r.must(a.ModifyPair(a.pair, a.initial(o)))
	state(verbs.PairInit)
	refuseSend()
	r.refused("Init to ReadyToSend", a.ModifyPair(a.pair, a.sending(o, 1)), syscall.EINVAL)
	m := r.a.region(64, 0, localOnly)
	a.receive(verbs.ReceiveWork{ID: 9, Address: m.address, Length: 64, LocalKey: m.local})
	r.must(a.ModifyPair(a.pair, a.receiving(o, b, psnB)))
	state(verbs.PairReadyToReceive)
	refuseSend()
	r.must(a.ModifyPair(a.pair, a.sending(o, psnA)))
	state(verbs.PairReadyToSend)
	r.must(a.ModifyPair(a.pair, verbs.Transition{To: verbs.PairError}))
	state(verbs.PairError)
	a.await(kept, 1)
	a.lastReceived(9, verbs.WorkFlushed)
	for i, c := range a.sent {
		a.check(c, uint64(i), []verbs.WorkStatus{verbs.WorkFlushed})
	}
	r.must(a.ModifyPair(a.pair, verbs.Transition{To: verbs.PairReset}))
	state(verbs.PairReset)
	a.sent, a.received = nil, nil
	r.join(a, b, o) // a reset pair serves again
	there := r.b.region(64, 0, everyone)
	a.do(write(1, m, 0, 64, there.address, there.remote))
}

// addresses: ibv_modify_qp(3) for RoCE; MEASURED.md for the errors.
func addresses(r *rig) {
	o := shape{}
	o.complete()
	a, b := r.a.endpoint(o), r.b.endpoint(o)
	r.must(a.ModifyPair(a.pair, a.initial(o)))
	try := func(what string, change func(*verbs.Transition), errnos ...syscall.Errno) {
		r.Helper()
		t := a.receiving(o, b, psnB)
		change(&t)
		r.refused(what, a.ModifyPair(a.pair, t), errnos...)
	}
	used := map[int]bool{}
	for _, e := range r.a.gids() {
		used[e.Index] = true
	}
	empty := 0
	for used[empty] {
		empty++
	}
	try("an index beyond the table", func(t *verbs.Transition) { t.SourceGID = r.a.port.GIDs }, syscall.EINVAL)
	if empty < r.a.port.GIDs {
		try("an empty entry", func(t *verbs.Transition) { t.SourceGID = empty }, syscall.ENODATA)
	}
	try("an IPv6 address from an IPv4 one", func(t *verbs.Transition) {
		t.RemoteGID = verbs.GID{0: 0xfd, 1: 0x77, 15: 2}
	}, syscall.EINVAL)
	began := r.Now()
	try("an address that nobody has", func(t *verbs.Transition) { t.RemoteGID[15] = 0xee }, syscall.ETIMEDOUT)
	if took := r.Now() - began; took > patience {
		r.Errorf("it took %v to find out that nobody has an address", took)
	}
	r.must(a.ModifyPair(a.pair, a.receiving(o, b, psnB))) // the pair is still good
}

// comeAndGo: objects leave nothing behind, whatever was made before them.
func comeAndGo(r *rig) {
	for range 20 {
		a, b := r.connect(shape{depth: 4})
		m, there := r.a.region(100, 1, localOnly), r.b.region(100, 2, everyone)
		a.do(write(1, m, 0, 100, there.address, there.remote))
		for _, e := range []*endpoint{a, b} {
			r.must(e.ModifyPair(e.pair, verbs.Transition{To: verbs.PairError}))
			e.destroy()
		}
		r.a.deregister(m)
		r.b.deregister(there)
	}
}
