package baselines

import "time"

// Copy copies count blocks of a size between two memories that go round, on one core, and returns the time it took.
func Copy(to, from []byte, count int, size uint64) time.Duration {
	start := time.Now()
	for i := range uint64(count) {
		copy(Part(to, i, size), Part(from, i, size))
	}
	return time.Since(start)
}
