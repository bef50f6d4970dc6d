// Command summary runs the phases behind make test and make fuzz, prints each with its seconds, and
// ends with the line "N passed, N failed", counted over all of them.
//
//	summary [-limit 27m] test [PHASE …]
//	summary [-time 10m] [-parallel N] fuzz [PACKAGE …]
//
// It owns the processes it starts; each is its own process group and is killed as a whole when the
// limit is reached or the run is interrupted, which counts as a failure. The exit status is 0 when nothing failed, 1 when
// something did, 2 when the command line is wrong.
//
// What counts: of go test the innermost tests (a test with subtests counts when it fails by itself), a
// package that fails without a failing test, and each other phase as one. A script test/NAME/run.sh or
// test/NAME/check.sh counts as one, or as what its own closing line "N passed, N failed" says; exit
// status 77 means skipped, and its last line is the reason. test/demo belongs to make demo, test/vm to the phase vm,
// whose events count as those of go test.
//
// Skips have a type: a reason that begins "word: …" has the type word, others are "untyped". Types of
// the phases themselves: no-c-compiler, no-network.
//
// It imports the standard library only, so that it builds before anything else does.
package main
