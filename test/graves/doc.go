// Package graves shows whether anybody touches an object after it has told its owner of its end: the owner may use it again
// at once, on another lane even.
//
// It owns what was interred until it is dug up, behind the step of a simulated world that is under way.
//
// It imports nothing of the project; tests of the rooms import it.
//
//	in use ──Done: Inter──▶ poisoned ──Dig──▶ as it ended
//
// It relies on reflect.DeepEqual, which looks at unexported fields, too.
package graves
