package verbs

import "fmt"

// Route is the address through which a context is reached: port and GID as they were when it was chosen. It is a
// value; a context's route changes only between Pause and Resume.
type Route struct {
	Port          uint8
	GID           GIDEntry
	LID           uint16
	MTU           int // bytes
	Ethernet      bool
	MaxMessage    uint32
	BitsPerSecond uint64 // 0: unknown
}

func (r Route) String() string {
	return fmt.Sprintf("port %d GID %d %s (%s)", r.Port, r.GID.Index, r.GID.GID, r.GID.Type)
}

// sameAddress is true exactly when connections over one route would go on over the other.
func (r Route) sameAddress(o Route) bool {
	return r.Port == o.Port && r.GID == o.GID && r.LID == o.LID && r.Ethernet == o.Ethernet
}

// RouteError says why a port has no usable address.
type RouteError struct {
	Object string // "rxe0 port 1"
	Why    string
	Err    error // of the native query, if one failed
}

func (e *RouteError) Error() string {
	text := fmt.Sprintf("%s has no usable address: %s", e.Object, e.Why)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text + "; nothing was sent; see `orbitte devices`, or pin another port or GID index"
}

// Is matches ErrRoute.
func (e *RouteError) Is(target error) bool { return target == ErrRoute }

// Unwrap gives the native error.
func (e *RouteError) Unwrap() error { return e.Err }

// chooseRoute picks a port's address: the pinned index strictly, otherwise the best-ranked entry.
func chooseRoute(object string, port uint8, index *int, info PortInfo, entries []GIDEntry) (Route, error) {
	route := Route{Port: port, LID: info.LID, MTU: info.MTU, Ethernet: info.Ethernet, MaxMessage: info.MaxMessage, BitsPerSecond: info.BitsPerSecond}
	if index != nil {
		entry, ok := entryAt(entries, *index)
		if !ok {
			return Route{}, &RouteError{Object: object, Why: fmt.Sprintf("the pinned GID index %d is empty", *index)}
		}
		route.GID = entry
		return route, nil
	}
	ranked := RankGIDs(entries)
	if len(ranked) == 0 {
		return Route{}, &RouteError{Object: object, Why: "its GID table is empty"}
	}
	route.GID = ranked[0].GIDEntry
	return route, nil
}

func entryAt(entries []GIDEntry, index int) (GIDEntry, bool) {
	for _, e := range entries {
		if e.Index == index && !e.GID.Zero() {
			return e, true
		}
	}
	return GIDEntry{}, false
}

// Verdict is what one look at a context's port means for its route.
type Verdict struct {
	Port   PortInfo
	Route  Route  // to be published by Resume; meaningless unless Usable
	Usable bool   // the port is active and has an address
	Keep   bool   // an active context may go on with the route it has
	Why    string // why not Keep
}

// judge decides about a look at a port. An active context keeps its entry as long as the same index holds the same
// address; only a paused one chooses again, by rank or strictly at its pin (SPEC ).
func judge(object string, now Route, paused bool, index *int, info PortInfo, entries []GIDEntry) Verdict {
	v := Verdict{Port: info}
	if info.State != PortActive {
		v.Why = "port is " + info.State.String()
		return v
	}
	if !paused {
		entry, ok := entryAt(entries, now.GID.Index)
		if !ok {
			v.Why = fmt.Sprintf("GID index %d is empty", now.GID.Index)
			return v
		}
		v.Route = now
		v.Route.GID, v.Route.LID, v.Route.Ethernet, v.Route.MTU = entry, info.LID, info.Ethernet, info.MTU
		v.Usable, v.Keep = true, v.Route.sameAddress(now)
		if !v.Keep {
			v.Why = fmt.Sprintf("address changed from %s to %s", now, v.Route)
		}
		return v
	}
	route, err := chooseRoute(object, now.Port, index, info, entries)
	if err != nil {
		v.Why = err.Error()
		return v
	}
	v.Route, v.Usable = route, true
	v.Why = "paused until its old queue pairs are gone"
	return v
}

var portStateNames = [...]string{"in no state", "down", "initializing", "armed", "active", "active, deferred"}

func (s PortState) String() string {
	if int(s) < len(portStateNames) {
		return portStateNames[s]
	}
	return fmt.Sprintf("in state %d", uint8(s))
}
