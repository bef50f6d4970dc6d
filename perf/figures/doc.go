// Package figures is what a measurement says: samples of rounds, merged into cells, and cells as JSON lines, as a
// table and as one HTML page with charts.
//
// It owns no resource; a histogram, a cell and a run are plain values of whoever made them.
//
// It imports the standard library and hdrhistogram-go; nothing of ours.
//
//	Sample (one round of one subject) ──Merge──▶ Cell ──▶ JSON line, row of a table, bar and line of a chart
//
// It relies on nothing outside: equal samples give equal text, byte for byte. The page needs no network, no script and
// no file beside it.
package figures
