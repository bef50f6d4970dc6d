//go:build vm && cgo

package orbitte

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// figure is one measure in one round: the engine beside perftest, MiB per second.
type figure struct {
	name             string
	op               Operation
	size             int
	batches, each    int // batches in flight, requests of each
	tool             string
	progress         RDMAProgress
	engine, baseline []float64
	native           nativeCalls
	control          uint64 // grants asked
	transfers        int
}

// TestFiguresBesidePerftest takes figures, interleaved with those of perftest in the same guest. They are told as
// ratios and fail nothing: guests are emulated. perftest keeps up to 128 messages of one region under way, without authority
// for each; the engine has eight batches of eight requests under way, for 1 MiB four of two, or one request at a time.
// ORBITTE_VM_ROUNDS is how many rounds it takes, 1 by default; what is recorded in perf/results has at least 5.
// ORBITTE_VM_FIGURE takes only those with this in their name; ORBITTE_VM_ALONE moves so many MiB for each of them without
// perftest, for a profiler.
func TestFiguresBesidePerftest(t *testing.T) {
	rounds := 1
	if text := os.Getenv("ORBITTE_VM_ROUNDS"); text != "" {
		var err error
		rounds, err = strconv.Atoi(text)
		must(t, err)
	}
	var figures []*figure
	for _, progress := range []RDMAProgress{RDMAPolling, RDMAEventDriven} {
		word := []string{"polling", "event-driven"}[progress]
		figures = append(figures,
			&figure{name: "rdma-write-64k, " + word, op: Write, size: 64 << 10, batches: 8, each: 8, tool: "ib_write_bw", progress: progress},
			&figure{name: "rdma-write-1m, " + word, op: Write, size: 1 << 20, batches: 4, each: 2, tool: "ib_write_bw", progress: progress},
			&figure{name: "rdma-read-64k, " + word, op: Read, size: 64 << 10, batches: 8, each: 8, tool: "ib_read_bw", progress: progress},
			&figure{name: "rdma-read-1m, " + word, op: Read, size: 1 << 20, batches: 4, each: 2, tool: "ib_read_bw", progress: progress})
	}
	for _, alone := range []figure{
		{name: "rdma-write-64k", op: Write, size: 64 << 10, tool: "ib_write_bw"}, {name: "rdma-write-1m", op: Write, size: 1 << 20, tool: "ib_write_bw"},
		{name: "rdma-read-64k", op: Read, size: 64 << 10, tool: "ib_read_bw"}, {name: "rdma-read-1m", op: Read, size: 1 << 20, tool: "ib_read_bw"},
	} {
		alone.name, alone.progress, alone.batches, alone.each = alone.name+", event-driven, one at a time", RDMAEventDriven, 1, 1
		figures = append(figures, &alone)
	}
	if only := os.Getenv("ORBITTE_VM_FIGURE"); only != "" {
		figures = slices.DeleteFunc(figures, func(f *figure) bool { return !strings.Contains(f.name, only) })
	}
	var gates [2]*gatePair
	for i := range gates {
		c := RDMAConfig{Progress: RDMAProgress(i), DeviceMask: 1}
		gates[i] = newGate(t, c, c, 8<<20, nil)
	}
	if text := os.Getenv("ORBITTE_VM_ALONE"); text != "" {
		mebibytes, err := strconv.Atoi(text)
		must(t, err)
		for _, f := range figures {
			gates[f.progress].measure(f, f.size*f.batches*f.each)
			t.Logf("%s alone: %.1f MiB/s; %d transfers: %+v", f.name, gates[f.progress].measure(f, mebibytes<<20), f.transfers, f.native)
		}
		return
	}
	perftest(t) // warms up
	for round := range rounds {
		base := perftest(t)
		for _, f := range figures {
			g := gates[f.progress]
			if round == 0 {
				g.measure(f, f.size*f.batches*f.each) // warms up, and has the connections built
			}
			f.engine = append(f.engine, g.measure(f, max(4<<20, 16*f.size)))
			t.Logf("%s: %.1f MiB/s", f.name, f.engine[round])
			f.baseline = append(f.baseline, base[f.tool+strconv.Itoa(f.size)])
		}
	}
	for _, f := range figures {
		f.tell(t)
	}
}

// perftest takes one round of its figures, by tool and bytes.
func perftest(t *testing.T) map[string]float64 {
	t.Helper()
	out, err := exec.Command("baseline", "1").CombinedOutput()
	if err != nil {
		t.Fatalf("baseline: %v: %s", err, out)
	}
	taken := map[string]float64{}
	for line := range bytes.Lines(out) {
		var f struct {
			Tool  string
			Bytes int
			MiB   float64 `json:"mib_s"`
		}
		must(t, json.Unmarshal(line, &f))
		taken[f.Tool+strconv.Itoa(f.Bytes)] = f.MiB
	}
	return taken
}

// measure moves total bytes and tells MiB per second.
func (g *gatePair) measure(f *figure, total int) float64 {
	t := g.t
	t.Helper()
	rounds := total / (f.size * f.each * f.batches)
	before, asked := g.native.read(0), g.requester.Stats().RDMA.GrantsAsked
	began := time.Now()
	ends := make(chan error, f.batches)
	for i := range f.batches {
		go func() {
			ends <- func() error {
				for range rounds {
					var requests []Request
					for j := range f.each {
						at := (i*f.each + j) * f.size % (8 << 20)
						requests = append(requests, g.request(f.op, at, at, f.size))
					}
					ctx, cancel := context.WithTimeout(context.Background(), guestPatience)
					_, err := g.requester.SubmitAndWait(ctx, requests)
					cancel()
					if err != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	for range f.batches {
		must(t, <-ends)
	}
	took := time.Since(began)
	after := g.native.read(0)
	f.transfers = rounds * f.each * f.batches
	f.native = nativeCalls{Posts: after.Posts - before.Posts, Polls: after.Polls - before.Polls, Arms: after.Arms - before.Arms, Events: after.Events - before.Events}
	f.control = g.requester.Stats().RDMA.GrantsAsked - asked
	return float64(rounds*f.each*f.batches*f.size) / (1 << 20) / took.Seconds()
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// tell prints a line of JSON for perf/results, and a row of the table.
func (f *figure) tell(t *testing.T) {
	t.Helper()
	var ratios []float64 // of each round: the machine's other work changes from round to round
	for i := range f.engine {
		ratios = append(ratios, f.engine[i]/f.baseline[i])
	}
	ratio, n := median(ratios), float64(f.transfers)
	line, err := json.Marshal(map[string]any{
		"name": f.name, "against": f.tool, "unit": "MiB/s", "engine": median(f.engine), "raw": median(f.baseline), "ratio": ratio, "low": slices.Min(ratios), "high": slices.Max(ratios), "target": 0.9,
		"rounds": len(f.engine), "engine_rounds": f.engine, "raw_rounds": f.baseline, "batches": f.batches, "requests_each": f.each,
		"posts_per_transfer": float64(f.native.Posts) / n, "polls_per_transfer": float64(f.native.Polls) / n,
		"arms_per_transfer": float64(f.native.Arms) / n, "events_per_transfer": float64(f.native.Events) / n, "grants_per_transfer": float64(f.control) / n,
	})
	must(t, err)
	fmt.Printf("FIGURE %s\n", line)
	proved(t, "%s, %d at once: %.2f of %s (%.0f of %.0f MiB/s); for each transfer the requester posts %.1f times, polls %.1f times and asks for %.1f grants",
		f.name, f.batches, ratio, f.tool, median(f.engine), median(f.baseline), float64(f.native.Posts)/n, float64(f.native.Polls)/n, float64(f.control)/n)
}
