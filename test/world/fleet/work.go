package main

import (
	"context"
	"fmt"

	"github.com/orbitte/orbitte"
)

// work is the fleet's pattern: a quarter of the nodes prefill, half decode, a quarter hold copies of weights.
//
//	prefill ──"kv" link round──▶ decode ──READ pages──▶ prefill ──"done" link round──▶ next round
//	replica ──"weights" version──▶ its children ──READ shards──▶ … ──"ack" version, once the subtree has it──▶ parent
//
// Each decoding node reads from several prefilling ones; a link is one such pair and has a slot of pages on both
// sides, which is written anew for each round once the reader is done with it.
type work struct {
	*fleet
	prefills, decodes int // the rest are replicas
	links             []link
	byPrefill         [][]int // links of each prefilling node
	byDecode          [][]int // links of each decoding node
	rounds            int
	pages             int // of one batch
	requests          int // READs that succeeded and were checked
	bytes             int
	notes             int // notifications received
}

// link is a decoding node that reads from a prefilling one.
type link struct {
	from, to     int // nodes
	there, ready int // places of the slot in their memories, in slots
}

const (
	pageBytes  = 4 << 10
	sources    = 4 // prefilling nodes that each decoding one reads from
	fanOut     = 4 // children of a replica
	shards     = 16
	shardBytes = 16 << 10
	pagesUsual = 8
)

// newWork plans at least this many requests over n nodes.
func newWork(seed uint64, n, requests int) (*work, error) {
	f, err := newFleet(seed, n)
	if err != nil {
		return nil, err
	}
	w := &work{fleet: f, prefills: max(1, n/4), pages: pagesUsual}
	w.decodes = max(1, min(n/2, n-w.prefills-1))
	w.byPrefill, w.byDecode = make([][]int, w.prefills), make([][]int, w.decodes)
	for d := range w.decodes {
		for s := range min(sources, w.prefills) {
			from := (d*sources + s + int(seed%uint64(w.prefills))) % w.prefills
			l := link{from: from, to: w.prefills + d, there: len(w.byPrefill[from]), ready: s}
			w.byPrefill[from] = append(w.byPrefill[from], len(w.links))
			w.byDecode[d] = append(w.byDecode[d], len(w.links))
			w.links = append(w.links, l)
		}
	}
	perRound := len(w.links) * w.pages
	w.rounds = max(1, (requests-(w.replicas()-1)*shards+perRound-1)/perRound)
	return w, w.prepare()
}

func (w *work) replicas() int        { return len(w.nodes) - w.prefills - w.decodes }
func (w *work) replica(i int) int    { return w.prefills + w.decodes + i }
func (w *work) slot() int            { return w.pages * pageBytes }
func (w *work) at(l link) (int, int) { return l.there * w.slot(), l.ready * w.slot() }

func (w *work) roleOf(n *node) int {
	switch {
	case n.index < w.prefills:
		return 0
	case n.index < w.prefills+w.decodes:
		return 1
	}
	return 2
}

// prepare gives every node its memory: one region for each slot, or all weights as one.
func (w *work) prepare() error {
	for _, n := range w.nodes {
		slots, bytes, permission := 1, shards*shardBytes, orbitte.RemoteRead
		switch w.roleOf(n) {
		case 0:
			slots = max(1, len(w.byPrefill[n.index]))
			bytes = slots * w.slot()
		case 1:
			slots, permission = len(w.byDecode[n.index-w.prefills]), orbitte.LocalOnly
			bytes = slots * w.slot()
		}
		if err := n.allocate(bytes); err != nil {
			return err
		}
		if err := n.register(slots, permission); err != nil {
			return err
		}
	}
	return nil
}

// connect opens every segment the work needs, all nodes at once.
func (w *work) connect() error {
	return w.run(func(n *node) func() error {
		return func() error {
			for _, peer := range w.peers(n) {
				if _, err := n.open(peer); err != nil {
					return err
				}
			}
			return nil
		}
	})
}

func (w *work) peers(n *node) (peers []int) {
	switch w.roleOf(n) {
	case 0:
		for _, l := range w.byPrefill[n.index] {
			peers = append(peers, w.links[l].to)
		}
	case 1:
		for _, l := range w.byDecode[n.index-w.prefills] {
			peers = append(peers, w.links[l].from)
		}
	default:
		i := n.index - w.replica(0)
		if i > 0 {
			peers = append(peers, w.replica((i-1)/fanOut))
		}
		peers = append(peers, w.children(i)...)
	}
	return peers
}

func (w *work) children(i int) (nodes []int) {
	for c := i*fanOut + 1; c <= (i+1)*fanOut && c < w.replicas(); c++ {
		nodes = append(nodes, w.replica(c))
	}
	return nodes
}

// do does all the work.
func (w *work) do() error {
	return w.run(func(n *node) func() error {
		return func() error {
			switch w.roleOf(n) {
			case 0:
				return w.prefill(n)
			case 1:
				return w.decode(n)
			}
			return w.replicate(n)
		}
	})
}

// receive waits for notifications.
func (w *work) receive(n *node) []orbitte.Notification {
	for {
		if notes := n.engine.ReceiveNotifications(); len(notes) > 0 {
			w.notes += len(notes)
			return notes
		}
		n.task.Pause()
	}
}

// prefill writes each slot for the first round, and for the next one when its reader is done.
func (w *work) prefill(n *node) error {
	left := len(w.byPrefill[n.index])
	for _, l := range w.byPrefill[n.index] {
		if err := w.offer(n, l, 1); err != nil {
			return err
		}
	}
	for left > 0 {
		for _, note := range w.receive(n) {
			l, round, err := parse(note, "done")
			if err != nil {
				return err
			}
			if round == w.rounds {
				left--
			} else if err := w.offer(n, l, round+1); err != nil {
				return err
			}
		}
	}
	return nil
}

func parse(note orbitte.Notification, name string) (link, round int, err error) {
	if _, err = fmt.Sscanf(note.Message, "%d %d", &link, &round); err != nil || note.Name != name {
		return 0, 0, fmt.Errorf("notification %+v, wanted %q", note, name)
	}
	return link, round, nil
}

func (w *work) offer(n *node, l, round int) error {
	at, _ := w.at(w.links[l])
	for p := range w.pages {
		stamp{n.index, l*w.pages + p, round}.write(n.bytes(at+p*pageBytes, pageBytes))
	}
	return n.notify(w.links[l].to, "kv", fmt.Sprintf("%d %d", l, round))
}

// reading is one link at its decoding node: the round that was offered last, and the batch that reads it.
type reading struct {
	link           int
	offered, round int // of the batch under way, or read last
	batch          *orbitte.Batch
}

// decode reads what it is offered, several batches at a time, and checks every byte. An offer may overtake the
// receipt of the "done" that led to it; then it waits for the end of the batch.
func (w *work) decode(n *node) error {
	mine := w.byDecode[n.index-w.prefills]
	readings := make([]reading, len(mine))
	for i, l := range mine {
		readings[i].link = l
	}
	for left := len(mine) * w.rounds; left > 0; {
		for _, note := range n.engine.ReceiveNotifications() {
			w.notes++
			l, round, err := parse(note, "kv")
			if err != nil {
				return err
			}
			readings[w.links[l].ready].offered = round
		}
		worked := false
		for i := range readings {
			ended, err := w.proceed(n, &readings[i])
			if err != nil {
				return err
			}
			if ended {
				left, worked = left-1, true
			}
		}
		if !worked {
			n.task.Pause()
		}
	}
	return nil
}

// proceed goes on with one link and says whether a batch of it has ended.
func (w *work) proceed(n *node, r *reading) (ended bool, err error) {
	if r.batch != nil {
		if ended, err = w.fetched(n, r); err != nil || !ended {
			return false, err
		}
		r.batch = nil
	}
	if r.offered > r.round {
		r.round = r.offered
		err = w.fetch(n, r)
	}
	return ended, err
}

func (w *work) fetch(n *node, r *reading) error {
	l := w.links[r.link]
	s, err := n.open(l.from)
	if err != nil {
		return err
	}
	from, to := w.at(l)
	requests := make([]orbitte.Request, w.pages)
	for p := range requests {
		requests[p] = n.read(s, l.from, from+p*pageBytes, to+p*pageBytes, pageBytes)
	}
	done := orbitte.NotifyAfter(orbitte.Notification{Name: "done", Message: fmt.Sprintf("%d %d", r.link, r.round)})
	r.batch, err = n.engine.Submit(context.Background(), requests, done)
	return err
}

func (w *work) fetched(n *node, r *reading) (ended bool, err error) {
	report, terminal, err := r.batch.Poll()
	if !terminal || err != nil {
		return terminal, err
	}
	if report.Notification.Err != nil {
		return true, fmt.Errorf("link %d round %d: %w", r.link, r.round, report.Notification.Err)
	}
	// The prefilling node knows by now, and may write its slot anew; this node's copy is its own.
	_, at := w.at(w.links[r.link])
	for p := range w.pages {
		if err := (stamp{w.links[r.link].from, r.link*w.pages + p, r.round}).check(n.bytes(at+p*pageBytes, pageBytes)); err != nil {
			return true, err
		}
	}
	w.requests += report.Completed
	w.bytes += int(report.Bytes)
	return true, r.batch.Free()
}

// replicate takes one version of the weights from the parent, hands it on, and tells the parent when the whole
// subtree has it.
func (w *work) replicate(n *node) error {
	i := n.index - w.replica(0)
	if i == 0 {
		for s := range shards {
			stamp{n.index, s, 1}.write(n.bytes(s*shardBytes, shardBytes))
		}
	} else if err := w.copyWeights(n, w.replica((i-1)/fanOut)); err != nil {
		return err
	}
	waiting := len(w.children(i))
	for _, child := range w.children(i) {
		if err := n.notify(child, "weights", "1"); err != nil {
			return err
		}
	}
	for waiting > 0 {
		for _, note := range w.receive(n) {
			if note.Name != "ack" {
				return fmt.Errorf("notification %+v, wanted an ack", note)
			}
			waiting--
		}
	}
	if i == 0 {
		return nil
	}
	return n.notify(w.replica((i-1)/fanOut), "ack", "1")
}

func (w *work) copyWeights(n *node, parent int) error {
	if notes := w.receive(n); len(notes) != 1 || notes[0].Name != "weights" {
		return fmt.Errorf("notifications %+v, wanted one of weights", notes)
	}
	s, err := n.open(parent)
	if err != nil {
		return err
	}
	requests := make([]orbitte.Request, shards)
	for i := range requests {
		requests[i] = n.read(s, parent, i*shardBytes, i*shardBytes, shardBytes)
	}
	report, err := n.engine.SubmitAndWait(context.Background(), requests)
	if err != nil {
		return err
	}
	for i := range shards {
		if err := (stamp{w.replica(0), i, 1}).check(n.bytes(i*shardBytes, shardBytes)); err != nil {
			return err
		}
	}
	w.requests += report.Completed
	w.bytes += int(report.Bytes)
	return nil
}
