package orbitte

import (
	"github.com/rs/zerolog"

	"github.com/orbitte/orbitte/lanes"
)

// writeLog is the goroutine that writes what the lanes note: a written line is a system call, which no
// lane makes. It exists only with a logger.
func (e *Engine) writeLog() {
	defer close(e.logEnd)
	log := e.config.Logger.With().Str("engine", e.endpoint).Logger()
	log.Info().Str("epoch", e.policy.Epoch.String()).Int("lanes", len(e.runners)).
		Str("kernel", e.runners[0].lane.Kernel().Name()).Str("reason", e.kernel).Msg("engine open")
	e.logDevices(&log)
	for {
		select {
		case <-e.notes:
			e.writeNotes(&log)
		case <-e.notesEnd:
			e.writeNotes(&log)
			log.Info().Msg("engine closed")
			return
		}
	}
}

func (e *Engine) writeNotes(log *zerolog.Logger) {
	for _, r := range e.runners {
		for n, ok := r.lane.Journal.Next(); ok; n, ok = r.lane.Journal.Next() {
			line := log.Warn()
			if n.Kind == lanes.NoteAcceptResumed {
				line = log.Info()
			}
			if n.Where != "" {
				line = line.Str("where", n.Where)
			}
			line.Int("lane", r.lane.Index).Uint64("times", n.Count).Err(n.Err).Str("remedy", noteTexts[n.Kind].remedy).Msg(noteTexts[n.Kind].text)
		}
	}
}

var noteTexts = map[lanes.NoteKind]struct{ text, remedy string }{
	lanes.NoteAcceptExhausted:  {"cannot accept connections: out of descriptors or memory; trying again at intervals", "raise RLIMIT_NOFILE (ulimit -n) or lower Limits.PeerSegments"},
	lanes.NoteAcceptResumed:    {"connections are accepted again", ""},
	lanes.NoteListenerFailed:   {"the listener has failed; no new peer can connect", "open a new engine"},
	lanes.NoteSessionsOverflow: {"a connection was closed: no handler, queue place or stream slot for it", "raise Limits.SourceHandlers, SourceQueue or PeerSegments"},
	lanes.NoteProtocol:         {"a peer broke the protocol; its stream was closed", "check who connects to this port, and versions"},
	lanes.NoteStaleEpoch:       {"a peer was refused: it expects another life of this source", "give the peer this engine's epoch, if it means this engine"},
	lanes.NotePermission:       {"a peer was refused: the region does not allow the direction", "register the range with RemoteRead or RemoteWrite, if the peer may do this"},
	lanes.NoteRetained:         {"a descriptor could not be closed and is retained", "see Engine.RetainedResources"},
	lanes.NoteDevice: {
		"an RDMA device of this engine refused what a peer asked for, and the peer was told that this engine failed",
		"see `orbitte devices` on both hosts; devices that cannot reach each other are kept apart by the requester's RDMA.DeviceMask or Whitelist",
	},
}

// logDevices says which RDMA devices were found, and why others are not used.
func (e *Engine) logDevices(log *zerolog.Logger) {
	stats := e.rdma.stats()
	if stats == nil {
		return
	}
	for _, d := range stats.Devices {
		line := log.Info()
		if d.State != "active" {
			line = log.Warn().Str("reason", d.Reason)
		}
		line.Str("library", stats.Library).Int("nic", d.NIC).Str("device", d.Name).Str("state", d.State).Int("port", d.Port).
			Str("gid", d.GID).Int("gid_index", d.GIDIndex).Int("numa", d.NUMANode).Msg("RDMA device")
	}
}
