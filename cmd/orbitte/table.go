package main

import (
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
)

// table lines cells up; each row is separated by tabs.
func table(rows [][]string) string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	w.Flush()
	return text.String()
}

// fileTable shows a manifest's files; regions maps addresses to region IDs.
func fileTable(files []entry, regions map[uint64]uint64) string {
	rows := [][]string{{"file", "bytes", "access", "region", "address", "sha256"}}
	for _, f := range files {
		region, address := "-", "-" // an empty file has none
		if id, ok := regions[f.Address]; ok && f.Size > 0 {
			region, address = strconv.FormatUint(id, 10), fmt.Sprintf("%#x", f.Address)
		}
		access := "read"
		if f.Writable {
			access = "read, write"
		}
		rows = append(rows, []string{f.Name, strconv.FormatUint(f.Size, 10), access, region, address, f.SHA256.String()})
	}
	return table(rows)
}

// rate is bytes per second in print.
func rate(bytes uint64, seconds float64) string {
	if seconds <= 0 || bytes == 0 {
		return "-"
	}
	perSecond := float64(bytes) / seconds
	switch {
	case perSecond >= 1e9:
		return fmt.Sprintf("%.2f GB/s", perSecond/1e9)
	case perSecond >= 1e6:
		return fmt.Sprintf("%.1f MB/s", perSecond/1e6)
	}
	return fmt.Sprintf("%.1f kB/s", perSecond/1e3)
}

// moved is one file that get or put has moved and verified.
type moved struct {
	File    string  `json:"file"`
	Path    string  `json:"path"` // of the output; empty for put
	Bytes   uint64  `json:"bytes"`
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"bytes_per_second"`
	Carrier string  `json:"carrier"` // what carried the bytes: tcp, tcp direct, hptcp, rdma …
	Kernel  string  `json:"kernel"`
	SHA256  digest  `json:"sha256"`
}

// movedTable shows the result of get or put. A file stands there only when its SHA-256 was checked.
func movedTable(files []moved) string {
	rows := [][]string{{"file", "bytes", "seconds", "rate", "path", "kernel", "sha256"}}
	for _, m := range files {
		carrier := m.Carrier
		if carrier == "" {
			carrier = "-" // no byte to move
		}
		rows = append(rows, []string{m.File, strconv.FormatUint(m.Bytes, 10), fmt.Sprintf("%.3f", m.Seconds), rate(m.Bytes, m.Seconds), carrier, m.Kernel, "ok"})
	}
	return table(rows)
}
