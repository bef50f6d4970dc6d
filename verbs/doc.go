// Package verbs holds the RDMA objects that the engine owns, and the one flat interface of raw calls behind them.
package verbs
