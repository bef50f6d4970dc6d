package main

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A proxy stands before one engine's address. Bytes that it lets through are never changed; a direction of
// which it has swallowed one stays silent: no gap ever looks like data, and neither end is told that the other has gone.
type proxy struct {
	listener net.Listener
	target   string
	fault    atomic.Pointer[event] // nil: pass
	done     atomic.Int64          // faults that hit a connection
	mu       sync.Mutex
	open     map[net.Conn]bool
	wait     sync.WaitGroup
}

func newProxy(target string) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: l, target: target, open: map[net.Conn]bool{}}
	p.wait.Add(1)
	go p.accept()
	return p, nil
}

func (p *proxy) endpoint() string { return p.listener.Addr().String() }

// close ends the proxy and every connection through it.
func (p *proxy) close() {
	p.listener.Close() // ends accept
	p.mu.Lock()
	for c := range p.open {
		c.Close() // ends its pump
	}
	p.mu.Unlock()
	p.wait.Wait()
}

func (p *proxy) accept() {
	defer p.wait.Done()
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wait.Add(1)
		go p.connect(near)
	}
}

func (p *proxy) connect(near net.Conn) {
	defer p.wait.Done()
	far, err := net.DialTimeout("tcp", p.target, 5*time.Second)
	if err != nil {
		near.Close() // the peer is gone; the requester sees a connection that breaks
		return
	}
	p.mu.Lock()
	p.open[near], p.open[far] = true, true
	p.mu.Unlock()
	var line line
	line.both.Add(2)
	go p.pump(near, far, true, &line)
	go p.pump(far, near, false, &line)
	line.both.Wait()
	p.mu.Lock()
	delete(p.open, near)
	delete(p.open, far)
	p.mu.Unlock()
	near.Close() // both have ended; closing twice does nothing
	far.Close()
}

// A line is one connection through a proxy.
type line struct {
	both  sync.WaitGroup // its pumps
	black atomic.Bool    // true exactly when something of it was swallowed in silence
}

// pump forwards one direction until an end closes.
func (p *proxy) pump(from, to net.Conn, up bool, l *line) {
	defer l.both.Done()
	var (
		piece [32 << 10]byte
		seen  int64 // bytes since the present fault began
		now   *event
		deaf  bool // true exactly when this direction swallows what comes
	)
	for {
		n, err := from.Read(piece[:])
		if err != nil {
			if !l.black.Load() {
				to.Close()
			}
			return
		}
		if deaf {
			continue
		}
		if f := p.fault.Load(); f != now {
			now, seen = f, 0
		}
		pass, end := p.judge(now, up, seen, int64(n))
		seen += int64(n)
		if _, err := to.Write(piece[:pass]); err != nil {
			from.Close()
			return
		}
		if pass < int64(n) || end {
			p.done.Add(1)
			deaf = true
			p.strike(now, from, to, l)
		}
	}
}

// judge says how many of n bytes pass, and whether the fault strikes behind them.
func (p *proxy) judge(f *event, up bool, seen, n int64) (pass int64, end bool) {
	switch {
	case f == nil:
		return n, false
	case f.do == doDelay:
		time.Sleep(time.Duration(f.bytes) * time.Microsecond)
		return n, false
	case f.up != up || seen+n <= f.bytes:
		return n, false
	}
	return max(f.bytes-seen, 0), true
}

// strike carries a fault out; behind it this direction passes nothing on.
func (p *proxy) strike(f *event, from, to net.Conn, l *line) {
	switch f.do {
	case doReset:
		for _, c := range []net.Conn{from, to} {
			_ = c.(*net.TCPConn).SetLinger(0) // a connection that has ended already needs no reset
			c.Close()
		}
	case doHalf:
		_ = to.(*net.TCPConn).CloseWrite() // as above
	default:
		l.black.Store(true)
	}
}
