// Random updates of a large slice and look-ups in a large map. Go programs are static: nothing can be preloaded into them.
//
// Usage: random-access BYTES. Prints a checksum and the time after the slice and the map were filled.
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: random-access BYTES")
		os.Exit(2)
	}
	bytes, err := strconv.ParseUint(os.Args[1], 10, 63)
	if err != nil || bytes < 4096 {
		fmt.Fprintln(os.Stderr, "random-access: expected 4096 bytes or more")
		os.Exit(2)
	}
	// Three quarters are the slice; an entry of the map takes about 40 bytes.
	words := (bytes - bytes/4) / 8
	entries := bytes / 4 / 40
	table := make([]uint64, words)
	for at := range table {
		table[at] = uint64(at)
	}
	squares := make(map[uint64]uint64, entries)
	for key := uint64(0); key < entries; key++ {
		squares[key] = key * key
	}
	begun := time.Now()
	state, sum := uint64(88172645463325252), uint64(0)
	for nth := uint64(0); nth < words/3; nth++ {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		at := state % words
		table[at] ^= state
		sum += table[at]
		if nth&7 == 0 {
			sum += squares[(state>>20)%entries]
		}
	}
	fmt.Printf("checksum=%d work_s=%f\n", sum, time.Since(begun).Seconds())
}
