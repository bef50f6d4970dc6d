package main

// #include <stdlib.h>
import "C"

import "github.com/orbitte/orbitte"

//export orbitte_try
func orbitte_try() C.int {
	e, err := orbitte.Open(orbitte.Config{})
	_ = e
	if err != nil {
		return 1
	}
	return 0
}

func main() {}
