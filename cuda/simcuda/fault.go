package simcuda

import (
	"time"

	"github.com/orbitte/orbitte/cuda"
)

// FaultKind is what goes wrong.
type FaultKind uint8

const (
	// FailCall makes a call fail with Result and Effect. With Maybe the seed decides whether what was asked happens all
	// the same. It needs Call: of a copy and a record each one of Submit counts; cuCtxPopCurrent_v2 is made by every
	// method that takes a context, after what was asked has happened.
	FailCall FaultKind = iota
	// SlowCall makes a slow call take By longer. It needs Call.
	SlowCall
	// SlowCopy makes a copy or a fill take By longer.
	SlowCopy
	// LoseCallback, LateCallback (by By) and DoubleCallback meet a host callback that the driver accepted.
	LoseCallback
	LateCallback
	DoubleCallback
	// LoseDevice breaks a device At after the plan was given: what runs on it never ends, its callbacks never run, and
	// every call of its contexts fails with Result from then on, for good.
	LoseDevice
	faultKinds
)

var faultNames = [faultKinds]string{"fail-call", "slow-call", "slow-copy", "lose-callback", "late-callback", "double-callback", "lose-device"}

func (k FaultKind) String() string { return faultNames[k] }

// Fault is one thing that goes wrong: what, to whom it applies (a zero field applies to all), and when.
type Fault struct {
	Kind   FaultKind
	Device int // 1 + ordinal
	Stream int // in the order in which streams are made, from 1
	Call   Call
	Index  int // how many fitting occurrences pass unharmed first
	Count  int // how many are then hit; 0: one; negative: all
	Result cuda.Result
	Effect cuda.Effect // None or Maybe
	By, At time.Duration
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

// Plan gives the driver faults, beside those that it has.
func (d *Driver) Plan(faults ...Fault) {
	d.enter()
	defer d.leave()
	for _, f := range faults {
		if f.Result == cuda.Success {
			f.Result = cuda.Unknown
		}
		if f.Kind != LoseDevice {
			d.plan = append(d.plan, &planned{Fault: f})
			continue
		}
		d.schedule(f.At, event{call: func() { d.lose(f) }})
	}
}

// Struck says how many of the faults that wait for an occurrence have struck at least once, and how many there are.
func (d *Driver) Struck() (struck, planned int) {
	d.enter()
	defer d.leave()
	for _, p := range d.plan {
		if p.seen > p.Index {
			struck++
		}
	}
	return struck, len(d.plan)
}

func (f *Fault) fits(v *device, s *stream) bool {
	return (f.Device == 0 || v != nil && f.Device == v.info.Ordinal+1) && (f.Stream == 0 || s != nil && f.Stream == s.number)
}

// strike finds the first fault of a kind that strikes; nil: none. Each that fits counts the occurrence until one strikes.
func (d *Driver) strike(kind FaultKind, c Call, v *device, s *stream) *Fault {
	for _, f := range d.plan {
		if f.Kind == kind && f.Call == c && f.fits(v, s) && f.hit() {
			return &f.Fault
		}
	}
	return nil
}

// late adds up what faults of a kind add to a time.
func (d *Driver) late(kind FaultKind, c Call, v *device, s *stream) (extra time.Duration) {
	for _, f := range d.plan {
		if f.Kind == kind && f.Call == c && f.fits(v, s) && f.hit() {
			extra += f.By
		}
	}
	return extra
}

// lose breaks devices.
func (d *Driver) lose(f Fault) {
	for _, v := range d.devices {
		if f.fits(v, nil) && v.lost == cuda.Success {
			v.lost = f.Result
		}
	}
}
