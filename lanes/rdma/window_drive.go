package rdma

import (
	"errors"
	"slices"

	"github.com/orbitte/orbitte/reactor"
	"github.com/orbitte/orbitte/verbs"
)

// borrow brings a lane the idle windows of other lanes, when its domain gives out no new ones: the indices are the
// domain's (SPEC R-12), and a window that is idle on one lane must not keep another lane's grants away for good. Its
// letter visits the lanes and takes what is missing; a window belongs to whoever has it in its stock.
//
//	at home ──no fresh index──▶ touring ──all lanes visited──▶ at home: provisioned
type borrow struct {
	p       *provision
	letter  reactor.Letter
	home    int // position of the lane that asks
	at      int // position of the lane that is visited
	lacks   []int
	brought [][]*verbs.MemoryWindow // by position of the rail
	back    bool
}

// borrows is true exactly when other lanes are asked, and provisioned follows later.
func (p *provision) borrows() bool {
	if !errors.Is(p.err, verbs.ErrKeys) || len(p.rails.transport.rails) < 2 {
		return false
	}
	b := &borrow{p: p, home: slices.Index(p.rails.transport.rails, p.rails), at: -1, brought: make([][]*verbs.MemoryWindow, len(p.rails.rails))}
	for i, rail := range p.rails.rails {
		b.lacks = append(b.lacks, p.needs[i].windows-len(rail.stock.windows))
	}
	p.rails.upper.borrowing++
	b.next()
	return true
}

// next goes to the next lane, or home.
func (b *borrow) next() {
	all := b.p.rails.transport.rails
	for b.at++; b.at < len(all); b.at++ {
		if all[b.at] != b.p.rails && all[b.at].lane.Post(&b.letter, b) == nil {
			return
		}
	}
	b.back = true
	_ = b.p.rails.lane.Post(&b.letter, b) // it is open: the errand is pending there
}

// Receive takes idle windows on the lane that is visited, or ends the tour at home (reactor.Recipient).
func (b *borrow) Receive(*reactor.Letter, reactor.Instant) {
	if b.back {
		b.returned()
		return
	}
	r := b.p.rails.transport.rails[b.at]
	if r.fenced || r.upper.borrowing > 0 && b.at < b.home { // two lanes that lack some would exchange theirs for ever
		b.next()
		return
	}
	for i, rail := range r.rails { // each lane has the devices in one order
		k := &rail.stock
		for len(b.brought[i]) < b.lacks[i] && len(k.windows) > 0 {
			b.brought[i] = append(b.brought[i], k.takeWindow())
		}
	}
	b.next()
}

// returned puts the windows into the stocks. What is still missing is the refusal that there was.
func (b *borrow) returned() {
	p := b.p
	p.rails.upper.borrowing--
	all := true
	for i, rail := range p.rails.rails {
		for _, w := range b.brought[i] {
			rail.stock.putWindow(w)
		}
		all = all && len(rail.stock.windows) >= p.needs[i].windows
	}
	if all {
		p.err = nil
	}
	p.end()
}
