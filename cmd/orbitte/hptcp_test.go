package main

import (
	"path/filepath"
	"testing"
)

// Files go there and back over HP-TCP when both sides ask for it; a source that does not serve it is an error, and
// nothing becomes TCP.
//
// proves G-4
func TestServeGetAndPutMoveFilesOverHPTCPWhenAskedTo(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	path, content := file(t, from, "data", 9<<20+7)
	changed, other := file(t, t.TempDir(), "other", 9<<20+7)
	s := startSource(t, "--writable", "--transport", "hptcp", path)
	got := filepath.Join(to, "copy")
	over := append(s.peerFlags("--from"), "--transport", "hptcp")
	carried(t, inside(append([]string{"get", "-o", got, "data"}, over...)...), "hptcp")
	same(t, got, content)
	carried(t, inside(append([]string{"put", changed, "data", "--transport", "hptcp"}, s.peerFlags("--to")...)...), "hptcp")
	same(t, path, other)
	carried(t, inside(append([]string{"get", "-o", got, "data"}, s.peerFlags("--from")...)...), "tcp")
	same(t, got, other)
	carried(t, inside(append([]string{"get", "-o", got, "data"}, over...)...), "hptcp") // the manifest that put brought
	same(t, got, other)
	s.stop(t)
	s = startSource(t, path)
	inside(append([]string{"get", "-o", filepath.Join(to, "none"), "data", "--transport", "hptcp"}, s.peerFlags("--from")...)...).want(t, exitFailed, "the peer publishes no HP-TCP", "no other path was tried")
	holds(t, to, "copy")
	s.stop(t)
}
