//go:build race

package main

// underRace is true exactly when the race detector watches this binary, and so every process of the soak.
const underRace = true
