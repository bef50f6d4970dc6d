package rdma

// Abandon ends a transport whose lanes never ran, or do not run any more, on the caller's goroutine: queues, domains and
// contexts, in the order of SPEC R-18. It answers the first reason for which something is retained.
func (t *Transport) Abandon() error {
	for _, r := range t.rails {
		r.abandon()
	}
	t.state.Store(uint32(transportClosed))
	return t.end()
}
