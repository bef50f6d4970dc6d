package figures

// Axes say what was done, as far as it is one of the harness's dimensions.
type Axes struct {
	Operation string `json:"operation,omitempty"` // READ or WRITE, as the requester sees it
	Size      uint64 `json:"size,omitempty"`      // bytes of one operation
	Batch     int    `json:"batch,omitempty"`     // operations of one submission
	Streams   int    `json:"streams,omitempty"`   // streams, or submitters, in parallel
	Peers     int    `json:"peers,omitempty"`
	Progress  string `json:"progress,omitempty"`
	Kernel    string `json:"kernel,omitempty"`
	Transport string `json:"transport,omitempty"` // tcp, hptcp; empty for others than the engine
	Placement string `json:"placement,omitempty"` // staged, direct
}

// Cell is one subject in one workload, all rounds together.
type Cell struct {
	Workload string `json:"workload"` // a kind of work: "bulk", "latency", …
	Group    string `json:"group"`    // what was measured in the same rounds, so that the cells of a group compare
	Subject  string `json:"subject"`
	Axes     Axes   `json:"axes"`
	Baseline bool   `json:"baseline,omitempty"` // one of those the group is held against
	Absent   string `json:"absent,omitempty"`   // why there are no figures
	Failed   string `json:"failed,omitempty"`   // the error that ended the rounds early

	Rounds   int     `json:"rounds"`
	Rate     Spread  `json:"gigabytes_per_second"`
	Ops      Spread  `json:"operations_per_second"`
	P50      Spread  `json:"p50_us"`    // of the rounds' medians
	P99      Spread  `json:"p99_us"`    // of the rounds' 99th percentiles
	Value    Spread  `json:"value"`     // in Unit
	Unit     string  `json:"unit"`      // of Value; empty: there is none
	Against  string  `json:"against"`   // what Ratio is held against
	Measured string  `json:"measured"`  // which figure Ratio compares: "rate", "p50", "operations", "value"
	Ratio    *Spread `json:"ratio"`     // of the rounds' ratios; nil for the baseline and for what has none
	RatioP99 *Spread `json:"ratio_p99"` // the same of the 99th percentiles; nil where none were timed

	Latency *Quantiles `json:"latency_us"` // all rounds in one histogram

	PrepareMicros  float64 `json:"prepare_us"` // the three are means over submissions by Submit and Wait (see Phases),
	PostMicros     float64 `json:"post_us"`    // not over those of Latency, so they do not add up to its p50 or mean
	TransferMicros float64 `json:"transfer_us"`

	CPUPerGiB      float64 `json:"cpu_seconds_per_gib"` // both processes, user and system
	CPUPerOp       float64 `json:"cpu_us_per_operation"`
	SystemShare    float64 `json:"system_share"` // of the CPU time, 0 to 1
	CallsPerOp     float64 `json:"calls_per_operation"`
	CallsBy        string  `json:"calls_by,omitempty"`
	CrossingsPerOp float64 `json:"crossings_per_operation"`
	AllocsPerOp    float64 `json:"allocations_per_operation"` // -1: not counted
	AllocBytes     float64 `json:"allocated_bytes_per_operation"`
	PeakMiB        float64 `json:"peak_mib"`
	Note           string  `json:"note,omitempty"`
}

// Fill merges the rounds of a subject into the cell.
func (c *Cell) Fill(rounds []Sample) {
	var total Sample
	all := NewHistogram()
	var rate, ops, p50, p99, value []float64
	for i := range rounds {
		s := &rounds[i]
		rate, ops, value = append(rate, s.Rate()), append(ops, s.PerSecond()), append(value, s.Value)
		if q := s.Latency.Quantiles(); q != nil {
			p50, p99 = append(p50, q.P50), append(p99, q.P99)
			all.Merge(s.Latency)
		}
		total.add(s)
	}
	c.Rounds = len(rounds)
	c.Rate, c.Ops, c.P50, c.P99, c.Value = SpreadOf(rate), SpreadOf(ops), SpreadOf(p50), SpreadOf(p99), SpreadOf(value)
	c.Latency = all.Quantiles()
	c.fillPhases(&total.Phases)
	c.fillUsage(&total)
}

// FillCalls takes the system calls from another sample than the rounds.
func (c *Cell) FillCalls(s *Sample) {
	c.CallsPerOp, c.CallsBy = per(float64(s.Usage.Calls), float64(s.Operations)), s.Usage.CallsBy
}

func (s *Sample) add(o *Sample) {
	peak := max(s.Usage.PeakBytes, o.Usage.PeakBytes)
	s.Operations += o.Operations
	s.Bytes += o.Bytes
	s.Seconds += o.Seconds
	s.Phases.Submissions += o.Phases.Submissions
	s.Phases.Prepare += o.Phases.Prepare
	s.Phases.Post += o.Phases.Post
	s.Phases.Transfer += o.Phases.Transfer
	s.Usage.Add(o.Usage)
	s.Usage.PeakBytes = peak
}

func (c *Cell) fillPhases(p *Phases) {
	n := float64(p.Submissions)
	c.PrepareMicros, c.PostMicros, c.TransferMicros = per(micro(p.Prepare), n), per(micro(p.Post), n), per(micro(p.Transfer), n)
}

func (c *Cell) fillUsage(s *Sample) {
	u, n := &s.Usage, float64(s.Operations)
	cpu := u.User + u.System
	c.CPUPerGiB = per(cpu, float64(s.Bytes)/(1<<30))
	c.CPUPerOp = per(cpu*1e6, n)
	c.SystemShare = per(u.System, cpu)
	c.CallsPerOp, c.CallsBy, c.CrossingsPerOp = per(float64(u.Calls), n), u.CallsBy, per(float64(u.Crossings), n)
	c.AllocsPerOp, c.AllocBytes = -1, 0
	if u.AllocationsCounted {
		c.AllocsPerOp, c.AllocBytes = per(float64(u.Allocations), n), per(float64(u.AllocatedBytes), n)
	}
	c.PeakMiB = float64(u.PeakBytes) / (1 << 20)
}

// Figure is what a workload compares.
type Figure string

const (
	Rate       Figure = "rate"
	Operations Figure = "operations"
	P50        Figure = "p50"
	Value      Figure = "value"
)

// LessIsBetter says whether a small ratio is the good one.
func (f Figure) LessIsBetter() bool { return f == P50 || f == Value }

// Of reads the figure from a sample.
func (f Figure) Of(s *Sample) float64 {
	switch f {
	case Operations:
		return s.PerSecond()
	case P50:
		return quantile(s, 0.5)
	case Value:
		return s.Value
	}
	return s.Rate()
}

func quantile(s *Sample, q float64) float64 {
	if s.Latency == nil || s.Latency.Count() == 0 {
		return 0
	}
	return micro(s.Latency.Quantile(q))
}

// Compare fills the ratios: each round of this subject over the same round of the best baseline.
func (c *Cell) Compare(f Figure, own []Sample, baselines [][]Sample) {
	c.Measured = string(f)
	c.Ratio = ratios(f.Of, f.LessIsBetter(), own, baselines)
	c.RatioP99 = ratios(func(s *Sample) float64 { return quantile(s, 0.99) }, true, own, baselines)
}

func ratios(figure func(*Sample) float64, least bool, own []Sample, baselines [][]Sample) *Spread {
	best := Best(figure, least, baselines)
	if best < 0 {
		return nil
	}
	var list []float64
	for i := range min(len(own), len(baselines[best])) {
		if v := figure(&baselines[best][i]); v > 0 {
			list = append(list, figure(&own[i])/v)
		}
	}
	return spreadOrNil(list)
}

// Best is the index of the subject with the best median over its rounds, of those that have the figure; -1 when none has.
// One is chosen for the whole run: the best of each round would be the best of the noise of several as well, a figure that
// none of them has.
func Best(figure func(*Sample) float64, least bool, subjects [][]Sample) int {
	best, at := 0.0, -1
	for k, samples := range subjects {
		var list []float64
		for i := range samples {
			list = append(list, figure(&samples[i]))
		}
		if v := Median(list); v > 0 && (at < 0 || least && v < best || !least && v > best) {
			best, at = v, k
		}
	}
	return at
}

func spreadOrNil(list []float64) *Spread {
	if len(list) == 0 {
		return nil
	}
	s := SpreadOf(list)
	return &s
}
