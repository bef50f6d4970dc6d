// Command soak runs engines for a long time as their users would: several processes over loopback with real kernels,
// each of them source and requester, under seeded faults, and checks all the time that nothing is wrong, lost or left.
//
//	soak [-minutes n] [-seed n] [-peers k] [-dir folder]
//
// The parent owns the peers, which are processes of its own binary, the proxies between them, and a plan: who is
// killed, stopped, starved of descriptors, and which proxy resets, swallows, delays or half closes, when. The plan
// follows from the seed; what the processes make of it does not. Each peer owns its engines and what they use, gives
// everything back in each of its lives, and compares itself with its start then. Every child is ended and reaped.
//
// It may import anything of the house; nothing imports it.
//
//	peer:   started ─▶ living ⇄ stopped ──end─▶ closing ─▶ gone;   living, stopped ──kill─▶ gone ─▶ started, one life on
//	engine: opened on the peer's fixed address ─▶ worked ─▶ closed, in one of several orders ─▶ checked ─▶ opened again
//
// What is printed is text, and so is the log (soak.log below -dir) with every event of every process; the closing line
// says what was done. A failure prints the last events of each process, and the seed. It relies on Linux: /proc,
// prlimit(2), and the addresses 127/8; under go test the parent is the test binary, raced when the test is.
package main
