package figures

import (
	"bytes"
	"encoding/xml"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestSpreadTakesTheMiddleAndBothEnds(t *testing.T) {
	for _, c := range []struct {
		list []float64
		want Spread
	}{
		{nil, Spread{}}, {[]float64{3}, Spread{3, 3, 3}}, {[]float64{9, 1, 5}, Spread{5, 1, 9}}, {[]float64{4, 1, 2, 9}, Spread{3, 1, 9}},
	} {
		if got := SpreadOf(c.list); got != c.want {
			t.Errorf("SpreadOf(%v) = %v, want %v", c.list, got, c.want)
		}
	}
}

func TestSpreadHoldsItsList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfN(rapid.Float64Range(-1e9, 1e9), 1, 20).Draw(t, "list")
		s := SpreadOf(list)
		below, above := 0, 0
		for _, v := range list {
			if v < s.Low || v > s.High {
				t.Fatalf("%v is outside of %v", v, s)
			}
			if v < s.Median {
				below++
			}
			if v > s.Median {
				above++
			}
		}
		if below > len(list)/2 || above > len(list)/2 {
			t.Fatalf("%d below and %d above the median of %v", below, above, list)
		}
	})
}

func TestHistogramTellsQuantilesToThreeDigits(t *testing.T) {
	h := NewHistogram()
	for i := 1; i <= 1000; i++ {
		h.Record(time.Duration(i) * time.Microsecond)
	}
	q := h.Quantiles()
	for _, c := range []struct{ got, want float64 }{{q.P50, 500}, {q.P90, 900}, {q.P99, 990}, {q.P999, 999}, {q.Max, 1000}, {q.Mean, 500.5}} {
		if math.Abs(c.got-c.want) > c.want/500 {
			t.Errorf("quantile %v, want %v", c.got, c.want)
		}
	}
	if q.Count != 1000 {
		t.Errorf("count %d", q.Count)
	}
}

func TestHistogramKeepsWhatIsOutsideItsRange(t *testing.T) {
	h := NewHistogram()
	h.Record(-time.Second)
	h.Record(time.Hour)
	if h.Count() != 2 || h.Quantile(0.4) > time.Microsecond || h.Quantile(1) < 99*time.Second {
		t.Errorf("count %d, %v to %v", h.Count(), h.Quantile(0.4), h.Quantile(1))
	}
	var none *Histogram
	if none.Quantiles() != nil || NewHistogram().Quantiles() != nil {
		t.Error("a histogram without times has quantiles")
	}
}

func TestHistogramMergesIntoTheSumOfBoth(t *testing.T) {
	a, b := NewHistogram(), NewHistogram()
	a.Record(time.Microsecond)
	b.Record(time.Millisecond)
	a.Merge(b)
	a.Merge(nil)
	if a.Count() != 2 || a.Quantile(1) < 999*time.Microsecond {
		t.Errorf("count %d, greatest %v", a.Count(), a.Quantile(1))
	}
}

func sampleOf(seconds float64, latency time.Duration) Sample {
	s := Sample{Operations: 10, Bytes: 1 << 30, Seconds: seconds, Value: seconds,
		Usage:  Usage{User: 0.25, System: 0.75, Calls: 40, CallsBy: "somebody", Allocations: 20, AllocatedBytes: 640, AllocationsCounted: true, PeakBytes: 3 << 20, Crossings: 30},
		Phases: Phases{Submissions: 2, Prepare: 2 * time.Microsecond, Post: 4 * time.Microsecond, Transfer: 8 * time.Microsecond}}
	s.Latency = NewHistogram()
	s.Latency.Record(latency)
	return s
}

func TestCellMergesItsRounds(t *testing.T) {
	var c Cell
	c.Fill([]Sample{sampleOf(1, 10*time.Microsecond), sampleOf(2, 20*time.Microsecond), sampleOf(4, 30*time.Microsecond)})
	checks := map[string][2]float64{
		"rate": {c.Rate.Median, float64(1<<30) / 1e9 / 2}, "operations": {c.Ops.Median, 5}, "value": {c.Value.High, 4}, "cpu for a GiB": {c.CPUPerGiB, 1},
		"cpu for an operation": {c.CPUPerOp, 1e5}, "share of the kernel": {c.SystemShare, 0.75}, "calls": {c.CallsPerOp, 4}, "crossings": {c.CrossingsPerOp, 3},
		"allocations": {c.AllocsPerOp, 2}, "bytes": {c.AllocBytes, 64}, "peak is no sum": {c.PeakMiB, 3},
		"prepare": {c.PrepareMicros, 1}, "post": {c.PostMicros, 2}, "transfer": {c.TransferMicros, 4}, "rounds": {float64(c.Rounds), 3},
	}
	for name, v := range checks {
		if math.Abs(v[0]-v[1]) > 1e-9 {
			t.Errorf("%s is %v, want %v", name, v[0], v[1])
		}
	}
	if c.Latency.Count != 3 || math.Abs(c.P50.Median-20) > 0.1 {
		t.Errorf("latency %+v, medians %+v", c.Latency, c.P50)
	}
}

func TestCellSaysThatAllocationsWereNotCounted(t *testing.T) {
	s := sampleOf(1, time.Second)
	s.Usage.AllocationsCounted = false
	var c Cell
	if c.Fill([]Sample{s}); c.AllocsPerOp != -1 || Allocs(&c) != "" {
		t.Errorf("allocations %v, shown %q", c.AllocsPerOp, Allocs(&c))
	}
}

func TestRatioIsHeldAgainstTheSameRoundsOfTheBestBaseline(t *testing.T) {
	own := []Sample{sampleOf(2, 20*time.Microsecond), sampleOf(2, 20*time.Microsecond)}
	steady := []Sample{sampleOf(4, 40*time.Microsecond), sampleOf(1, 10*time.Microsecond)}
	other := []Sample{sampleOf(2, 10*time.Microsecond), sampleOf(8, 80*time.Microsecond)}
	var c Cell
	c.Compare(Rate, own, [][]Sample{steady, other})
	if c.Ratio.Low != 0.5 || c.Ratio.High != 2 { // against the first, whose median rate is the greater
		t.Errorf("ratios of rates %+v, want 0.5 to 2", *c.Ratio)
	}
	c.Compare(P50, own, [][]Sample{steady, other})
	if math.Abs(c.Ratio.Low-0.5) > 0.01 || math.Abs(c.RatioP99.High-2) > 0.01 { // against the first, whose median is the less
		t.Errorf("ratios of latencies %+v, of tails %+v, want 0.5 to 2", *c.Ratio, *c.RatioP99)
	}
	c.Compare(Rate, own, nil)
	if c.Ratio != nil {
		t.Errorf("a ratio against nothing: %+v", *c.Ratio)
	}
}

func TestTargetsAreJudgedByTheirBound(t *testing.T) {
	for _, c := range []struct {
		target Target
		want   string
	}{
		{Target{Bound: 0.8, Measured: Spread{Median: 0.8}}, "ok"}, {Target{Bound: 0.8, Measured: Spread{Median: 0.79}}, "short"},
		{Target{Bound: 3, AtMost: true, Measured: Spread{Median: 3}}, "ok"}, {Target{Bound: 3, AtMost: true, Measured: Spread{Median: 3.1}}, "short"},
		{Target{Bound: 3, AtMost: true, Absent: "iperf3 is not installed"}, "absent"}, {Target{Bound: 3, AtMost: true, Failed: "no such transport"}, "short"},
	} {
		c.target.Name = "some-target"
		line := c.target.Line()
		if got := c.target.Verdict(); got != c.want || !strings.HasPrefix(line, "some-target ") || !strings.Contains(line, " "+c.want+" ") || strings.Contains(line, "\n") {
			t.Errorf("%+v: %s, want %s; line %q", c.target, got, c.want, line)
		}
		if why := c.target.Absent + c.target.Failed; !strings.Contains(line, why) {
			t.Errorf("line %q does not say %q", line, why)
		}
	}
}

// filled makes a value whose every field differs from zero.
func filled(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.String:
		v.SetString("<text & \"" + strings.Repeat("x", *n%5))
	case reflect.Float64:
		v.SetFloat(float64(*n) + 0.5)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Uint64:
		v.SetUint(uint64(*n) << 10)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		filled(v.Elem(), n)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key := reflect.New(v.Type().Key()).Elem()
		value := reflect.New(v.Type().Elem()).Elem()
		filled(key, n)
		filled(value, n)
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			filled(v.Field(i), n)
		}
	default:
		panic("a field of a kind that no test knows: " + v.Kind().String())
	}
}

func filledRun() *Run {
	run, n := &Run{Cells: []*Cell{{}, {}}, Targets: make([]Target, 1)}, 0
	filled(reflect.ValueOf(&run.Machine).Elem(), &n)
	for _, c := range run.Cells {
		filled(reflect.ValueOf(c).Elem(), &n)
	}
	filled(reflect.ValueOf(&run.Targets[0]).Elem(), &n)
	filled(reflect.ValueOf(&run.End).Elem(), &n)
	return run
}

func TestLinesComeBackAsTheyWere(t *testing.T) {
	run := filledRun()
	var b bytes.Buffer
	must(t, WriteMachine(&b, &run.Machine))
	for _, c := range run.Cells {
		must(t, WriteCell(&b, c))
	}
	must(t, WriteTarget(&b, &run.Targets[0]))
	must(t, WriteEnd(&b, run.End))
	if got := strings.Count(b.String(), "\n"); got != 5 {
		t.Errorf("%d lines, want one each", got)
	}
	back, err := ReadRun(&b)
	must(t, err)
	if !reflect.DeepEqual(back, run) {
		t.Errorf("came back as\n%+v\nwas\n%+v", back, run)
	}
}

func TestReadRunNamesABadLine(t *testing.T) {
	for _, text := range []string{"{\"cell\":{}}\nnonsense\n", "{\"cell\":{}}\n{}\n"} {
		if _, err := ReadRun(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// shownRun has everything that a page can show.
func shownRun() *Run {
	run := filledRun()
	run.Machine.Peers = map[string]string{"a": "1", "b": "2", "c": "3", "d": "4", "e": "5", "f": "6"}
	cell := func(workload, group, subject string, size uint64) *Cell {
		c := &Cell{Workload: workload, Group: group, Subject: subject, Axes: Axes{Operation: "READ", Size: size}, Measured: "rate"}
		c.Fill([]Sample{sampleOf(1, time.Millisecond), sampleOf(2, time.Microsecond)})
		return c
	}
	raw := cell("bulk", "READ 4 KiB", "raw", 4096)
	raw.Baseline = true
	latency := cell("latency", "READ 64 B <&>", "orbitte tcp <&>", 64)
	latency.Measured = "p50"
	idle := cell("idle", "idle", "orbitte tcp", 0)
	idle.Unit, idle.Measured, idle.Latency = "KiB", "value", nil
	run.Cells = []*Cell{raw, cell("bulk", "READ 4 KiB", "orbitte tcp", 4096), cell("bulk", "READ 1 MiB", "orbitte tcp", 1<<20), latency, idle,
		{Workload: "tools", Group: "1 MiB", Subject: "iperf3", Absent: "not installed & <gone>"}, {Workload: "tools", Group: "1 MiB", Subject: "x", Failed: "why"}, {Workload: "tools", Group: "1 MiB", Subject: "y"}}
	run.Targets = append(run.Targets, Target{Name: "absent", Absent: "gone"}, Target{Name: "short", Bound: 1}, Target{Name: "ok", Bound: 1, AtMost: true})
	return run
}

func TestPageIsWellFormedAndNeedsNothingBesideIt(t *testing.T) {
	var b bytes.Buffer
	must(t, WriteHTML(&b, shownRun()))
	text := b.String()
	elements := map[string]int{}
	d := xml.NewDecoder(strings.NewReader(text))
	for {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("after %v: %v", elements, err)
		}
		start, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		elements[start.Name.Local]++
		for _, a := range start.Attr {
			if a.Name.Local == "src" || a.Name.Local == "href" || strings.Contains(a.Value, "://") || strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
				t.Errorf("<%s %s=%q>", start.Name.Local, a.Name.Local, a.Value)
			}
		}
	}
	if elements["script"]+elements["link"]+elements["img"]+elements["iframe"] > 0 || strings.Contains(text, "@import") || strings.Contains(text, "url(") {
		t.Errorf("the page needs something beside it: %v", elements)
	}
	for _, want := range []string{"not installed &amp; &lt;gone&gt;", "class=\"short\"", "class=\"absent\"", "class=\"ok\"", "READ 64 B &lt;&amp;&gt;", "no rounds",
		"<th>mean prepare µs</th><th>mean post</th><th>mean transfer</th>", "means of Submit and Wait, not of the timed submissions", ">mean 7.00 µs<", "the three do not add up to p50"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	if elements["svg"] < 5 {
		t.Errorf("%d pictures", elements["svg"])
	}
}

func TestPageIsTheSameForTheSameRun(t *testing.T) {
	var a, b bytes.Buffer
	must(t, WriteHTML(&a, shownRun()))
	must(t, WriteHTML(&b, shownRun()))
	if a.String() != b.String() {
		t.Error("two pages of one run differ")
	}
	must(t, WriteHTML(io.Discard, &Run{}))
}

func TestTableHasOneRowForEachSubject(t *testing.T) {
	var b bytes.Buffer
	cells := shownRun().Cells
	must(t, WriteTable(&b, "a group", cells))
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != len(cells)+2 {
		t.Errorf("%d lines for %d cells:\n%s", len(lines), len(cells), b.String())
	}
	for _, want := range []string{"raw *", "absent: not installed", "failed: why", "not measured"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table does not say %q:\n%s", want, b.String())
		}
	}
}

func TestNumbersAreShort(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 1234.5: "1234", 56.78: "56.8", 1.234: "1.23", 0.01234: "0.0123", -2.5: "-2.50"} {
		if got := Number(v); got != want {
			t.Errorf("Number(%v) = %q, want %q", v, got, want)
		}
	}
	for v, want := range map[uint64]string{64: "64 B", 4096: "4 KiB", 1 << 20: "1 MiB", 64 << 20: "64 MiB", 1536: "1.5 KiB", 2 << 30: "2 GiB"} {
		if got := Bytes(v); got != want {
			t.Errorf("Bytes(%v) = %q, want %q", v, got, want)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Of few times the high quantiles are all the slowest one, which says nothing about them.
func TestTimesOfTooFewAreLeftOut(t *testing.T) {
	for count, want := range map[int64]string{1: "2,,,", 9: "2,,,", 10: "2,3,,", 100: "2,3,4,", 1000: "2,3,4,5"} {
		got := Times(&Quantiles{P50: 2, P90: 3, P99: 4, P999: 5, Count: count})
		if text := strings.ReplaceAll(strings.Join(got, ","), ".00", ""); text != want {
			t.Errorf("%d times: %s, want %s", count, text, want)
		}
	}
	if got := Times(nil); len(got) != 4 || strings.Join(got, "") != "" {
		t.Errorf("no times: %q", got)
	}
}

// Whoever reads a run that was cut short must not take it for a whole one.
func TestPageSaysHowTheRunEnded(t *testing.T) {
	for _, c := range []struct {
		end   *End
		want  []string
		whole bool
	}{
		{&End{Time: "noon", Load: "0.50 1 1"}, []string{"noon, whole; load then 0.50 1 1"}, true},
		{&End{Time: "noon", Interrupted: true}, []string{"<p class=\"short\">This run was interrupted: ", "INTERRUPTED at noon, not whole", ", not whole</title>"}, false},
		{&End{Time: "noon", Failed: "no <memory>"}, []string{"<p class=\"short\">This run failed: ", "ended early at noon", "no &lt;memory&gt;", ", not whole</title>"}, false},
		{nil, []string{"there is no closing line, so the run was cut off"}, false},
	} {
		run := shownRun()
		run.End = c.end
		var b bytes.Buffer
		must(t, WriteHTML(&b, run))
		for _, want := range c.want {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%+v: the page does not say %q", c.end, want)
			}
		}
		if c.end.Whole() != c.whole || strings.Contains(b.String(), ", whole;") != c.whole {
			t.Errorf("%+v: whole is %v", c.end, c.end.Whole())
		}
	}
}

// One round has no spread, and may be one that others disturbed: whoever reads its verdict must see that.
func TestTargetOfOneRoundSaysSo(t *testing.T) {
	for _, c := range []struct {
		rounds, planned int
		want            string
	}{{1, 15, "short  (only 1 round of 15; 9 against 8 µs)"}, {1, 1, "short  (1 round; 9 against 8 µs)"}, {2, 15, "short  (1.20 to 1.30; 9 against 8 µs)"}, {0, 0, "short  (1.20 to 1.30; 9 against 8 µs)"}} {
		target := Target{Name: "n", Bound: 1.15, AtMost: true, Measured: Spread{1.25, 1.2, 1.3}, Rounds: c.rounds, Planned: c.planned, Detail: "9 against 8 µs"}
		if line := target.Line(); !strings.HasSuffix(line, c.want) {
			t.Errorf("line %q, want %q at the end", line, c.want)
		}
		var b bytes.Buffer
		must(t, WriteHTML(&b, &Run{Targets: []Target{target}}))
		if told := strings.Contains(b.String(), "<td>"+target.SpreadText()+"</td>"); told != (c.rounds == 1) {
			t.Errorf("%d of %d rounds: the page says %q: %v", c.rounds, c.planned, target.SpreadText(), told)
		}
	}
	if line := (&Target{Name: "n", Rounds: 1, Planned: 1}).Line(); !strings.HasSuffix(line, " (1 round)") {
		t.Errorf("line %q", line)
	}
}
