// Package examples holds one short program per job; go run ./examples/NAME runs one.
package examples
