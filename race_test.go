//go:build race

package orbitte

// raceEnabled says that the compiler instruments: then append makes a list that it copies, and sees through none.
const raceEnabled = true
