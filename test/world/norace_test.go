//go:build !race

package world

// seedsTested is how many seeds each go test runs.
const seedsTested = 200
