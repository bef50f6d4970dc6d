package netproto

// Bodies of remote staging (C-8): a source pins chunks of its staging memory, called slots, for one requester and one
// device range, copies between slot and range when it is told to, and takes the slots back. The payload goes between
// requester and slot by operations 1 and 2, for which each slot is a region of its own (SlotRegion). The request of a pin
// names region, offset and length of the device range; those of delegate and unpin have the size of their body as length.
// The layouts are the project's:
//
//	pin (operation 68), 32: requester epoch 16, pin generation 8, slots 1, direction 1, zero 6
//	pinned (payload of its success reply), 24: number 8, bytes of a slot 8, slots 1, zero 7
//	pin name, 32: requester epoch 16, pin generation 8, number 8
//	delegate (operation 69), 40 + 24 a copy
//	  pin name 32, copies 1, zero 7
//	  each copy: slot 1, zero 7, offset in the pinned range 8, length 8
//	unpin (operation 70), 32: pin name
const (
	PinSize          = 32
	PinnedSize       = 24
	PinNameSize      = 32
	DelegateHeadSize = PinNameSize + 8
	DelegateCopySize = 24

	// PinSlotsMax bounds the slots of one pin, and the copies of one delegate.
	PinSlotsMax = 16
	// DelegateSizeMax bounds the body of operation 69.
	DelegateSizeMax = DelegateHeadSize + PinSlotsMax*DelegateCopySize

	// slotBits is the width of a slot's number in its region ID.
	slotBits = 4
	// slotRegionBit is set exactly in the region IDs of slots: those of registrations count up from 1.
	slotRegionBit = uint64(1) << 63
	// pinNumberMax is the last number that a source can give a pin.
	pinNumberMax = slotRegionBit>>slotBits - 1
)

const (
	pinFrame      = "pin"
	pinnedFrame   = "pinned"
	delegateFrame = "delegate"
	unpinFrame    = "unpin"
)

// PinDirection says which way a pin's copies go.
type PinDirection uint8

// The directions, as the requester sees them.
const (
	PinRead  PinDirection = 1 // device range → slot
	PinWrite PinDirection = 2 // slot → device range
)

// Pin asks a source for slots. The request in front of it names the device range.
type Pin struct {
	Requester  Epoch  // the requester's life
	Generation uint64 // of the pin: rises in the requester's life, never zero
	Slots      uint8  // at most so many are wanted, 1 to PinSlotsMax
	Direction  PinDirection
}

// Pinned is what a source has pinned. It is no authority by itself: pins are bound to the stream that they came by.
type Pinned struct {
	Number    uint64 // of the pin: rises in the source's life, never zero
	SlotBytes uint64
	Slots     uint8 // 1 to as many as were wanted
}

// PinName names one pin in the words of both sides: an old name finds nothing.
type PinName struct {
	Requester  Epoch
	Generation uint64
	Number     uint64
}

// Delegate asks a source for copies between slots of a pin and parts of its range. All are begun, or none.
type Delegate struct {
	Pin    PinName
	Copies []DelegateCopy
}

// DelegateCopy is one copy, from or to the front of a slot.
type DelegateCopy struct {
	Slot           uint8
	Offset, Length uint64 // inside the pinned range
}

// SlotRegion is the region ID by which operations 1 and 2 name a slot. It is never used again in the source's life.
func SlotRegion(pin uint64, slot uint8) uint64 {
	return slotRegionBit | pin<<slotBits | uint64(slot)
}

// SlotOf reads the region ID of a slot; false: it is that of a registration.
func SlotOf(region uint64) (pin uint64, slot uint8, ok bool) {
	return region &^ slotRegionBit >> slotBits, uint8(region) & (PinSlotsMax - 1), region&slotRegionBit != 0
}

// AppendPin appends the body of operation 68.
func AppendPin(dst []byte, p Pin) []byte {
	dst = append(dst, p.Requester[:]...)
	dst = order.AppendUint64(dst, p.Generation)
	return append(dst, p.Slots, byte(p.Direction), 0, 0, 0, 0, 0, 0)
}

// DecodePin reads exactly PinSize bytes; the error is a *FrameError.
func DecodePin(b []byte) (Pin, error) {
	if len(b) != PinSize {
		return Pin{}, refuseSize(pinFrame, uint64(len(b)), PinSize)
	}
	p := Pin{Requester: Epoch(b), Generation: order.Uint64(b[16:]), Slots: b[24], Direction: PinDirection(b[25])}
	switch {
	case !isZero(b[26:]):
		return Pin{}, refuse(pinFrame, "reserved bytes", uint64(order.Uint16(b[26:])), "0")
	case p.Requester.IsZero():
		return Pin{}, refuse(pinFrame, "requester epoch", 0, "a life of a requester")
	case p.Generation == 0:
		return Pin{}, refuse(pinFrame, "pin generation", 0, "1 or more")
	case p.Slots == 0 || p.Slots > PinSlotsMax:
		return Pin{}, refuse(pinFrame, "slots", uint64(p.Slots), "1 to 16")
	case p.Direction != PinRead && p.Direction != PinWrite:
		return Pin{}, refuse(pinFrame, "direction", uint64(p.Direction), "1 or 2")
	}
	return p, nil
}

// AppendPinned appends the payload of the success reply to a pin.
func AppendPinned(dst []byte, p Pinned) []byte {
	dst = order.AppendUint64(dst, p.Number)
	dst = order.AppendUint64(dst, p.SlotBytes)
	return append(dst, p.Slots, 0, 0, 0, 0, 0, 0, 0)
}

// DecodePinned reads the answer to a pin, exactly PinnedSize bytes; the error is a *FrameError.
func DecodePinned(asked Pin, b []byte) (Pinned, error) {
	if len(b) != PinnedSize {
		return Pinned{}, refuseSize(pinnedFrame, uint64(len(b)), PinnedSize)
	}
	p := Pinned{Number: order.Uint64(b), SlotBytes: order.Uint64(b[8:]), Slots: b[16]}
	switch {
	case !isZero(b[17:]):
		return Pinned{}, refuse(pinnedFrame, "reserved bytes", uint64(b[17]), "0")
	case p.Number == 0 || p.Number > pinNumberMax:
		return Pinned{}, refuse(pinnedFrame, "pin number", p.Number, "1 to 2^59-1")
	case p.SlotBytes == 0 || p.SlotBytes > PayloadBytesMax:
		return Pinned{}, refuse(pinnedFrame, "bytes of a slot", p.SlotBytes, "1 to 67108864")
	case p.Slots == 0 || p.Slots > asked.Slots:
		return Pinned{}, refuse(pinnedFrame, "slots", uint64(p.Slots), "1 to as many as were asked for")
	}
	return p, nil
}

func appendPinName(dst []byte, p PinName) []byte {
	dst = append(dst, p.Requester[:]...)
	dst = order.AppendUint64(dst, p.Generation)
	return order.AppendUint64(dst, p.Number)
}

// decodePinName reads a name from the front of b, which is long enough.
func decodePinName(frame string, b []byte) (PinName, error) {
	p := PinName{Requester: Epoch(b), Generation: order.Uint64(b[16:]), Number: order.Uint64(b[24:])}
	switch {
	case p.Requester.IsZero():
		return p, refuse(frame, "requester epoch", 0, "a life of a requester")
	case p.Generation == 0:
		return p, refuse(frame, "pin generation", 0, "1 or more")
	case p.Number == 0 || p.Number > pinNumberMax:
		return p, refuse(frame, "pin number", p.Number, "1 to 2^59-1")
	}
	return p, nil
}

// AppendDelegate appends the body of operation 69. It encodes any value with at most 255 copies.
func AppendDelegate(dst []byte, d *Delegate) []byte {
	dst = appendPinName(dst, d.Pin)
	dst = append(dst, byte(len(d.Copies)), 0, 0, 0, 0, 0, 0, 0)
	for _, c := range d.Copies {
		dst = append(dst, c.Slot, 0, 0, 0, 0, 0, 0, 0)
		dst = order.AppendUint64(dst, c.Offset)
		dst = order.AppendUint64(dst, c.Length)
	}
	return dst
}

// DecodeDelegate reads a whole body into d, reusing its copies; d is undefined after an error, which is a *FrameError. No
// two copies name the same slot. It allocates only while d's copies grow, at most to PinSlotsMax.
func DecodeDelegate(d *Delegate, b []byte) (err error) {
	if len(b) < DelegateHeadSize {
		return refuseSize(delegateFrame, uint64(len(b)), DelegateHeadSize)
	}
	n := int(b[PinNameSize])
	switch {
	case n == 0 || n > PinSlotsMax:
		return refuse(delegateFrame, "copies", uint64(n), "1 to 16")
	case len(b) != DelegateHeadSize+n*DelegateCopySize:
		return refuseSize(delegateFrame, uint64(len(b)), uint64(DelegateHeadSize+n*DelegateCopySize))
	case !isZero(b[PinNameSize+1 : DelegateHeadSize]):
		return refuse(delegateFrame, "reserved bytes", uint64(b[PinNameSize+1]), "0")
	}
	if d.Pin, err = decodePinName(delegateFrame, b); err != nil {
		return err
	}
	d.Copies = d.Copies[:0]
	var named uint32
	for i := range n {
		at := b[DelegateHeadSize+i*DelegateCopySize:]
		c := DelegateCopy{Slot: at[0], Offset: order.Uint64(at[8:]), Length: order.Uint64(at[16:])}
		switch {
		case !isZero(at[1:8]):
			return refuse(delegateFrame, "reserved bytes of a copy", uint64(at[1]), "0").at(i)
		case c.Slot >= PinSlotsMax || named&(1<<c.Slot) != 0:
			return refuse(delegateFrame, "slot", uint64(c.Slot), "below 16, each once").at(i)
		case c.Length == 0 || c.Length > PayloadBytesMax:
			return refuse(delegateFrame, "length", c.Length, "1 to 67108864").at(i).with(StatusInvalidRange)
		case c.Length > ^uint64(0)-c.Offset:
			return refuse(delegateFrame, "offset", c.Offset, "a range that ends below 2^64").at(i).with(StatusInvalidRange)
		}
		named |= 1 << c.Slot
		d.Copies = append(d.Copies, c)
	}
	return nil
}

// AppendUnpin appends the body of operation 70.
func AppendUnpin(dst []byte, p PinName) []byte { return appendPinName(dst, p) }

// DecodeUnpin reads exactly PinNameSize bytes; the error is a *FrameError.
func DecodeUnpin(b []byte) (PinName, error) {
	if len(b) != PinNameSize {
		return PinName{}, refuseSize(unpinFrame, uint64(len(b)), PinNameSize)
	}
	return decodePinName(unpinFrame, b)
}
