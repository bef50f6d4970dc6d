package orbitte

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"

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
	found   []netip.Addr
	err     error
	done    chan struct{}
	resolve func(context.Context, string) ([]netip.Addr, error)
}

// Receive looks the name up (reactor.Recipient). A caller that has gone costs nothing.
func (l *lookup) Receive(*reactor.Letter, reactor.Instant) {
	if l.err = l.ctx.Err(); l.err == nil {
		l.found, l.err = l.resolve(l.ctx, l.host)
	}
	l.charge.Repay() // proof: the resolver has returned
	close(l.done)
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

func (e *Engine) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	charge, err := e.budgets.lookups.Take(1)
	if err != nil {
		return nil, err
	}
	l := &lookup{engine: e, ctx: ctx, host: host, charge: charge, done: make(chan struct{}), resolve: e.config.Resolver}
	if l.resolve == nil {
		l.resolve = systemResolver
	}
	if e.cold.lane.Post(&l.letter, l) != nil {
		l.charge.Repay()
		return nil, &Error{Index: -1, Class: ErrClosed}
	}
	if err := e.waitOn(ctx, l.done, e.cold.stopped); err != nil {
		return nil, err // the look-up goes on alone and repays its charge when it ends
	}
	if l.err == nil && len(l.found) == 0 {
		l.err = fmt.Errorf("the name has no address")
	}
	if l.err != nil {
		class := ErrUnreachable
		if ctx.Err() != nil {
			class = classOf(ctx.Err())
		}
		return nil, &Error{Index: -1, Class: class, Cause: fmt.Errorf("look up %q: %w", host, l.err)}
	}
	return l.found, nil
}

func systemResolver(ctx context.Context, host string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}
