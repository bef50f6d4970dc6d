// Command tcp_roundtrip is the smallest whole transfer: two engines, a WRITE, a READ, a comparison.
//
// The two engines stand for two processes. All that passes between them besides the data is what a
// source's owner hands out: endpoint and epoch.
package main
