package rdma

import (
	"github.com/orbitte/orbitte/verbs"
)

// tamper stands between the owners and the twin. Each hook may be nil.
type tamper struct {
	verbs.Calls
	trace []string // calls that end or move something, in order
	deaf  bool     // true exactly when asynchronous events are lost
}

func (t *tamper) note(call string, err error) error {
	if err != nil {
		call += " refused"
	}
	t.trace = append(t.trace, call)
	return err
}

func (t *tamper) NextAsync(d verbs.DeviceHandle) (verbs.AsyncEvent, bool, error) {
	event, ok, err := t.Calls.NextAsync(d)
	for t.deaf && ok && err == nil {
		event, ok, err = t.Calls.NextAsync(d)
	}
	return event, ok, err
}

func (t *tamper) ModifyPair(h verbs.PairHandle, to verbs.Transition) error {
	err := t.Calls.ModifyPair(h, to)
	if to.To == verbs.PairError {
		return t.note("error state", err)
	}
	return err
}

func (t *tamper) DestroyPair(h verbs.PairHandle) error {
	return t.note("destroy pair", t.Calls.DestroyPair(h))
}

func (t *tamper) FreeWindow(h verbs.WindowHandle) error {
	return t.note("free window", t.Calls.FreeWindow(h))
}

func (t *tamper) Deregister(h verbs.RegionHandle) error {
	return t.note("deregister", t.Calls.Deregister(h))
}

func (t *tamper) FreeDomain(h verbs.DomainHandle) error {
	return t.note("free domain", t.Calls.FreeDomain(h))
}

func (t *tamper) DestroyQueue(h verbs.QueueHandle) error {
	return t.note("destroy queue", t.Calls.DestroyQueue(h))
}

func (t *tamper) DestroyChannel(h verbs.ChannelHandle) error {
	return t.note("destroy channel", t.Calls.DestroyChannel(h))
}

func (t *tamper) CloseDevice(h verbs.DeviceHandle) error {
	return t.note("close device", t.Calls.CloseDevice(h))
}
