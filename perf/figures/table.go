package figures

import (
	"fmt"
	"io"
	"strings"
)

// WriteTable writes the rows of one group, with a heading.
func WriteTable(w io.Writer, group string, cells []*Cell) error {
	header := []string{"subject", "GB/s", "low … high", "op/s", "p50", "p90", "p99", "p99.9 µs", "ratio", "low … high", "cpu s/GiB", "calls/op", "allocs/op", "peak MiB"}
	rows := [][]string{header}
	for _, c := range cells {
		rows = append(rows, row(c))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", group)
	for _, r := range align(rows) {
		fmt.Fprintf(&b, "  %s\n", r)
	}
	for _, c := range cells {
		if c.Note != "" {
			fmt.Fprintf(&b, "  %s: %s\n", c.Subject, c.Note)
		}
	}
	_, err := io.WriteString(w, b.String()+"\n")
	return err
}

func row(c *Cell) []string {
	name := c.Subject
	if c.Baseline {
		name += " *"
	}
	switch {
	case c.Absent != "":
		return []string{name, "absent: " + c.Absent}
	case c.Failed != "":
		return []string{name, "failed: " + c.Failed}
	case c.Rounds == 0:
		return []string{name, "not measured: interrupted"}
	}
	out := []string{name, shown(c.Rate.Median), between(&c.Rate), shown(c.Ops.Median)}
	if c.Unit != "" {
		out = []string{name, Number(c.Value.Median) + " " + c.Unit, between(&c.Value), shown(c.Ops.Median)}
	}
	out = append(out, Times(c.Latency)...)
	if c.Ratio != nil {
		out = append(out, Number(c.Ratio.Median), between(c.Ratio))
	} else {
		out = append(out, "", "")
	}
	return append(out, shown(c.CPUPerGiB), Calls(c), Allocs(c), shown(c.PeakMiB))
}

// Times shows p50, p90, p99 and p99.9; those that too few times were recorded for stay empty, since they would be the
// slowest one only.
func Times(q *Quantiles) []string {
	out := make([]string, 4)
	if q == nil {
		return out
	}
	values := []float64{q.P50, q.P90, q.P99, q.P999}
	for i, least := range []int64{1, 10, 100, 1000} {
		if q.Count >= least {
			out[i] = Number(values[i])
		}
	}
	return out
}

func shown(v float64) string {
	if v == 0 {
		return ""
	}
	return Number(v)
}

func between(s *Spread) string {
	if s.Low == 0 && s.High == 0 {
		return ""
	}
	return Number(s.Low) + " … " + Number(s.High)
}

// Calls is the number of system calls of one operation, or nothing.
func Calls(c *Cell) string {
	if c.CallsBy == "" {
		return ""
	}
	return Number(c.CallsPerOp)
}

// Allocs is the number of allocations of one operation, or nothing.
func Allocs(c *Cell) string {
	if c.AllocsPerOp < 0 || c.Absent != "" {
		return ""
	}
	return Number(c.AllocsPerOp)
}

// align pads the columns; a row shorter than the header ends with free text.
func align(rows [][]string) []string {
	widths := make([]int, len(rows[0]))
	for _, r := range rows {
		for i, text := range r {
			if len(r) == len(widths) || i == 0 {
				widths[i] = max(widths[i], len([]rune(text)))
			}
		}
	}
	var out []string
	for _, r := range rows {
		var b strings.Builder
		for i, text := range r {
			pad := strings.Repeat(" ", max(widths[i]-len([]rune(text)), 0))
			switch {
			case i == 0:
				b.WriteString(text + pad)
			case len(r) < len(widths):
				b.WriteString("  " + text)
			default:
				b.WriteString("  " + pad + text)
			}
		}
		out = append(out, strings.TrimRight(b.String(), " "))
	}
	return out
}
