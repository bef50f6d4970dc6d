package budgets

import "fmt"

// Snapshot is what one budget looked like at one moment. The numbers of one snapshot are read one
// after the other while work may go on; Used never exceeds Peak or Limit in it.
type Snapshot struct {
	Name, Unit        string
	Used, Peak, Limit int64
	Refusals          uint64
}

// Snapshot reads the budget. Safe from any goroutine.
func (b *Budget) Snapshot() Snapshot {
	used := b.used.Load()
	return Snapshot{
		Name: b.name, Unit: b.unit,
		Used: used, Peak: max(used, b.peak.Load()), Limit: b.limit, // a new maximum may not have reached peak yet
		Refusals: b.refusals.Load(),
	}
}

// Ledger is an ordered list of budgets. The zero value is empty. It is filled with Add while one
// goroutine owns it; from then on it is only read, from any goroutine.
type Ledger struct {
	list []*Budget
}

// Add appends b and returns it. A second budget of the same name panics: errors and snapshots could
// not tell the two apart.
func (l *Ledger) Add(b *Budget) *Budget {
	for _, other := range l.list {
		if other.name == b.name {
			panic(fmt.Sprintf("budgets: Ledger.Add of a second %q, want every name once", b.name))
		}
	}
	l.list = append(l.list, b)
	return b
}

// Snapshot reads all budgets in the order in which they were added.
func (l *Ledger) Snapshot() []Snapshot {
	all := make([]Snapshot, len(l.list))
	for i, b := range l.list {
		all[i] = b.Snapshot()
	}
	return all
}

// Owed reads the budgets that are not at zero, in order; nil when nothing is owed (SPEC U-2). A held
// charge of amount zero does not show.
func (l *Ledger) Owed() []Snapshot {
	var owed []Snapshot
	for _, b := range l.list {
		if s := b.Snapshot(); s.Used != 0 {
			owed = append(owed, s)
		}
	}
	return owed
}
