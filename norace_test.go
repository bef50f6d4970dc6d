//go:build !race

package orbitte

const raceEnabled = false
