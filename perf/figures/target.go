package figures

import "fmt"

// Target is a bound on one figure, and what was measured.
type Target struct {
	Name     string  `json:"name"`
	Against  string  `json:"against"`
	Unit     string  `json:"unit,omitempty"` // of Measured and Bound; empty: a ratio
	Bound    float64 `json:"bound"`
	AtMost   bool    `json:"at_most"` // the bound is an upper one
	Measured Spread  `json:"measured"`
	Rounds   int     `json:"rounds,omitempty"`  // that Measured is made of
	Planned  int     `json:"planned,omitempty"` // rounds that there are when time allows
	Absent   string  `json:"absent,omitempty"`  // why it could not be measured
	Failed   string  `json:"failed,omitempty"`  // why the engine's own side could not: then the target is short
	Detail   string  `json:"detail,omitempty"`  // both sides' figures
}

// Verdict is "ok", "short" or "absent".
func (t *Target) Verdict() string {
	switch {
	case t.Absent != "":
		return "absent"
	case t.Failed != "":
		return "short"
	case t.AtMost && t.Measured.Median <= t.Bound, !t.AtMost && t.Measured.Median >= t.Bound:
		return "ok"
	}
	return "short"
}

// BoundText is the bound as the table shows it.
func (t *Target) BoundText() string {
	sign := "≥"
	if t.AtMost {
		sign = "≤"
	}
	return sign + " " + Number(t.Bound) + unit(t.Unit)
}

// Line is NAME measured target verdict, and behind it the spread and both sides' figures.
func (t *Target) Line() string {
	if t.Absent != "" {
		return fmt.Sprintf("%-28s %12s %14s  %-6s (%s)", t.Name, "-", t.BoundText(), "absent", t.Absent)
	}
	if t.Failed != "" {
		return fmt.Sprintf("%-28s %12s %14s  %-6s (%s)", t.Name, "-", t.BoundText(), "short", t.Failed)
	}
	detail := t.SpreadText()
	if t.Detail != "" {
		detail += "; " + t.Detail
	}
	return fmt.Sprintf("%-28s %12s %14s  %-6s (%s)", t.Name, Number(t.Measured.Median)+unit(t.Unit), t.BoundText(), t.Verdict(), detail)
}

// SpreadText is the least and the greatest of the rounds; one round has no spread, and says so instead.
func (t *Target) SpreadText() string {
	switch {
	case t.Rounds == 1 && t.Planned > 1:
		return fmt.Sprintf("only 1 round of %d", t.Planned)
	case t.Rounds == 1:
		return "1 round"
	}
	return Number(t.Measured.Low) + " to " + Number(t.Measured.High)
}

func unit(u string) string {
	if u == "" {
		return ""
	}
	return " " + u
}

// Number shows three significant digits, without exponents for what people read.
func Number(v float64) string {
	switch a := max(v, -v); {
	case v == 0:
		return "0"
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 0.1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// Bytes shows a size: "4 KiB".
func Bytes(n uint64) string {
	for _, u := range []struct {
		name string
		size uint64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.size {
			if n%u.size == 0 {
				return fmt.Sprintf("%d %s", n/u.size, u.name)
			}
			return fmt.Sprintf("%.1f %s", float64(n)/float64(u.size), u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}
