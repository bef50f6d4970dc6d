package baselines

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
)

// Tool is a measuring program of others, with its own server and client.
type Tool struct {
	Name    string // as the results call it
	Program string // what is looked for in PATH
	Package string // of Debian
	version []string
	// commands makes the duo for count operations of a size over a port; parse reads GB/s, or µs for a latency.
	commands func(port, count int, size uint64) Duo
	parse    func(output string) (float64, error)
	Latency  bool // parse reads µs of a one-way transfer
	Note     string
}

// ToolResult is one run.
type ToolResult struct {
	DuoResult
	Figure float64 // GB/s, or µs
}

// Missing says why the tool cannot be used; nil when it can.
func (t *Tool) Missing() error {
	if _, err := exec.LookPath(t.Program); err != nil {
		return Absent("%s is not installed (Debian: %s)", t.Program, t.Package)
	}
	return nil
}

// Version is the first line of what the program says of itself.
func (t *Tool) Version() string {
	out, err := exec.Command(t.version[0], t.version[1:]...).CombinedOutput()
	first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if err != nil || first == "" {
		return "installed"
	}
	return strings.TrimPrefix(first, "# ")
}

// Run measures once. Errors: ErrAbsent, or what the program said.
func (t *Tool) Run(ctx context.Context, count int, size uint64) (ToolResult, error) {
	var r ToolResult
	if err := t.Missing(); err != nil {
		return r, err
	}
	port, err := freePort()
	if err != nil {
		return r, err
	}
	if r.DuoResult, err = t.commands(port, max(count, 1), size).Run(ctx); err != nil {
		return r, err
	}
	if r.Figure, err = t.parse(r.Output); err != nil {
		return r, fmt.Errorf("%s: %w", t.Name, err)
	}
	return r, nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// Tools lists them all.
func Tools() []*Tool {
	return []*Tool{
		iperf3("iperf3", 1), iperf3("iperf3 ×4", 4),
		ucx("ucx put", "ucp_put_bw", false), ucx("ucx tag", "tag_bw", false), ucx("ucx stream", "stream_bw", false),
		ucx("ucx tag latency", "tag_lat", true), ucx("ucx put latency", "ucp_put_lat", true),
		libfabric("libfabric ping-pong", false), libfabric("libfabric latency", true),
	}
}

func iperf3(name string, streams int) *Tool {
	return &Tool{
		Name: name, Program: "iperf3", Package: "iperf3", version: []string{"iperf3", "--version"}, parse: parseIperf3,
		Note: "one direction, no request; memory is never looked at",
		commands: func(port, count int, size uint64) Duo {
			p := strconv.Itoa(port)
			return Duo{Port: port,
				Server: []string{"iperf3", "-s", "-1", "-p", p},
				Client: []string{"iperf3", "-c", "127.0.0.1", "-p", p, "-J", "-C", "reno", "-P", strconv.Itoa(streams),
					"-l", strconv.FormatUint(min(size, 1<<20), 10), "-n", strconv.FormatUint(uint64(count)*size/uint64(streams), 10)}}
		},
	}
}

func parseIperf3(output string) (float64, error) {
	var report struct {
		End struct {
			Received struct {
				Bits float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
		Error string `json:"error"`
	}
	if err := json.Unmarshal([]byte(output), &report); err != nil {
		return 0, err
	}
	if report.Error != "" || report.End.Received.Bits == 0 {
		return 0, fmt.Errorf("no rate in its report: %s", report.Error)
	}
	return report.End.Received.Bits / 8e9, nil
}

// With its default segments of 8 KiB sent and 64 KiB received, put of 1 MiB has a fifth to a seventh of its rate; outstanding
// sends (-O), polls at a time and other thresholds for copies changed nothing.
const (
	ucxSends    = "UCX_TCP_TX_SEG_SIZE=1M"
	ucxReceives = "UCX_TCP_RX_SEG_SIZE=1M"
)

func ucx(name, test string, latency bool) *Tool {
	return &Tool{
		Name: name, Program: "ucx_perftest", Package: "ucx-utils", version: []string{"ucx_info", "-v"}, Latency: latency,
		Note: test + " over UCX_TLS=tcp on lo, segments of 1 MiB, its defaults otherwise",
		commands: func(port, count int, size uint64) Duo {
			p := strconv.Itoa(port)
			return Duo{Port: port, Env: []string{"UCX_TLS=tcp", "UCX_NET_DEVICES=lo", ucxSends, ucxReceives},
				Server: []string{"ucx_perftest", "-p", p},
				Client: []string{"ucx_perftest", "127.0.0.1", "-p", p, "-t", test, "-s", strconv.FormatUint(size, 10),
					"-n", strconv.Itoa(count), "-w", strconv.Itoa(max(count/10, 1)), "-f", "-v"}}
		},
		parse: func(output string) (float64, error) {
			if latency {
				return ucxField(output, "overall_lat", 1)
			}
			return ucxField(output, "overall_bw", 1<<20/1e9) // it prints MiB/s
		},
	}
}

// ucxField reads one column of the table that -f -v prints: a header line and one line of figures.
func ucxField(output, column string, scale float64) (float64, error) {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	for i, l := range lines {
		names := strings.Split(strings.TrimSpace(l), ",")
		for k, name := range names {
			if name != column || i+1 >= len(lines) {
				continue
			}
			values := strings.Split(strings.TrimSpace(lines[len(lines)-1]), ",")
			if len(values) != len(names) {
				break
			}
			v, err := strconv.ParseFloat(strings.TrimSpace(values[k]), 64)
			return v * scale, err
		}
	}
	return 0, fmt.Errorf("no column %s in its output: %q", column, lastLine(output))
}

func libfabric(name string, latency bool) *Tool {
	return &Tool{
		Name: name, Program: "fi_pingpong", Package: "libfabric-bin", version: []string{"fi_info", "--version"}, Latency: latency,
		Note: "fi_pingpong over the provider tcp: one message there, one back, none ahead",
		commands: func(port, count int, size uint64) Duo {
			args := []string{"-p", "tcp", "-e", "msg", "-d", "lo", "-I", strconv.Itoa(count), "-S", strconv.FormatUint(size, 10)}
			server := append([]string{"fi_pingpong", "-B", strconv.Itoa(port)}, args...)
			client := append(append([]string{"fi_pingpong", "-P", strconv.Itoa(port)}, args...), "127.0.0.1")
			return Duo{Port: port, Server: server, Client: client}
		},
		parse: func(output string) (float64, error) {
			if latency {
				return fabricField(output, "usec/xfer", 1)
			}
			return fabricField(output, "MB/sec", 1e-3)
		},
	}
}

// fabricField reads one column of fi_pingpong's table.
func fabricField(output, column string, scale float64) (float64, error) {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	names, values := strings.Fields(lines[0]), strings.Fields(lines[len(lines)-1])
	for i, name := range names {
		if name == column && len(values) == len(names) && len(lines) > 1 {
			v, err := strconv.ParseFloat(values[i], 64)
			return v * scale, err
		}
	}
	return 0, fmt.Errorf("no column %s in its output: %q", column, lastLine(output))
}
