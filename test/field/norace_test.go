//go:build !race

package field

// underRace is true exactly when the race detector watches.
const underRace = false
