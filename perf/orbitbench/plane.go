package main

import "github.com/orbitte/orbitte"

// plane switches on what the setup's transport needs.
func (s Setup) plane(c *orbitte.Config) {
	if s.Transport == "hptcp" {
		c.HPTCP = &orbitte.HPTCPConfig{}
	}
}

// publish registers a range for peers, over the setup's transport as well.
func (s Setup) publish(e *orbitte.Engine, m *orbitte.Memory, length uint64) error {
	_, err := e.RegisterBatch([]orbitte.Range{{Memory: m, Length: length, Permission: orbitte.ReadWrite, HPTCP: s.Transport == "hptcp"}})
	return err
}

// pagesOf makes one request of many pages.
func pagesOf(r orbitte.Request, size uint64, near, far []uint32) orbitte.Request {
	r.Pages = &orbitte.Pages{Size: size, Local: near, Remote: far}
	return r
}
