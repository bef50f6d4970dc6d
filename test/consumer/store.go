package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/orbitte/orbitte"
)

// Store publishes values and fetches those of other stores. Every public type that a user holds between
// two calls has a field or a parameter here, so that it can be named.
type Store struct {
	engine *orbitte.Engine
	values map[string]value
}

type value struct {
	memory       *orbitte.Memory
	registration *orbitte.Registration
}

// Ticket is what a store's owner hands to a peer.
type Ticket struct {
	Endpoint string
	Epoch    string
	Address  uint64
	Length   uint64
}

// Open starts a store; the zero limits are the defaults.
func Open(kernel orbitte.KernelChoice, limits orbitte.Limits) (*Store, error) {
	engine, err := orbitte.Open(orbitte.Config{Kernel: kernel, Progress: orbitte.EventDriven, Limits: limits})
	if err != nil {
		return nil, err
	}
	return &Store{engine: engine, values: map[string]value{}}, nil
}

// Put publishes a copy of b for reading and writing.
func (s *Store) Put(name string, b []byte, p orbitte.Permission) (Ticket, error) {
	memory, err := orbitte.Allocate(len(b))
	if err != nil {
		return Ticket{}, err
	}
	copy(memory.Bytes(), b)
	registrations, err := s.engine.RegisterBatch([]orbitte.Range{{Memory: memory, Length: uint64(len(b)), Permission: p}})
	if err != nil {
		memory.Close()
		return Ticket{}, err
	}
	s.values[name] = value{memory, registrations[0]}
	return Ticket{s.engine.Endpoint(), s.engine.Epoch().String(), memory.Address(), uint64(memory.Len())}, nil
}

// Bytes is a value as it is now.
func (s *Store) Bytes(name string) []byte { return s.values[name].memory.Bytes() }

// Segment opens the peer that a ticket names.
func (s *Store) Segment(ctx context.Context, t Ticket) (*orbitte.Segment, error) {
	epoch, err := orbitte.ParseEpoch(t.Epoch)
	if err != nil {
		return nil, err
	}
	return s.engine.OpenSegment(ctx, t.Endpoint, epoch)
}

// Move runs one request of either direction between an own value and a peer's.
func (s *Store) Move(ctx context.Context, op orbitte.Operation, name string, segment *orbitte.Segment, t Ticket, note orbitte.Notification) (orbitte.Report, error) {
	return s.engine.SubmitAndNotify(ctx, []orbitte.Request{{
		Operation: op, Transport: orbitte.TransportTCP, Segment: segment,
		Local: s.values[name].registration.Address(), Remote: t.Address, Length: t.Length,
	}}, note)
}

// Start is Move without waiting.
func (s *Store) Start(ctx context.Context, op orbitte.Operation, name string, segment *orbitte.Segment, t Ticket) (*orbitte.Batch, error) {
	request := orbitte.Request{Operation: op, Segment: segment, Local: s.values[name].registration.Address(), Remote: t.Address, Length: t.Length}
	return s.engine.Submit(ctx, []orbitte.Request{request}, orbitte.NotifyAfter(orbitte.Notification{Name: name}))
}

// Told drains the notifications.
func (s *Store) Told(ctx context.Context) ([]orbitte.Notification, error) {
	return s.engine.AwaitNotifications(ctx)
}

// Owed lists the gauges that are not at zero.
func (s *Store) Owed() []orbitte.Gauge {
	var owed []orbitte.Gauge
	stats := s.engine.Stats()
	for _, g := range stats.Gauges {
		if g.Used != 0 {
			owed = append(owed, g)
		}
	}
	return owed
}

// Close ends everything, and says so when something is not proven ended.
func (s *Store) Close(ctx context.Context) error {
	var all []error
	for name, v := range s.values {
		if err := s.engine.Unregister(ctx, v.registration); err != nil {
			all = append(all, fmt.Errorf("%s: %w", name, err))
		}
		all = append(all, v.memory.Close())
	}
	all = append(all, s.engine.Close(ctx))
	for _, kept := range s.engine.RetainedResources() {
		all = append(all, fmt.Errorf("%s %s: %s", kept.Kind, kept.Object, kept.Reason))
	}
	return errors.Join(all...)
}
