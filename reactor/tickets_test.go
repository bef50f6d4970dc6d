package reactor

import (
	"math/rand/v2"
	"testing"
)

var ignore = handlerFunc(func(Event) {})

func TestTicketIsFoundOnlyUntilItsEnd(t *testing.T) {
	table := newTicketTable(1)
	a, b := table.take(Receive, ignore), table.take(Send, ignore)
	if a == 0 || b == 0 || a == b {
		t.Fatalf("tickets %#x and %#x", a, b)
	}
	if h, kind := table.end(b); h == nil || kind != Send {
		t.Fatalf("end of a live ticket: handler %v, kind %d", h, kind)
	}
	if h, _ := table.end(b); h != nil {
		t.Fatal("a ticket ended twice")
	}
	c := table.take(Watch, ignore)
	if uint32(c) != uint32(b) || c == b {
		t.Fatalf("the slot of %#x was to be used again under a new generation, got %#x", b, c)
	}
	if table.find(b) != nil || table.find(a) == nil || table.find(c) == nil {
		t.Fatal("wrong tickets are found")
	}
	for _, never := range []Ticket{0, 1, 1 << 32, 1<<32 | 77, ^Ticket(0)} {
		if never != a && table.find(never) != nil {
			t.Fatalf("ticket %#x was never given out and is found", never)
		}
	}
}

func TestGenerationSkipsZeroWhenItWraps(t *testing.T) {
	table := newTicketTable(1)
	table.end(table.take(Send, ignore))
	table.slots[0].generation = ^uint32(0)
	last := table.take(Send, ignore)
	table.end(last)
	if next := table.take(Send, ignore); next>>32 != 1 {
		t.Fatalf("after generation %#x comes %#x", last>>32, next>>32)
	}
}

// Replay: set seed to the printed number.
func TestTicketsAgreeWithAModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	table := newTicketTable(0)
	live, past := map[Ticket]Kind{}, []Ticket{}
	var order []Ticket
	for range 20000 {
		switch {
		case random.IntN(2) == 0:
			kind := Kind(1 + random.IntN(5))
			ticket := table.take(kind, ignore)
			if _, used := live[ticket]; used {
				t.Fatalf("ticket %#x is given out twice", ticket)
			}
			live[ticket] = kind
			order = append(order, ticket)
		case len(order) > 0:
			i := random.IntN(len(order))
			ticket := order[i]
			order[i] = order[len(order)-1]
			order = order[:len(order)-1]
			if h, kind := table.end(ticket); h == nil || kind != live[ticket] {
				t.Fatalf("live ticket %#x: handler %v, kind %d, wanted %d", ticket, h, kind, live[ticket])
			}
			delete(live, ticket)
			past = append(past, ticket)
		}
		if len(past) > 0 {
			if stale := past[random.IntN(len(past))]; table.find(stale) != nil {
				t.Fatalf("stale ticket %#x is found", stale)
			}
		}
		if table.outstanding != len(live) {
			t.Fatalf("%d outstanding, wanted %d", table.outstanding, len(live))
		}
	}
}
