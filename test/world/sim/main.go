package main

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/orbitte/orbitte/test/world"
)

func main() {
	first, _ := strconv.ParseUint(os.Args[1], 10, 64)
	n, _ := strconv.ParseUint(os.Args[2], 10, 64)
	start := time.Now()
	counts := map[string]int{}
	turns := 0
	for seed := first; seed < first+n; seed++ {
		if os.Getenv("V") != "" { println(seed) }
		res := world.Run(world.Generate(seed, 0), world.Options{})
		turns += res.Turns
		for k, v := range res.Counts {
			counts[k] += v
		}
		if n == 1 {
			fmt.Print(res.History)
		}
		if res.Violation != nil {
			fmt.Println("SEED", seed, res.Violation)
		}
	}
	if n > 1 {
		fmt.Println(counts)
	}
	fmt.Println(n, turns, time.Since(start))
}
