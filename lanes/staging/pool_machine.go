package staging

// pool lends the chunks of one role to flows, in the order in which they asked: nobody overtakes. It is the lane's own.
//
//	chunk: free ──take, next──▶ lent ──put──▶ free
//	                             └──lose──▶ retained
type pool struct {
	free       []*chunk // the last one returned is lent first, since it is warm
	head, tail *Flow    // those that wait for their first chunk
	whole      int      // chunks that are not retained
}

// add gives the pool a chunk.
func (p *pool) add(c *chunk) {
	p.free = append(p.free, c)
	p.whole++
}

// take lends a chunk to whoever asks without waiting; nil: none is free. A free chunk means that nobody waits, since
// whoever puts one back looks for a waiter.
func (p *pool) take() *chunk {
	if len(p.free) == 0 {
		return nil
	}
	return p.pop()
}

func (p *pool) pop() *chunk {
	last := len(p.free) - 1
	c := p.free[last]
	p.free = p.free[:last]
	return c
}

// put takes a chunk back.
func (p *pool) put(c *chunk) { p.free = append(p.free, c) }

// lose counts a chunk that is retained and never comes back.
func (p *pool) lose() { p.whole-- }

// strand takes a free chunk out for good.
func (p *pool) strand(c *chunk) {
	for i, other := range p.free {
		if other == c {
			p.free = append(p.free[:i], p.free[i+1:]...)
			p.whole--
			return
		}
	}
}

// wait puts a flow behind those that wait.
func (p *pool) wait(f *Flow) {
	f.before, f.behind = p.tail, nil
	if p.tail == nil {
		p.head = f
	} else {
		p.tail.behind = f
	}
	p.tail = f
}

// leave takes a flow that waits out of the line.
func (p *pool) leave(f *Flow) {
	if f.before == nil {
		p.head = f.behind
	} else {
		f.before.behind = f.behind
	}
	if f.behind == nil {
		p.tail = f.before
	} else {
		f.behind.before = f.before
	}
	f.before, f.behind = nil, nil
}

// next takes the flow that waits longest out of the line, with the chunk that it gets; nil: nobody waits, or no chunk is
// free.
func (p *pool) next() (*Flow, *chunk) {
	f := p.head
	if f == nil || len(p.free) == 0 {
		return nil, nil
	}
	p.leave(f)
	return f, p.pop()
}
