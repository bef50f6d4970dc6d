package main

import (
	"fmt"
	"slices"
	"strings"
)

// A ledger adds up what the peers say, and knows what must agree between them.
type ledger struct {
	beats   map[string]beat // of each life, the last one
	quiets  map[string][]quiet
	engines int
	errors  map[string]int64 // calls by the class of their error, of the lives that ended well
	agreed  int64            // notifications that were compared with their receipts
	sent    map[[2]string][2]int64
	got     map[[2]string]int64
	closed  map[string]bool // sender lives whose receipts are complete
	drained map[string]bool // epochs whose inbox is complete
}

// beat is what a process says each second.
type beat struct{ requests, ok, failed, bytes, notes, refused int64 }

// quiet is what a process holds while none of its engines is open.
type quiet struct{ rss, heap, goroutines, descriptors int64 }

func newLedger() ledger {
	return ledger{
		beats: map[string]beat{}, quiets: map[string][]quiet{}, errors: map[string]int64{}, sent: map[[2]string][2]int64{},
		got: map[[2]string]int64{}, closed: map[string]bool{}, drained: map[string]bool{},
	}
}

// take reads one line.
func (l *ledger) take(c *child, word, rest string) error {
	var err error
	switch word {
	case "beat":
		var b beat
		_, err = fmt.Sscan(rest, &b.requests, &b.ok, &b.failed, &b.bytes, &b.notes, &b.refused)
		l.beats[c.name()] = b
	case "quiet":
		var q quiet
		_, err = fmt.Sscan(rest, &q.rss, &q.heap, &q.goroutines, &q.descriptors)
		l.quiets[c.name()] = append(l.quiets[c.name()], q)
	case "down": // life epoch: its receipts and its inbox are complete
		var life, epoch string
		_, err = fmt.Sscan(rest, &life, &epoch)
		l.closed[life], l.drained[epoch] = true, true
		l.engines++
	case "error": // count class
		var n int64
		_, err = fmt.Sscan(rest, &n)
		_, class, _ := strings.Cut(rest, " ")
		l.errors[class] += n
	case "sent": // life epoch delivered unknown
		var life, epoch string
		var n [2]int64
		_, err = fmt.Sscan(rest, &life, &epoch, &n[0], &n[1])
		l.sent[[2]string{life, epoch}] = n
	case "got": // epoch life count
		var life, epoch string
		var n int64
		_, err = fmt.Sscan(rest, &epoch, &life, &n)
		l.got[[2]string{life, epoch}] = n
	}
	return err
}

// judge compares receipts and inboxes: a receipt says that it is there, none that it may be (SPEC N-1, N-4).
func (l *ledger) judge() (wrong []string) {
	pairs := map[[2]string]bool{}
	for k := range l.sent {
		pairs[k] = true
	}
	for k := range l.got {
		pairs[k] = true
	}
	for k := range pairs {
		life, epoch := k[0], k[1]
		if !l.closed[life] || !l.drained[epoch] {
			continue // one of the two was killed before it could tell
		}
		n, got := l.sent[k], l.got[k]
		l.agreed += got
		if got < n[0] || got > n[0]+n[1] {
			wrong = append(wrong, fmt.Sprintf("notifications of %s to %s: %d receipts, %d unknown, %d arrived", life, epoch, n[0], n[1], got))
		}
	}
	for name, q := range l.quiets {
		if why := grown(q); why != "" {
			wrong = append(wrong, name+": "+why)
		}
	}
	return wrong
}

// quietsMin is how many readings a life needs before it is judged by its thirds.
const quietsMin = 12

// thirds are the means of the first and the last third.
func thirds(all []quiet, of func(quiet) int64) (first, last int64) {
	n := len(all) / 3
	for i := range n {
		first += of(all[i])
		last += of(all[len(all)-1-i])
	}
	return first / int64(n), last / int64(n)
}

func rssOf(q quiet) int64  { return q.rss }
func heapOf(q quiet) int64 { return q.heap }

// grown is what grows with time although nothing is open: descriptors and goroutines are compared with the start by
// the process itself; memory may settle by half and a little more.
func grown(all []quiet) string {
	if len(all) < quietsMin {
		return ""
	}
	for _, c := range []struct {
		name  string
		of    func(quiet) int64
		slack int64
	}{{"resident memory", rssOf, 64 << 20}, {"live heap", heapOf, 8 << 20}} {
		if first, last := thirds(all, c.of); last > first+first/2+c.slack {
			return fmt.Sprintf("%s grows: %d bytes in the first third, %d in the last, of %d readings", c.name, first, last, len(all))
		}
	}
	return ""
}

func (l *ledger) total() (t beat) {
	for _, b := range l.beats {
		t.requests += b.requests
		t.ok += b.ok
		t.failed += b.failed
		t.bytes += b.bytes
		t.notes += b.notes
		t.refused += b.refused
	}
	return t
}

func (l *ledger) progress() string {
	t := l.total()
	return fmt.Sprintf("%d requests (%d succeeded, %d failed), %d MiB, %d notifications, %d refused calls, %d engines closed clean",
		t.requests, t.ok, t.failed, t.bytes>>20, t.notes, t.refused, l.engines)
}

// figures tells how much the long lives hold while nothing is open.
func (l *ledger) figures() string {
	var b strings.Builder
	names := make([]string, 0, len(l.quiets))
	for name := range l.quiets {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		all := l.quiets[name]
		if len(all) < quietsMin {
			continue
		}
		r0, r1 := thirds(all, rssOf)
		h0, h1 := thirds(all, heapOf)
		last := all[len(all)-1]
		fmt.Fprintf(&b, "%s without engines, %d times: resident %.1f → %.1f MiB, live heap %.2f → %.2f MiB (means of first and last third), %d goroutines, %d descriptors\n",
			name, len(all), mib(r0), mib(r1), mib(h0), mib(h1), last.goroutines, last.descriptors)
	}
	classes := make([]string, 0, len(l.errors))
	for class, n := range l.errors {
		classes = append(classes, fmt.Sprintf("%d × %s", n, class))
	}
	slices.Sort(classes)
	fmt.Fprintf(&b, "refused calls: %s\n", strings.Join(classes, ", "))
	fmt.Fprintf(&b, "%d notifications agree with their receipts\n", l.agreed)
	return b.String()
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }
