package verbs

import "slices"

// Filter says which devices may be opened at all. A whitelist that is not empty wins over the blacklist (SPEC R-1).
type Filter struct {
	Whitelist, Blacklist []string // device names
}

// Allows is true exactly when a device of this name may be opened.
func (f Filter) Allows(name string) bool {
	if len(f.Whitelist) > 0 {
		return slices.Contains(f.Whitelist, name)
	}
	return !slices.Contains(f.Blacklist, name)
}

// NICsMax bounds the stable NIC IDs of one engine: a mask has a bit for each.
const NICsMax = 64

// Mask limits dispatch to some NICs, one bit for each stable NIC ID. It does not limit opening or registration. Zero
// stands for all of them.
type Mask uint64

// Has is true exactly when work may be dispatched to this NIC.
func (m Mask) Has(nic int) bool {
	return nic >= 0 && nic < NICsMax && (m == 0 || m&(1<<nic) != 0)
}

// Pins are strict choices: what is set never falls back to another device, port or address (SPEC R-1). Nil is the
// automatic choice.
type Pins struct {
	Device   string // empty: all that the filter allows
	Port     *uint8
	GIDIndex *int
}

// PinDevice pins a device with port 1 and GID index 0, as naming a device means.
func PinDevice(name string) Pins {
	port, index := uint8(1), 0
	return Pins{Device: name, Port: &port, GIDIndex: &index}
}
