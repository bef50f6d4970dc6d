// Package arch is the plan of the house as a test: which folders exist, what each room is for, which
// rooms it may import, which words it may say, and how large and how documented its parts are.
//
// It owns nothing. It reads the source tree with go/parser, non-test code under every build tag, and
// ends within seconds; nothing is compiled, started or downloaded.
//
// It may import the standard library's parser only, and none of our rooms, so that it still runs when
// a room does not compile.
//
// There are no states. Each rule gives findings, and each finding names the file, the line, the rule
// and the remedy:
//
//	tree → files → rules (plan, imports, words, machines, shapes) → findings
//
// It relies on the tables in rooms_test.go and words_test.go. A wall is changed there and in the code
// in one commit that says why; the self-test proves that each rule can fail.
package arch
