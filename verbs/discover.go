package verbs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// SelectionError says that a device cannot be selected.
type SelectionError struct {
	Device string // empty: none at all
	Why    string
	Err    error
}

func (e *SelectionError) Error() string {
	what := "no RDMA device is usable"
	if e.Device != "" {
		what = fmt.Sprintf("RDMA device %q is not usable", e.Device)
	}
	text := what + ": " + e.Why
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text + "; nothing was opened in its place; see `orbitte devices`"
}

// Is matches ErrSelection.
func (e *SelectionError) Is(target error) bool { return target == ErrSelection }

// Unwrap gives the underlying error.
func (e *SelectionError) Unwrap() error { return e.Err }

// Slot is one stable NIC ID: its context, or why there is none. A failed slot keeps its number (SPEC R-2).
type Slot struct {
	Info DeviceInfo
	// Context is nil when nothing was left open. With an error it is fenced and retained.
	Context *Context
	Err     error
}

// Candidates lists the devices that the filter and the pins allow, in the order of their names, digits by value. The
// position is the stable NIC ID.
func Candidates(devices []DeviceInfo, f Filter, pins Pins) ([]DeviceInfo, error) {
	var allowed []DeviceInfo
	for _, d := range devices {
		if f.Allows(d.Name) && (pins.Device == "" || pins.Device == d.Name) {
			allowed = append(allowed, d)
		}
	}
	if len(allowed) == 0 {
		return nil, noCandidate(devices, f, pins)
	}
	slices.SortFunc(allowed, func(a, b DeviceInfo) int { return compareNames(a.Name, b.Name) })
	if len(allowed) > NICsMax {
		return nil, &SelectionError{Why: fmt.Sprintf("%d devices are allowed, at most %d can have a NIC ID: narrow the whitelist", len(allowed), NICsMax)}
	}
	return allowed, nil
}

func noCandidate(devices []DeviceInfo, f Filter, pins Pins) error {
	var names []string
	for _, d := range devices {
		names = append(names, d.Name)
	}
	have := "this process sees none"
	if len(names) > 0 {
		have = "this process sees " + strings.Join(names, ", ")
	}
	switch {
	case pins.Device != "" && slices.Contains(names, pins.Device) && !f.Allows(pins.Device):
		return &SelectionError{Device: pins.Device, Why: "the whitelist or blacklist excludes it"}
	case pins.Device != "":
		return &SelectionError{Device: pins.Device, Why: have}
	case len(names) > 0:
		return &SelectionError{Why: have + ", the whitelist or blacklist excludes all of them"}
	}
	return &SelectionError{Why: have}
}

// compareNames orders "mlx5_2" before "mlx5_10".
func compareNames(a, b string) int {
	stemA, numberA := splitNumber(a)
	stemB, numberB := splitNumber(b)
	return cmp.Or(strings.Compare(stemA, stemB), cmp.Compare(len(numberA), len(numberB)), strings.Compare(numberA, numberB), strings.Compare(a, b))
}

func splitNumber(name string) (stem, number string) {
	stem = strings.TrimRight(name, "0123456789")
	return stem, strings.TrimLeft(name[len(stem):], "0")
}

// Discover opens every allowed device (SPEC ). It fails only when no slot has a usable context; a pinned
// device must be that one. The slots are returned in any case, since a failed one may hold a retained context. Slow.
func Discover(calls Calls, f Filter, pins Pins) ([]Slot, error) {
	devices, err := calls.Devices()
	if err != nil {
		return nil, err
	}
	candidates, err := Candidates(devices, f, pins)
	if err != nil {
		return nil, err
	}
	slots := make([]Slot, len(candidates))
	usable := 0
	for i, info := range candidates {
		slots[i].Info = info
		slots[i].Context, slots[i].Err = Open(calls, i, info, pins)
		if slots[i].Err == nil {
			usable++
		}
	}
	if usable == 0 {
		return slots, &SelectionError{Device: pins.Device, Why: fmt.Sprintf("none of %d could be opened", len(slots)), Err: slotErrors(slots)}
	}
	return slots, nil
}

// slotErrors are the reasons of all slots, each with its device's name (field case F-70).
type slotErrors []Slot

func (list slotErrors) Error() string {
	var texts []string
	for i := range list {
		texts = append(texts, list[i].Info.Name+": "+list[i].Err.Error())
	}
	return strings.Join(texts, "; ")
}

// Unwrap gives all of them.
func (list slotErrors) Unwrap() []error {
	all := make([]error, len(list))
	for i := range list {
		all[i] = list[i].Err
	}
	return all
}
