package local

// sentinel is what no transfer is (test/graves).
func sentinel() *Transfer {
	return &Transfer{Length: ^uint64(0)}
}
