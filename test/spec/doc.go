// Package spec leads from each requirement to its proof: it holds the numbers of the contract that are
// in scope and checks that a test names each of them. REQUIREMENTS.md says in one line what each means.
//
// It owns nothing. It reads comments in the tree and ends. A comment counts when it stands in or
// directly above a test or fuzz function, anywhere in the conformance suite (reactor/kerneltest) and
// in programs and scripts below test/. Its line begins so:
//
//	// proves T-5
//	// proves M-4, M-5; field case F-9
//	# field case F-40
//
// It imports the standard library's parser only, and none of our rooms.
//
// There are no states: numbers and comments in, a table "requirement → file:line function" out
// (go test -v), and a failure with the list of what nobody proves, of numbers that do not exist, and of
// comments that stand where no test runs; also of numbers without a line in REQUIREMENTS.md.
//
// It relies on the numbers of the contract staying as they are; a number is never given away twice.
package spec
