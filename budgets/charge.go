package budgets

import "fmt"

// Charge is the receipt for one amount held against one budget. Exactly one holder owns it and repays
// it exactly once; it is handed on with Move, not by plain assignment. The zero value is "no charge".
// A Charge is not safe for concurrent use; its owner is one goroutine at a time.
type Charge struct {
	budget *Budget // nil exactly when nothing is held
	amount int64
}

// Held reports whether the charge is still to be repaid.
func (c *Charge) Held() bool { return c.budget != nil }

// Amount returns the units held, 0 when the charge is empty.
func (c *Charge) Amount() int64 { return c.amount }

// Repay gives the amount back and leaves the charge empty. The caller has the proof that the charged
// thing has ended, and names it beside the call. Repaying an empty charge (never taken, moved away, or
// repaid before) panics.
func (c *Charge) Repay() {
	c.mustBeHeld("Repay")
	b, n := c.budget, c.amount
	*c = Charge{}
	b.repay(n)
}

// Move hands the charge to the caller and leaves this holder empty. Moving an empty charge panics,
// because the new holder would believe to hold something.
func (c *Charge) Move() Charge {
	c.mustBeHeld("Move")
	moved := *c
	*c = Charge{}
	return moved
}

func (c *Charge) mustBeHeld(verb string) {
	if c.budget == nil {
		panic(fmt.Sprintf("budgets: %s of a charge that is empty, want held: never taken, moved away or repaid before", verb))
	}
}
