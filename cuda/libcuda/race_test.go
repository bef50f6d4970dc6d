//go:build cgo && race

package libcuda

const raceEnabled = true
