package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/orbitte/orbitte"
)

// mail is the notifications of one life: what it has sent, by the receiver's epoch, and what it has got, by the
// sender's life. The parent compares the two.
type mail struct {
	life *life
	mu   sync.Mutex
	sent map[orbitte.Epoch]*[2]int64 // receipts; neither receipt nor certainly not delivered
	got  map[string]int64
	seen map[string]bool
	last int
}

func (m *mail) begin() {
	m.sent, m.got, m.seen = map[orbitte.Epoch]*[2]int64{}, map[string]int64{}, map[string]bool{}
}

// note makes the next notification: its name says who sends it and is never used again, its message follows from it.
func (m *mail) note() orbitte.Notification {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last++
	name := fmt.Sprintf("%s#%d", m.life.name(), m.last)
	return orbitte.Notification{Name: name, Message: messageOf(name)}
}

func messageOf(name string) string {
	h := hashOf(name)
	return strings.Repeat(fmt.Sprintf("%016x ", h), int(h%100))
}

// count notes what became of a notification.
func (m *mail) count(to orbitte.Epoch, r orbitte.NotificationReport) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.sent[to]
	if n == nil {
		n = new([2]int64)
		m.sent[to] = n
	}
	switch {
	case r.Status == orbitte.Delivered:
		n[0]++
		m.life.p.count.notes.Add(1)
	case r.Effect == orbitte.EffectUnknown:
		n[1]++
	}
}

// receive takes notifications in until the engine is left.
func (m *mail) receive() {
	for !m.life.stopped() {
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		notes, err := m.life.engine.AwaitNotifications(ctx)
		cancel()
		m.take(notes)
		if err == nil || errors.Is(err, orbitte.ErrDeadline) {
			continue
		}
		m.life.tolerate("AwaitNotifications", err)
		time.Sleep(time.Millisecond)
	}
}

func (m *mail) take(notes []orbitte.Notification) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range notes {
		if n.Message != messageOf(n.Name) {
			m.life.fail("notification %q has the message %q", n.Name, n.Message)
		}
		if m.seen[n.Name] {
			m.life.fail("notification %q came twice", n.Name)
		}
		m.seen[n.Name] = true
		from, _, _ := strings.Cut(n.Name, "#")
		m.got[from]++
	}
}

// report drains the inbox of the closed engine and tells the parent everything.
func (m *mail) report() {
	m.take(m.life.engine.ReceiveNotifications())
	for epoch, n := range m.sent {
		m.life.p.say("sent %s %s %d %d", m.life.name(), epoch, n[0], n[1])
	}
	for from, n := range m.got {
		m.life.p.say("got %s %s %d", m.life.engine.Epoch(), from, n)
	}
}
