package hptcp

// sentinel is what no transfer is (test/graves). It would end if it were asked to settle.
func sentinel() *Transfer {
	return &Transfer{Length: ^uint64(0), state: stateFailing, asked: 77, answered: 77, copied: 77}
}
