package tcp

// sentinel is what no transfer is (test/graves).
func sentinel() *Transfer {
	return &Transfer{Length: ^uint64(0), copied: 77, waiting: true, ready: true, held: true}
}
