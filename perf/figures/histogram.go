package figures

import (
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// Histogram holds times from 1 ns to 100 s with three significant digits. One goroutine at a time.
type Histogram struct{ h *hdr.Histogram }

const longest = int64(100 * time.Second)

// NewHistogram makes an empty one.
func NewHistogram() *Histogram { return &Histogram{hdr.New(1, longest, 3)} }

// Record notes one time; times outside the range count as its nearest end.
func (h *Histogram) Record(d time.Duration) {
	_ = h.h.RecordValue(min(max(int64(d), 1), longest)) // inside its range it cannot fail
}

// Merge adds the times of another; nil adds nothing.
func (h *Histogram) Merge(o *Histogram) {
	if o != nil {
		h.h.Merge(o.h)
	}
}

// Count is how many times were recorded.
func (h *Histogram) Count() int64 { return h.h.TotalCount() }

// Quantile is the time below which a share q (0 to 1) lies.
func (h *Histogram) Quantile(q float64) time.Duration {
	return time.Duration(h.h.ValueAtQuantile(q * 100))
}

// Quantiles are the shown ones, in µs.
type Quantiles struct {
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p99_9"`
	Max   float64 `json:"max"`
	Mean  float64 `json:"mean"`
	Count int64   `json:"count"`
}

// Quantiles reads the shown ones; nil for a histogram without times.
func (h *Histogram) Quantiles() *Quantiles {
	if h == nil || h.Count() == 0 {
		return nil
	}
	at := func(q float64) float64 { return micro(h.Quantile(q)) }
	return &Quantiles{at(0.5), at(0.9), at(0.99), at(0.999), float64(h.h.Max()) / 1e3, h.h.Mean() / 1e3, h.Count()}
}

func micro(d time.Duration) float64 { return float64(d) / 1e3 }
