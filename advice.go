package orbitte

import (
	"errors"
	"strings"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/lanes"
	"github.com/orbitte/orbitte/lanes/delegate"
	"github.com/orbitte/orbitte/lanes/hptcp"
	"github.com/orbitte/orbitte/lanes/rdma"
	"github.com/orbitte/orbitte/reactor/uring"
)

// advice is what is known about an error of a class, and what to do about it (field case F-24).
type advice struct{ known, remedy string }

var advices = map[error]advice{
	ErrInvalid:       {"nothing was done", "correct the argument"},
	ErrClosed:        {"no byte was moved", "open a new engine or segment; if the peer's source is closed, find another peer"},
	ErrExhausted:     {"no byte was moved; what ran out is named", "wait for work to end, free what is held, or raise the limit that is named"},
	ErrUncovered:     {"nothing was posted", "register one range that covers the whole local range, or let each request lie in one registration"},
	ErrUnknownRegion: {"no byte was moved; region IDs are never reused, so an old one stays invalid", "refresh the segment and resolve the address again"},
	ErrPermission:    {"no byte was moved", "register the range at the source with the permission for this direction"},
	ErrConflict:      {"no byte of the range was changed", "order the accesses, then submit again"},
	ErrUnavailable:   {"no byte was moved; no other path was tried", "refresh the segment, and name a transport that both sides have; Segment.Path says which way is open"},
	ErrStaleEpoch:    {"no byte was moved; the peer restarted or another process has its address", "get the new epoch from the source's owner and open the segment again"},
	ErrUnreachable:   {"nothing was posted", "check endpoint, network and that the source runs, then submit again"},
	ErrDisconnected:  {"the stream was retired; the effects are in the report", "submit again"},
	ErrDeadline:      {"the stream was retired if the request was running; the effects are in the report", "submit again with a later deadline"},
	ErrCancelled:     {"the stream was retired if the request was running; the effects are in the report", "nothing, it was asked for"},
	ErrProtocol:      {"the stream was retired; the effects are in the report", "check that the endpoint is an OrbitTE source of the same protocol version"},
	ErrPeer:          {"the source answered that it failed; no byte was committed", "look at the source's log"},
	ErrUnquiesced:    {"work under way may still touch the memory, which stays owned and charged", "do not reuse the memory; call again to go on waiting, or look at RetainedResources"},
	ErrSystem:        {"the engine holds nothing for the failed call", "see the system's error"},
	ErrDevice:        {"the copies have ended; the effects are in the report", "see the driver's error; after an error that stays (cuda.CallError names it) only a new process can use that GPU again"},
}

// unknownRemedy is added where a WRITE's remote effect is unknown, whatever the class (SPEC T-10).
const unknownRemedy = "; the effect on the remote range is unknown, and what this WRITE sent may still come: before the range is trusted or written again " +
	"let its owner unregister it (every handle) and register it again, refresh the segment, then READ what is there or repeat the WRITE"

// situation is what kind of call failed, where what is known depends on it. The zero value is a submission,
// whose effects are in its report.
type situation uint8

const (
	submitting situation = iota
	waiting              // only a wait ended
	allocating           // memory of a CUDA driver that does not come to be
	freeing              // memory that a CUDA driver refuses to free
	copying              // Close of an engine whose GPU copies are not proven ended
	unposted             // the context had ended before anything was done
	asking               // the question that opens or refreshes a segment; there is no report
	notifying            // a notification, whose effect is in its report
	parting              // a segment is quiet, its stream has yet to end
	tearing              // only the engine's own streams, loops and log are left to end
	publishing           // a registration
	opening              // an engine that does not come to be
	keeping              // RDMA devices keep something for good
	midway               // a submission that was refused when bytes had moved, as a transfer over HP-TCP can be
)

// situations holds what is known where the class alone would mislead.
var situations = map[situation]map[error]advice{
	waiting: {
		ErrDeadline:  {"only the wait has ended; what is waited for goes on, and nothing is lost", "wait again, with a later deadline"},
		ErrCancelled: {"only the wait has ended; what is waited for goes on, and nothing is lost", "nothing, it was asked for; wait again for the result"},
	},
	unposted: {
		ErrDeadline:  {"nothing was posted: the context's deadline had passed before", "call again with a context that lasts"},
		ErrCancelled: {"nothing was posted: the context had been cancelled before", "nothing, it was asked for"},
	},
	asking: {
		ErrDisconnected: {"nothing was opened or refreshed, and no memory was touched", "call again; check that the source still runs"},
		ErrDeadline:     {"nothing was opened or refreshed, and no memory was touched", "call again with a later deadline; check endpoint, network and that the source runs"},
		ErrCancelled:    {"nothing was opened or refreshed, and no memory was touched", "nothing, it was asked for"},
		ErrProtocol:     {"nothing was opened or refreshed, and no memory was touched", "check that the endpoint is an OrbitTE source of the same protocol version"},
		ErrUnreachable:  {"nothing was opened or refreshed, and no memory was touched", "check endpoint, network and that the source runs, then call again"},
	},
	notifying: {
		ErrDisconnected: {"data stays moved; the notification report's Effect says whether the notification may have arrived", "send again if Effect is none; if it is unknown, a repeat may arrive twice"},
		ErrDeadline:     {"data stays moved; the notification report's Effect says whether the notification may have arrived", "send again, with a later deadline, if Effect is none; if it is unknown, a repeat may arrive twice"},
		ErrCancelled:    {"data stays moved; the notification report's Effect says whether the notification may have arrived", "nothing, it was asked for"},
		ErrProtocol:     {"data stays moved; the notification report's Effect says whether the notification may have arrived", "check that the endpoint is an OrbitTE source of the same protocol version"},
		ErrUnavailable:  {"the notification was not sent; data stays moved", "switch TCPNotifications or NotificationRPCFallback on, on both sides"},
	},
	parting: {
		ErrUnquiesced: {"every request on the segment has ended and no memory is touched on its behalf any more; only its stream has yet to close", "call CloseSegment again, with a context that lasts"},
	},
	publishing: {
		ErrUnavailable: {"nothing was registered", "open the engine with what is missing"},
	},
	opening: {
		ErrUnavailable: {"no engine was opened; no other path was taken in its place", "run `orbitte devices`, which says what is there and what is missing, then correct Config or the host"},
		ErrExhausted:   {"no engine was opened; no other kernel or path was taken in its place; what ran out is named", "free what is held, or raise the limit that is named, then open again"},
	},
	keeping: {
		ErrUnquiesced: {"the RDMA library refused to end what is named, and is not asked again: a device may still reach the memory behind it, which stays mapped and charged", "do not reuse that memory; look at RetainedResources; only the end of the process frees it"},
	},
	midway: {
		ErrClosed:        {"bytes were moved before the refusal; the effects are in the report", "open a new segment; if the peer's source is closed, find another peer and transfer all of it again"},
		ErrExhausted:     {"bytes were moved before what ran out was needed; the effects are in the report", "wait for work to end, or raise the limit that is named, then transfer again"},
		ErrUnknownRegion: {"bytes were moved before the region went; the effects are in the report", "refresh the segment, resolve the address again and transfer all of it again"},
		ErrUnavailable:   {"bytes were moved before the refusal; no other path was tried; the effects are in the report", "name a transport that the peer serves for this region, and transfer all of it again"},
		ErrPeer:          {"the source answered that it failed, after bytes were moved; the effects are in the report", "look at the source's log, then transfer again"},
	},
	allocating: {
		ErrUnavailable: {"nothing was allocated or adopted, and no host memory was taken in its place", "run `orbitte devices`, which says what is there and what is missing"},
		ErrInvalid:     {"nothing was allocated or adopted", "correct the argument; memory of the host is allocated with Allocate or AllocatePinnedHost, or adopted with Adopt or AdoptPointer"},
		ErrExhausted:   {"nothing was allocated", "free memory of the GPU, here or in other processes (nvidia-smi shows them), or ask for less"},
		ErrUnquiesced:  {"nothing was allocated or adopted; the driver did not take back what was begun, which stays", "look at RetainedByCUDA; only the end of the process frees it"},
		ErrSystem:      {"nothing was allocated or adopted", "see the driver's error; nvidia-smi and the kernel's log (NVRM, Xid) say more"},
	},
	freeing: {
		ErrUnquiesced: {"the handle is closed; the driver refused to end the memory, and is not asked again", "nothing; it is listed by RetainedByCUDA, and the end of the process frees it"},
	},
	copying: {
		ErrUnquiesced: {"a copy from or to a GPU is not proven ended: memory, chunk and stream of it stay, and are charged", "do not reuse that memory; look at RetainedResources; only the end of the process frees it"},
	},
	tearing: {
		ErrUnquiesced: {"every frame and submission has ended and no memory is touched any more; only the engine's own streams, lanes or log have yet to end", "call Close again, with a context that lasts"},
	},
}

// advice picks what fits the error.
func (e *Error) advice() advice {
	var missed *lack
	a, ok := situations[e.situation][e.Class]
	switch {
	case errors.As(e.Cause, &missed):
		if !ok {
			a = advices[e.Class]
		}
		return advice{a.known, missed.remedy}
	case ok:
		return a
	}
	if a, ok := e.receipt(); ok {
		return a
	}
	var ring *uring.LostError
	if errors.As(e.Cause, &ring) {
		return advice{advices[e.Class].known, "let this process enter its rings for as long as it lives, or open with Config.Kernel Epoll; this engine has none any more: close it and open another one"}
	}
	var unreached *hptcp.UnreachedError
	var path *rdma.NoPath
	var pair *rdma.UnreachedError
	switch {
	case e.Class == ErrUnavailable && errors.As(e.Cause, &path):
		return advice{advices[ErrUnavailable].known, noPathRemedy}
	case errors.As(e.Cause, &pair):
		return advice{"two devices could not be connected, before anything was granted or moved", noPairRemedy}
	case e.Class == ErrExhausted:
		return e.exhaustion()
	case e.situation == submitting && errors.As(e.Cause, &unreached):
		if a, ok := dataPort[e.Class]; ok {
			return a
		}
	}
	return advices[e.Class]
}

// dataPort is what is known when the data port of HP-TCP alone is what failed, or had not answered yet (hptcp.UnreachedError).
var dataPort = map[error]advice{
	ErrUnreachable: {"nothing was posted; the data port of HP-TCP did not answer, which says nothing about the control port", openDataPort + "; then submit again"},
	ErrDeadline:    {"nothing was posted; the data port of HP-TCP did not answer in time, which says nothing about the control port", "submit again, with a later deadline if this one was short; otherwise " + openDataPort},
	ErrCancelled:   {"nothing was posted; the data port of HP-TCP had not answered yet", "nothing, it was asked for"},
}

const openDataPort = "let the data port through every firewall (HPTCP.Bind at the peer fixes it), and check that the source runs"

const noPairRemedy = "let the two devices reach each other, or keep them apart with RDMA.DeviceMask or Whitelist here (`orbitte devices` on both hosts); the source's log may say more"

const noPathRemedy = "bring a port up, or let Config.RDMA.DeviceMask and the pins of both sides allow devices of one kind of network (`orbitte devices` shows them), then submit again; or name another transport"

// receipt is what is known when the source of a transfer over RDMA said that it has taken its grants back: payload may
// have moved before.
func (e *Error) receipt() (advice, bool) {
	var late *rdma.SourceDeadlineError
	var fault *lanes.Fault
	switch {
	case errors.Is(e.Cause, delegate.ErrTakenBack):
		return advice{
			"the source took the pinned slots of the request back, or its region is gone; the effects are in the report",
			"refresh the segment; ask for less at a time, or raise Config.SourceTimeout at the peer",
		}, true
	case errors.Is(e.Cause, delegate.ErrOccupied):
		return advice{
			"the range was in use at the source until the source's own deadline for copying it; the effects are in the report",
			"let the requests that use the range end first, or raise Config.SourceTimeout at the peer",
		}, true
	case errors.As(e.Cause, &late):
		return advice{
			"the source took the grants of the request back when its own deadline for them passed; the effects are in the report",
			"ask for less at a time, or raise Config.SourceTimeout at the peer",
		}, true
	case e.Class == ErrPeer && errors.As(e.Cause, &fault) && fault.Stage == rdma.ReceiptStage:
		return advice{
			"the source answered that it failed and took the grants of the request back; the effects are in the report",
			"look at the source's log and at its RDMA devices",
		}, true
	}
	return advice{}, false
}

// limitFields says which field of Config.Limits sets a budget; a lane's share is named up to the comma.
var limitFields = map[string]string{
	"retained registrations": "Registrations", "registered bytes": "RegisteredBytes", "batch descriptors": "BatchRequests",
	"async batches": "Batches", "async batch slots": "BatchSlots", "requester submissions in flight": "Submissions",
	"requester bytes in flight": "SubmittedBytes", payloadBudget: "PayloadBytes", "source handlers": "SourceHandlers",
	"source queue": "SourceQueue", "peer streams": "PeerSegments", "accepted streams": "PeerSegments",
	"pending notifications": "Notifications", "pending notification bytes": "NotificationQueue",
	"pinned staging": "PinnedStagingBytes", "one notification": "NotificationBytes", "name look-ups in flight": "Lookups",
	"HP-TCP peer streams": "Streams", "HP-TCP accepted streams": "Streams",
	"RDMA queue pairs": "Endpoints", "RDMA grants": "Grants", "RDMA direct bytes": "DirectBytes", "RDMA staging bytes": "StagingBytes",
	"RDMA memory regions": "CachedRegions", "RDMA memory region bytes": "CachedBytes", "RDMA completion entries": "CompletionEntries",
}

// limitPath is where a budget's field is, from Config on.
func limitPath(budget, field string) string {
	switch {
	case strings.HasPrefix(budget, "RDMA "):
		return "RDMA.Limits." + field
	case strings.HasPrefix(budget, "HP-TCP "):
		return "HPTCP.Limits." + field
	}
	return "Limits." + field
}

// payloadBudget is the one cap that either side may have set.
const payloadBudget = "one payload (the smaller limit of both sides)"

// exhaustion tells our budget from the peer's and from the system's limits, and what can never fit from what
// fits later.
func (e *Error) exhaustion() advice {
	var own *budgets.Exhausted
	var fault *lanes.Fault
	var miss *rdma.MissError
	switch {
	case errors.As(e.Cause, &own):
		return exhaustionOf(own)
	case errors.As(e.Cause, &miss):
		return advice{
			"no byte was moved; the peer ended the queue pairs of this engine again and again, to make room for others",
			"submit again; if it goes on, raise RDMA.Limits.Endpoints at the peer, or ask fewer peers for it at a time: its Stats count ConnectionsEvicted",
		}
	case errors.As(e.Cause, &fault) && fault.Cause == lanes.Refused && e.situation == notifying:
		return advice{
			"the notification was not delivered; it is the peer's budget that ran out, not this engine's: its inbox is full, or its limit for one notification is smaller",
			"let the peer receive its notifications and send again, or raise Limits.Notifications, NotificationQueue or NotificationBytes at the peer",
		}
	case errors.As(e.Cause, &fault) && fault.Cause == lanes.Refused && strings.HasPrefix(fault.Stage, "RDMA"):
		return advice{
			"no byte was moved; it is the peer's budget that ran out, not this engine's: its queue pairs, grants, bytes or keys for RDMA, or its handlers; or another access has the range there",
			"ask for less at a time, wait for the peer's work to end, order accesses to one range, or raise the one of RDMA.Limits or Limits at the peer whose gauge shows refusals in its Stats, if one does",
		}
	case errors.As(e.Cause, &fault) && fault.Cause == lanes.Refused:
		return advice{
			"no byte was moved; it is the peer's budget that ran out, not this engine's: its payload limit, handlers or buffers",
			"ask for less at a time, wait for the peer's work to end, or raise Limits.PayloadBytes or SourceHandlers at the peer",
		}
	}
	return advices[ErrExhausted]
}

func exhaustionOf(own *budgets.Exhausted) advice {
	name, _, _ := strings.Cut(own.Budget, ", lane ")
	field, where := limitFields[name], ""
	switch name {
	case hptcp.AtomicRangesBudget, hptcp.AtomicBytesBudget:
		return advice{"nothing was posted; it can never fit", "write fewer ranges at a time, or leave Atomic away"}
	case rangesBudget:
		return advice{"nothing was posted; it can never fit", "split it into several submissions"}
	}
	if field == "" {
		return advices[ErrExhausted]
	}
	if name == payloadBudget {
		where = ", on whichever side it is smaller"
	}
	if own.Asked > own.Limit {
		return advice{"nothing was posted; it can never fit", "ask for less, or raise " + limitPath(name, field) + where}
	}
	return advice{"nothing was posted", "wait for work to end, free what is held, or raise " + limitPath(name, field) + where}
}
