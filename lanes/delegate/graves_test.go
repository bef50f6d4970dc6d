package delegate

// sentinel is what no transfer is (test/graves).
func sentinel() *Transfer {
	return &Transfer{Length: ^uint64(0), asking: true, busy: true, undrained: true}
}
