package simverbs

import (
	"syscall"
	"time"

	"github.com/orbitte/orbitte/verbs"
)

// FaultKind is what goes wrong.
type FaultKind uint8

const (
	// FailCall makes a call return Errno without effect. It needs Call.
	FailCall FaultKind = iota
	// SlowCall makes a call take By longer. It needs Call.
	SlowCall
	// BadWork makes a post stop at Element with Errno, as bad_wr tells.
	BadWork
	// UnknownBadWork makes a post stop at Element with Errno, without telling where.
	UnknownBadWork
	// FailWork makes a piece of send work fail with Status when its turn comes.
	FailWork
	// LoseCompletion, LateCompletion (by By), DoubleCompletion, ForeignID (another wr_id) and ForeignPair (another
	// qp_num) meet a completion on its way into its queue.
	LoseCompletion
	LateCompletion
	DoubleCompletion
	ForeignID
	ForeignPair
	// FullQueue treats a queue as full: the completion is lost and CQ_ERR raised.
	FullQueue
	// LosePacket and DelayPacket (by By) meet one packet.
	LosePacket
	DelayPacket
	// DropPair lets all packets that a pair sends vanish, after Index of them.
	DropPair
	// DuplicateKey makes ibv_alloc_mw return a key whose index a live window has; StaleKey one with the index and tag of
	// the window that was freed last.
	DuplicateKey
	StaleKey
	// PortDown, PortUp, GIDRemove, GIDMove and DeviceRemove happen At after the plan was given.
	PortDown
	PortUp
	GIDRemove // the entry GID is emptied
	GIDMove   // the entry GID gets the index To
	DeviceRemove
	// KillProcess ends a process At after the plan was given.
	KillProcess
	faultKinds
)

var faultNames = [faultKinds]string{
	"fail-call", "slow-call", "bad-work", "unknown-bad-work", "fail-work", "lose-completion", "late-completion",
	"double-completion", "foreign-id", "foreign-pair", "full-queue", "lose-packet", "delay-packet", "drop-pair", "duplicate-key",
	"stale-key", "port-down", "port-up", "gid-remove", "gid-move", "device-remove", "kill-process",
}

func (k FaultKind) String() string { return faultNames[k] }

// timed is true for faults that happen by the clock, and not when something passes them.
func (k FaultKind) timed() bool { return k >= PortDown }

// Fault is one thing that goes wrong: what, to whom it applies (a zero field applies to all), and when.
type Fault struct {
	Kind    FaultKind
	Host    string
	Process string
	Device  string
	Port    int // 0: port 1
	Pair    int // in the order in which pairs are made on the fabric, from 1
	Queue   int // in the order in which completion queues are made, from 1
	Call    Call
	Index   int // how many fitting occurrences pass unharmed first
	Count   int // how many are then hit; 0: one; negative: all
	Element int // BadWork: in the posted list
	Errno   syscall.Errno
	Status  verbs.WorkStatus
	GID, To int
	By, At  time.Duration
}

// planned is a fault with how often it was passed.
type planned struct {
	Fault
	seen int
}

// hit counts an occurrence that fits, and says whether the fault strikes it.
func (p *planned) hit() bool {
	n := p.seen
	p.seen++
	return n >= p.Index && (p.Count < 0 || n < p.Index+max(1, p.Count))
}

// Plan gives the fabric faults, beside those that it has.
func (f *Fabric) Plan(faults ...Fault) {
	f.enter()
	defer f.leave()
	for _, fault := range faults {
		if fault.Errno == 0 {
			fault.Errno = syscall.EIO
		}
		if !fault.Kind.timed() {
			f.plan = append(f.plan, &planned{Fault: fault})
			continue
		}
		f.schedule(fault.At, event{kind: eventCall, call: func() { f.strike(fault) }})
	}
}

// Struck says how many of the faults that wait for an occurrence have struck at least once, and how many there are.
func (f *Fabric) Struck() (struck, planned int) {
	f.enter()
	defer f.leave()
	for _, p := range f.plan {
		if p.seen > p.Index {
			struck++
		}
	}
	return struck, len(f.plan)
}

func (f *Fault) fits(p *Process) bool {
	return (f.Host == "" || f.Host == p.host.name) && (f.Process == "" || f.Process == p.name)
}

func (f *Fault) fitsPair(q *pair) bool {
	return f.fits(q.process()) && (f.Device == "" || f.Device == q.device().spec.Name) && (f.Pair == 0 || f.Pair == q.ordinal)
}

// planCall says with what a call fails.
func (f *Fabric) planCall(p *Process, c Call) syscall.Errno {
	for _, fault := range f.plan {
		if fault.Kind == FailCall && fault.Call == c && fault.fits(p) && fault.hit() {
			return fault.Errno
		}
	}
	return 0
}

func (f *Fabric) planSlow(p *Process, c Call) time.Duration {
	for _, fault := range f.plan {
		if fault.Kind == SlowCall && fault.Call == c && fault.fits(p) && fault.hit() {
			return fault.By
		}
	}
	return 0
}

// planPost says where a post of n elements stops and whether the caller is told.
func (f *Fabric) planPost(q *pair, c Call, n int) (stop int, known bool, errno syscall.Errno) {
	for _, fault := range f.plan {
		kind := fault.Kind == BadWork || fault.Kind == UnknownBadWork
		if kind && (fault.Call == c || fault.Call == 0 && c == CallPostSend) && fault.fitsPair(q) && fault.hit() {
			return min(fault.Element, n), fault.Kind == BadWork, fault.Errno
		}
	}
	return 0, true, 0
}

// planKey says whether the key of a new window is one of the wrong kinds.
func (f *Fabric) planKey(p *Process, kind FaultKind) bool {
	for _, fault := range f.plan {
		if fault.Kind == kind && fault.fits(p) && fault.hit() {
			return true
		}
	}
	return false
}

func (f *Fabric) planWork(q *pair) verbs.WorkStatus {
	for _, fault := range f.plan {
		if fault.Kind == FailWork && fault.fitsPair(q) && fault.hit() {
			if fault.Status == verbs.WorkSuccess {
				return verbs.WorkGeneral
			}
			return fault.Status
		}
	}
	return verbs.WorkSuccess
}

func (f *Fabric) planCompletion(q *queue, p *pair) (Fault, bool) {
	for _, fault := range f.plan {
		if fault.Kind >= LoseCompletion && fault.Kind <= ForeignPair && fault.fitsPair(p) && (fault.Queue == 0 || fault.Queue == q.number) && fault.hit() {
			return fault.Fault, true
		}
	}
	return Fault{}, false
}

func (f *Fabric) planFull(q *queue) bool {
	for _, fault := range f.plan {
		if fault.Kind == FullQueue && fault.fits(q.context.process) && (fault.Queue == 0 || fault.Queue == q.number) && fault.hit() {
			return true
		}
	}
	return false
}

func (f *Fabric) planPacket(q *pair) (extra time.Duration, lost bool) {
	for _, fault := range f.plan {
		switch {
		case fault.Kind == LosePacket && fault.fitsPair(q) && fault.hit():
			return extra, true
		case fault.Kind == DropPair && fault.fitsPair(q):
			if fault.hit(); fault.seen > fault.Index {
				return extra, true
			}
		case fault.Kind == DelayPacket && fault.fitsPair(q) && fault.hit():
			extra += fault.By
		}
	}
	return extra, false
}

// strike carries out a fault whose time has come, on everything that it names.
func (f *Fabric) strike(fault Fault) {
	for _, h := range f.hosts {
		if fault.Host != "" && fault.Host != h.name {
			continue
		}
		for _, p := range h.processes {
			if fault.fits(p) {
				fault.strikeProcess(p)
			}
		}
		for _, d := range h.devices {
			if fault.Process == "" && (fault.Device == "" || fault.Device == d.spec.Name) {
				fault.strikeDevice(d)
			}
		}
	}
}

func (fault *Fault) strikeProcess(p *Process) {
	if fault.Kind == KillProcess {
		p.kill()
	}
}

func (fault *Fault) strikeDevice(d *Device) {
	if fault.Kind == DeviceRemove {
		d.remove()
		return
	}
	number := max(1, fault.Port)
	if number > len(d.ports) {
		return
	}
	port := d.ports[number-1]
	switch fault.Kind {
	case PortDown:
		port.down()
	case PortUp:
		port.up()
	case GIDRemove, GIDMove:
		e, ok := port.gid(fault.GID)
		if !ok {
			return
		}
		port.removeGID(fault.GID)
		if fault.Kind == GIDMove {
			e.Index = fault.To
			port.insertGID(e)
		}
		port.raise(verbs.AsyncGIDChange)
	}
}
