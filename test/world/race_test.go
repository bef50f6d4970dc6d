//go:build race

package world

// seedsTested is what the race detector, some ten times slower, has time for.
const seedsTested = 20
