package rdma

import "github.com/orbitte/orbitte/segments"

// Of is what a registration has on the devices: the engine attaches it before the range is visible and retires it after
// the registration has ended, so a loan of the registration (segments.Registration.Lend, Tracker.Borrow, Tracker.Admit)
// keeps it alive. Nil: it has nothing there.
func Of(r *segments.Registration) *Registered {
	g, _ := r.Attachment().(*Registered)
	return g
}
