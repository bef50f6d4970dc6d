package figures

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strings"
)

// kind is whose figures something is; it chooses the colour.
type kind string

const (
	own      kind = "own"  // this engine's
	baseline kind = "base" // what a ratio is held against
	other    kind = "other"
)

func kindOf(c *Cell) kind {
	switch {
	case strings.HasPrefix(c.Subject, "orbitte"):
		return own
	case c.Baseline:
		return baseline
	}
	return other
}

// drawing collects the elements of one picture.
type drawing struct {
	b      strings.Builder
	width  float64
	height float64
}

func (d *drawing) add(format string, args ...any) { fmt.Fprintf(&d.b, format+"\n", args...) }

func (d *drawing) text(x, y float64, class, text string) {
	d.add(`<text x="%.1f" y="%.1f" class="%s">%s</text>`, x, y, class, html.EscapeString(text))
}

func (d *drawing) line(x1, y1, x2, y2 float64, class string) {
	d.add(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>`, x1, y1, x2, y2, class)
}

// picture closes the drawing; the title is what a screen reader says.
func (d *drawing) picture(title string) template.HTML {
	return template.HTML(fmt.Sprintf(`<svg viewBox="0 0 %.0f %.0f" role="img" aria-label="%s">`, d.width, d.height, html.EscapeString(title)) + "\n" + d.b.String() + "</svg>")
}

const (
	pictureWidth = 920
	labelWidth   = 330
	rowHeight    = 24
)

// bar is one row: a median with its spread.
type bar struct {
	label string
	kind  kind
	value Spread
	more  string // behind the figure, such as the ratio
}

// barChart draws rows to one scale.
func barChart(title, unit string, rows []bar) template.HTML {
	d := &drawing{width: pictureWidth, height: float64(len(rows))*rowHeight + 26}
	most := 0.0
	for _, r := range rows {
		most = max(most, r.value.Median, min(r.value.High, 2*r.value.Median))
	}
	if most == 0 {
		most = 1
	}
	const room = pictureWidth - labelWidth - 150
	at := func(v float64) float64 { return labelWidth + room*min(max(v, 0)/most, 1) }
	for i, r := range rows {
		y := float64(i) * rowHeight
		d.text(labelWidth-8, y+16, "label end", shorten(r.label, 50))
		d.add(`<rect x="%d" y="%.1f" width="%.1f" height="14" class="%s"/>`, labelWidth, y+5, max(at(r.value.Median)-labelWidth, 1), r.kind)
		d.line(at(r.value.Low), y+12, at(r.value.High), y+12, "spread")
		d.line(at(r.value.Low), y+8, at(r.value.Low), y+16, "spread")
		d.line(at(r.value.High), y+8, at(r.value.High), y+16, "spread")
		d.text(max(at(r.value.Median), at(r.value.High))+8, y+16, "figure", strings.TrimSpace(Number(r.value.Median)+"  "+r.more))
	}
	d.text(labelWidth, d.height-6, "axis", unit+"; bar: median of the rounds, line: least to greatest")
	return d.picture(title)
}

func shorten(text string, n int) string {
	if r := []rune(text); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return text
}

// series is one line of a chart over sizes.
type series struct {
	label  string
	kind   kind
	x, y   []float64
	dashes int // which pattern: lines of one kind differ by it
}

const (
	lineHeight  = 340
	lineBottom  = 40
	legendWidth = 300
)

// lineChart draws y over x, x in powers of two.
func lineChart(title, unit string, all []series) template.HTML {
	d := &drawing{width: pictureWidth, height: max(lineHeight, float64(len(all))*18+40)}
	lowX, highX, highY := math.Inf(1), math.Inf(-1), 0.0
	for _, s := range all {
		for i := range s.x {
			lowX, highX, highY = min(lowX, s.x[i]), max(highX, s.x[i]), max(highY, s.y[i])
		}
	}
	if highY == 0 {
		return ""
	}
	const left, right = 50, pictureWidth - legendWidth - 20
	atX := func(x float64) float64 {
		if highX == lowX {
			return (left + right) / 2
		}
		return left + (right-left)*(math.Log2(x)-math.Log2(lowX))/(math.Log2(highX)-math.Log2(lowX))
	}
	atY := func(y float64) float64 { return lineHeight - lineBottom - (lineHeight-lineBottom-20)*y/highY }
	for _, share := range []float64{0, 0.25, 0.5, 0.75, 1} {
		d.line(left, atY(highY*share), right, atY(highY*share), "grid")
		d.text(left-6, atY(highY*share)+4, "axis end", Number(highY*share))
	}
	d.text(left, 12, "axis", unit)
	marked := map[float64]bool{}
	for i, s := range all {
		d.curve(s, atX, atY)
		y := float64(i)*18 + 24
		d.add(`<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" class="curve %s dash%d"/>`, right+24, y, right+56, y, s.kind, s.dashes%4)
		d.text(right+62, y+4, "label", shorten(s.label, 36))
		for _, x := range s.x {
			if !marked[x] {
				marked[x] = true
				d.text(atX(x), lineHeight-lineBottom+18, "axis middle", Bytes(uint64(x)))
			}
		}
	}
	return d.picture(title)
}

func (d *drawing) curve(s series, atX, atY func(float64) float64) {
	var points []string
	for i := range s.x {
		points = append(points, fmt.Sprintf("%.1f,%.1f", atX(s.x[i]), atY(s.y[i])))
		d.add(`<circle cx="%.1f" cy="%.1f" r="3" class="%s"/>`, atX(s.x[i]), atY(s.y[i]), s.kind)
	}
	d.add(`<polyline points="%s" class="curve %s dash%d"/>`, strings.Join(points, " "), s.kind, s.dashes%4)
}

// quantileRow is one subject's latencies.
type quantileRow struct {
	label string
	kind  kind
	q     *Quantiles
	more  string // behind the figure
}

// quantileChart draws p50, p90, p99 and p99.9 on one logarithmic scale.
func quantileChart(title string, rows []quantileRow) template.HTML {
	d := &drawing{width: pictureWidth, height: float64(len(rows))*rowHeight + 40}
	low, high := math.Inf(1), 0.0
	for _, r := range rows {
		low, high = min(low, r.q.P50), max(high, r.q.P999)
	}
	low = math.Pow(10, math.Floor(math.Log10(max(low, 0.001))))
	high = max(high, low*10)
	const room = pictureWidth - labelWidth - 110
	at := func(v float64) float64 {
		return labelWidth + room*min(math.Log10(max(v, low)/low)/math.Log10(high/low), 1)
	}
	for v := low; v <= high; v *= 10 {
		d.line(at(v), 0, at(v), d.height-36, "grid")
		d.text(at(v), d.height-22, "axis middle", Number(v)+" µs")
	}
	for i, r := range rows {
		y := float64(i)*rowHeight + 12
		d.text(labelWidth-8, y+4, "label end", shorten(r.label, 50))
		d.line(at(r.q.P50), y, at(r.q.P999), y, "reach "+string(r.kind))
		for k, v := range []float64{r.q.P50, r.q.P90, r.q.P99, r.q.P999} {
			d.add(`<circle cx="%.1f" cy="%.1f" r="%d" class="%s"/>`, at(v), y, 6-k, r.kind)
		}
		d.text(at(r.q.P999)+10, y+4, "figure", strings.TrimSpace(Number(r.q.P50)+"  "+r.more))
	}
	d.text(labelWidth, d.height-4, "axis", "p50 (great dot; at the end its figure, and ratio to the best baseline), p90, p99, p99.9; log scale")
	return d.picture(title)
}

// part is one piece of a stacked row.
type part struct {
	class string
	value float64
}

// stackedRow is where the time of one subject goes.
type stackedRow struct {
	label string
	parts []part
	total string
}

// stackedChart draws shares of each row's own total.
func stackedChart(title, legend string, rows []stackedRow) template.HTML {
	d := &drawing{width: pictureWidth, height: float64(len(rows))*rowHeight + 24}
	const room = pictureWidth - labelWidth - 150
	for i, r := range rows {
		y, x, sum := float64(i)*rowHeight, float64(labelWidth), 0.0
		for _, p := range r.parts {
			sum += p.value
		}
		d.text(labelWidth-8, y+16, "label end", shorten(r.label, 50))
		for _, p := range r.parts {
			w := room * per(p.value, sum)
			d.add(`<rect x="%.1f" y="%.1f" width="%.1f" height="14" class="%s"/>`, x, y+5, w, p.class)
			x += w
		}
		d.text(labelWidth+room+8, y+16, "figure", r.total)
	}
	d.text(labelWidth, d.height-6, "axis", legend)
	return d.picture(title)
}
