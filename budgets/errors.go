package budgets

import (
	"errors"
	"fmt"
)

// ErrExhausted matches every *Exhausted in errors.Is.
var ErrExhausted = errors.New("budget exhausted")

// Exhausted says that an amount did not fit under a budget (SPEC U-3). Nothing was charged, and
// whatever was to be charged for was not begun.
type Exhausted struct {
	Budget string // name of the budget
	Unit   string // unit of the three amounts
	Asked  int64  // what did not fit
	Used   int64  // in use at the moment of refusal
	Limit  int64  // most that may be in use
}

// Error states budget, amounts, certainty and remedy.
func (e *Exhausted) Error() string {
	remedy := "wait until running work ends, or raise the limit"
	if e.Asked > e.Limit {
		remedy = "it can never fit: ask for less, or raise the limit"
	}
	return fmt.Sprintf("budget %q exhausted: asked %d, in use %d, limit %d %s; nothing was begun; %s",
		e.Budget, e.Asked, e.Used, e.Limit, e.Unit, remedy)
}

// Is makes errors.Is(err, ErrExhausted) true.
func (e *Exhausted) Is(target error) bool { return target == ErrExhausted }
