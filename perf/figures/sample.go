package figures

import (
	"slices"
	"time"
)

// Sample is what one round of one subject measured. Sums, so that samples can be added; zero where a subject has no such
// figure.
type Sample struct {
	Operations uint64 // requests, round trips, pages: what the workload counts
	Bytes      uint64
	Seconds    float64    // of the timed part
	Latency    *Histogram // ns of single operations; nil where none were timed alone
	// Value is the figure of a workload that is neither a rate nor a latency, in the workload's own unit.
	Value float64

	Phases Phases
	Usage  Usage
}

// Phases says where a submission's time went, as its caller sees it. Sums over Submissions, which are others than those that
// Latency has: a caller sees the three parts of Submit and Wait only, while Latency has SubmitAndWait, where the caller may
// do the lane's work itself.
type Phases struct {
	Submissions uint64
	Prepare     time.Duration // the caller builds its list of requests
	Post        time.Duration // Submit: checks, charges, hand-over to the lane
	Transfer    time.Duration // from Submit's return to the end of the batch
}

// Usage is what all processes of a subject used during the timed part.
type Usage struct {
	User, System float64 // CPU-seconds
	// Calls are system calls; CallsBy says how they were counted, and is empty where they were not.
	Calls   uint64
	CallsBy string
	// Allocations and AllocatedBytes are of the Go heaps of this process and of the source process. Counted is false for
	// programs of others, which cannot be asked.
	Allocations, AllocatedBytes uint64
	AllocationsCounted          bool
	PeakBytes                   uint64 // largest sum of resident memory of the processes during the sample
	Crossings                   uint64 // system calls of the engines' lanes, by the engines' own count
}

// Add sums another process or part of the same sample.
func (u *Usage) Add(o Usage) {
	u.User += o.User
	u.System += o.System
	u.Calls += o.Calls
	if u.CallsBy == "" {
		u.CallsBy = o.CallsBy
	}
	u.Allocations += o.Allocations
	u.AllocatedBytes += o.AllocatedBytes
	u.AllocationsCounted = u.AllocationsCounted || o.AllocationsCounted
	u.PeakBytes += o.PeakBytes
	u.Crossings += o.Crossings
}

// Rate is GB/s (10^9 bytes).
func (s *Sample) Rate() float64 { return per(float64(s.Bytes)/1e9, s.Seconds) }

// PerSecond is operations per second.
func (s *Sample) PerSecond() float64 { return per(float64(s.Operations), s.Seconds) }

func per(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// Spread is the median of some rounds with the least and the greatest.
type Spread struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

// SpreadOf is the spread of a list; zero for none. An even count takes the mean of the two in the middle.
func SpreadOf(list []float64) Spread {
	if len(list) == 0 {
		return Spread{}
	}
	sorted := slices.Sorted(slices.Values(list))
	middle := sorted[len(sorted)/2]
	if len(sorted)%2 == 0 {
		middle = (middle + sorted[len(sorted)/2-1]) / 2
	}
	return Spread{middle, sorted[0], sorted[len(sorted)-1]}
}

// Median is the middle of a list.
func Median(list []float64) float64 { return SpreadOf(list).Median }
