//go:build !race

package rdma

const sampled = 1
