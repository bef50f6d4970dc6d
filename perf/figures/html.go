package figures

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"number": Number, "bytes": Bytes, "shown": shown, "calls": Calls, "allocs": Allocs, "times": Times, "kind": kindOf,
	"between": func(s Spread) string { return between(&s) },
	"percent": func(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) },
}).Parse(pageText))

// WriteHTML writes the run as one page that needs nothing beside it: no network, no script.
func WriteHTML(w io.Writer, run *Run) error { return page.Execute(w, viewOf(run)) }

// view is the page's content.
type view struct {
	Machine   Machine
	Peers     [][2]string
	Targets   []Target
	Counts    map[string]int // verdicts
	Workloads []workloadView
	CallsBy   string
	End       *End
}

type workloadView struct {
	Name   string
	Charts []template.HTML // over all groups
	Groups []groupView
}

type groupView struct {
	Name   string
	Charts []template.HTML
	Cells  []*Cell
	Absent []*Cell
	Notes  []string
}

func viewOf(run *Run) view {
	v := view{Machine: run.Machine, Targets: run.Targets, Counts: map[string]int{}, End: run.End}
	for name, state := range run.Machine.Peers {
		v.Peers = append(v.Peers, [2]string{name, state})
	}
	slices.SortFunc(v.Peers, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	for i := range v.Targets {
		v.Counts[v.Targets[i].Verdict()]++
	}
	for _, c := range run.Cells {
		if c.CallsBy != "" {
			v.CallsBy = c.CallsBy
		}
		v.place(c)
	}
	for i := range v.Workloads {
		w := &v.Workloads[i]
		w.Charts = overSizes(w.Groups)
		for k := range w.Groups {
			w.Groups[k].draw()
		}
	}
	return v
}

// place puts a cell into its workload and group, in the order of their first cells.
func (v *view) place(c *Cell) {
	i := slices.IndexFunc(v.Workloads, func(w workloadView) bool { return w.Name == c.Workload })
	if i < 0 {
		i = len(v.Workloads)
		v.Workloads = append(v.Workloads, workloadView{Name: c.Workload})
	}
	w := &v.Workloads[i]
	k := slices.IndexFunc(w.Groups, func(g groupView) bool { return g.Name == c.Group })
	if k < 0 {
		k = len(w.Groups)
		w.Groups = append(w.Groups, groupView{Name: c.Group})
	}
	g := &w.Groups[k]
	if c.Absent != "" || c.Failed != "" || c.Rounds == 0 {
		g.Absent = append(g.Absent, c)
		return
	}
	g.Cells = append(g.Cells, c)
	if c.Note != "" {
		g.Notes = append(g.Notes, c.Subject+": "+c.Note)
	}
}

// draw makes the group's pictures.
func (g *groupView) draw() {
	if len(g.Cells) == 0 {
		return
	}
	figure := figureOf(g.Cells)
	var rows []bar
	var times []quantileRow
	var phases []stackedRow
	for _, c := range g.Cells {
		b := bar{label: c.Subject, kind: kindOf(c)}
		b.value = shownFigure(c, figure)
		if c.Ratio != nil {
			b.more = "(" + Number(c.Ratio.Median) + ")"
		}
		rows = append(rows, b)
		if c.Latency != nil && figure == P50 {
			times = append(times, quantileRow{c.Subject, kindOf(c), c.Latency, b.more})
		}
		if c.PostMicros > 0 {
			phases = append(phases, stackedRow{c.Subject, []part{{"prepare", c.PrepareMicros}, {"post", c.PostMicros}, {"transfer", c.TransferMicros}},
				"mean " + Number(c.PrepareMicros+c.PostMicros+c.TransferMicros) + " µs"})
		}
	}
	if len(times) > 0 {
		g.Charts = append(g.Charts, quantileChart(g.Name+": latency", times))
	} else {
		g.Charts = append(g.Charts, barChart(g.Name, unitOf(g.Cells, figure), rows))
	}
	if len(phases) > 0 {
		g.Charts = append(g.Charts, stackedChart(g.Name+": where a submission's time goes, by Submit and Wait",
			"means of Submit and Wait, not of the timed submissions: prepare (light), post (middle), transfer (dark)", phases))
	}
}

// figureOf is what the group compares.
func figureOf(cells []*Cell) Figure {
	for _, c := range cells {
		if c.Measured != "" {
			return Figure(c.Measured)
		}
		if c.Unit != "" {
			return Value
		}
	}
	return Rate
}

func shownFigure(c *Cell, f Figure) Spread {
	switch f {
	case Operations:
		return c.Ops
	case Value:
		return c.Value
	}
	return c.Rate
}

func unitOf(cells []*Cell, f Figure) string {
	switch f {
	case Operations:
		return "operations a second"
	case Value:
		return cells[0].Unit + ": less is better"
	}
	return "GB/s (behind it the ratio to the best baseline)"
}

// overSizes draws one chart for each operation whose groups differ in size alone.
func overSizes(groups []groupView) []template.HTML {
	var charts []template.HTML
	for _, operation := range []string{"READ", "WRITE"} {
		var all []series
		sizes := map[float64]bool{}
		for _, g := range groups {
			for _, c := range g.Cells {
				if c.Axes.Operation == operation && c.Workload == "bulk" {
					sizes[float64(c.Axes.Size)] = true
					all = extend(all, c)
				}
			}
		}
		if len(sizes) > 1 {
			charts = append(charts, lineChart(operation+": rate over sizes", operation+", GB/s", all))
		}
	}
	return charts
}

// extend adds the cell's point to its subject's line. Batches differ with sizes, so the name before the comma counts.
func extend(all []series, c *Cell) []series {
	name, _, _ := strings.Cut(c.Subject, ", batches")
	i := slices.IndexFunc(all, func(s series) bool { return s.label == name })
	if i < 0 {
		same := 0
		for _, s := range all {
			if s.kind == kindOf(c) {
				same++
			}
		}
		i = len(all)
		all = append(all, series{label: name, kind: kindOf(c), dashes: same})
	}
	all[i].x, all[i].y = append(all[i].x, float64(c.Axes.Size)), append(all[i].y, c.Rate.Median)
	return all
}
