// Package budgets says what may be promised: named limits, and receipts for amounts held against
// them. It is the only place that compares what is used with a limit, and the only place that repays
// (SPEC U-1 to U-3).
//
// It owns numbers and nothing else. A Budget lives as long as its engine and ends with it. A Charge is
// the receipt for one amount: Take makes it, exactly one holder keeps it, Move hands it on, and Repay
// ends it exactly once. A charge that cannot be repaid because a proof is missing stays with its
// holder, and the budget goes on showing it.
//
// It imports the standard library only, and none of this module's packages.
//
// The states of a Charge:
//
//	           Take                   Repay
//	(refused) <----- empty ----> held -----> empty
//	 *Exhausted                   |
//	                              | Move: this holder empty, the other one held
//	                              +---------------------------------------------> empty
//
// Repay and Move of an empty charge are mistakes of this program and panic.
//
// It relies on nothing outside but atomic 64-bit integers. All of it may be used from any goroutine;
// there is no lock, and Take and Repay do not allocate unless Take refuses.
package budgets
