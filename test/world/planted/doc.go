// Command planted plants one realistic mistake into the engine and builds the simulated world with it. It is the
// proof that the world's oracles can fail: each plant of testdata must be found within 2,000 seeds.
//
//	planted list               names, expected oracles and titles
//	planted build NAME OUT     the world's program with the mistake in it, at OUT
//	planted overlay NAME DIR   the changed files below DIR, and the list for go build -overlay, whose path is printed
//
// It owns no state. A plant is text; what it changes are copies in a scratch folder, which the go command reads instead
// of the real files (go build -overlay) and which is removed afterwards. Shipped code is never touched and knows
// nothing of plants: what a real program runs is what is simulated.
//
// It may import the standard library only: the world's program is built and started, not linked.
//
// A plant goes through three states, and each can refuse:
//
//	text ──Parse──▶ Plant ──Apply──▶ changed files ──Build──▶ program
//
// Apply refuses a plant whose old text does not stand exactly once in its file: the code has moved on, and the plant
// must be renewed. Without a build tag the tests check that every plant applies and that its result parses; under the tag
// "planted" (make planted) each is built, run and must be found by the oracle that it names.
//
// Nobody in the world is hostile: testdata/elsewhere.txt lists mistakes that only a hostile peer brings to light, with the
// tests that see them.
//
// It relies on the go command and on the lines that test/world/sim prints for a violation.
package main
