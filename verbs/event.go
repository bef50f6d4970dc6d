package verbs

import "fmt"

// Reach is how far an asynchronous event reaches, and so what has to be fenced or looked at.
type Reach uint8

const (
	// ReachNothing: only of interest in a trace.
	ReachNothing Reach = iota
	// ReachPort: look at the port now: Refresh.
	ReachPort
	// ReachPair: fence the pair that the event names.
	ReachPair
	// ReachQueue: fence the completion queue that the event names, and with it the pairs that complete into it.
	ReachQueue
	// ReachDevice: the context was fenced.
	ReachDevice
)

// Reach sorts the events of ibv_get_async_event(3).
func (k AsyncKind) Reach() Reach {
	switch k {
	case AsyncQueueError:
		return ReachQueue
	case AsyncPairFatal, AsyncPairRequestError, AsyncPairAccessError, AsyncPathMigrationError:
		return ReachPair
	case AsyncDeviceFatal:
		return ReachDevice
	case AsyncPortActive, AsyncPortError, AsyncLIDChange, AsyncPKeyChange, AsyncGIDChange, AsyncClientReregister:
		return ReachPort
	}
	return ReachNothing
}

var asyncNames = [...]string{
	"completion queue error", "queue pair fatal", "queue pair request error", "queue pair access error",
	"communication established", "send queue drained", "path migrated", "path migration error", "device fatal",
	"port active", "port error", "LID change", "P_Key change", "subnet manager change", "shared receive queue error",
	"shared receive queue limit", "last work request reached", "client reregister", "GID change",
}

func (k AsyncKind) String() string {
	if int(k) < len(asyncNames) {
		return asyncNames[k]
	}
	return fmt.Sprintf("asynchronous event %d", uint8(k))
}

// EventDescriptor becomes readable when NextEvent has something.
func (c *Context) EventDescriptor() int { return c.calls.AsyncDescriptor(c.handle) }

// NextEvent takes one asynchronous event; false: there is none. A fatal event fences the context, and so does a
// failure to read: a context whose events are lost cannot be trusted (SPEC R-19).
func (c *Context) NextEvent() (AsyncEvent, bool, error) {
	c.life.mustBeOpen(c.String(), "NextEvent")
	event, ok, err := c.calls.NextAsync(c.handle)
	switch {
	case err != nil:
		c.Fence("its events cannot be read: " + err.Error())
	case ok && event.Kind.Reach() == ReachDevice:
		c.Fence(event.Kind.String())
	}
	return event, ok, err
}
