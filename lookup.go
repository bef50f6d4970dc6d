package orbitte

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"

	"github.com/orbitte/orbitte/budgets"
	"github.com/orbitte/orbitte/reactor"
)

// lookup is one host-name look-up on the cold lane: the only thread that it may block, however many
// are asked for (field case F-55).
type lookup struct {
	letter  reactor.Letter
	engine  *Engine
	ctx     context.Context
	host    string
	charge  budgets.Charge
	waiting atomic.Uint32 // waitingState of the caller
	found   []netip.Addr
	err     error
	done    chan struct{}
}

// Receive looks the name up (reactor.Recipient). A caller that has gone costs nothing.
func (l *lookup) Receive(*reactor.Letter, reactor.Instant) {
	if l.err = l.ctx.Err(); l.err == nil {
		l.found, l.err = l.engine.config.Resolver(l.ctx, l.host)
	}
	l.charge.Repay() // proof: the resolver has returned
	if !l.waiting.CompareAndSwap(waitingOn, waitingOver) {
		l.engine.counts.lookupsLeft.Add(-1)
	}
	close(l.done)
}

// leave lets the look-up end by itself.
func (l *lookup) leave() {
	l.engine.counts.lookupsLeft.Add(1)
	if !l.waiting.CompareAndSwap(waitingOn, waitingLeft) {
		l.engine.counts.lookupsLeft.Add(-1) // it ended just now
	}
}

// lookup resolves an endpoint, "host:port". An address costs nothing; a name goes to the cold lane.
func (e *Engine) lookup(ctx context.Context, endpoint string) ([]netip.AddrPort, error) {
	if address, err := netip.ParseAddrPort(endpoint); err == nil {
		if address.Port() == 0 {
			return nil, invalid("endpoint %q has port 0, which nobody listens on", endpoint)
		}
		return []netip.AddrPort{netip.AddrPortFrom(address.Addr().Unmap(), address.Port())}, nil
	}
	host, portText, err := net.SplitHostPort(endpoint)
	if err != nil {
		return nil, invalid("endpoint %q: %v; it must be host:port", endpoint, err)
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil || port == 0 || host == "" {
		return nil, invalid("endpoint %q: it must be host:port with a port of 1 to 65535", endpoint)
	}
	found, err := e.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	addresses := make([]netip.AddrPort, len(found))
	for i, a := range found {
		addresses[i] = netip.AddrPortFrom(a.Unmap(), uint16(port))
	}
	return addresses, nil
}

// resolve looks a name up, within RequestTimeout when the context has no deadline. In manual mode that is
// the caller's own call, since there is no other thread; others may drive meanwhile.
func (e *Engine) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	charge, err := e.budgets.lookups.Take(1)
	if err != nil {
		return nil, err
	}
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, e.config.RequestTimeout)
		defer cancel()
	}
	l := &lookup{engine: e, ctx: ctx, host: host, charge: charge.Move(), done: make(chan struct{})}
	if e.cold == nil {
		l.Receive(nil, 0)
	} else if e.cold.lane.Post(&l.letter, l) != nil {
		l.charge.Repay()
		return nil, &Error{Index: -1, Class: ErrClosed}
	} else if err := e.waitOn(ctx, l.done, e.cold.stopped); err != nil {
		l.leave()
		return nil, lookupError(ctx, host, err)
	}
	if l.err == nil && len(l.found) == 0 {
		l.err = errNoAddress
	}
	if l.err != nil {
		return nil, lookupError(ctx, host, l.err)
	}
	return l.found, nil
}

var errNoAddress = errors.New("the name has no address")

// lookupError says that the context ended, or else that the name leads nowhere.
func lookupError(ctx context.Context, host string, err error) error {
	class := ErrUnreachable
	if ctx.Err() != nil {
		class = classOf(ctx.Err())
	}
	return &Error{Index: -1, Class: class, situation: asking, Cause: fmt.Errorf("look up %q: %w", host, err)}
}

func systemResolver(ctx context.Context, host string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}
