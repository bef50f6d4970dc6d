package rdma

// sentinel is what no transfer is (test/graves).
func sentinel() *Transfer {
	return &Transfer{Length: ^uint64(0), owed: 77, closing: 77, copied: 77, used: 77, stopping: true, pausing: true, asked: true}
}
