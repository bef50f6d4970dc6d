// Package world runs several unmodified engines in one goroutine on a simulated kernel, under a virtual clock, with
// a seeded network and faults, and holds every step against a model. What a real program runs is what is simulated:
// only the public API is called, and only Config's doors for simulations (OpenKernel, Epoch) are used.
//
// A run owns its world, engines and memory objects; everything is given back before Run returns, except what killed
// engines cannot give back, since nobody proves for them that their memory is quiet. Calls that wait are
// coroutines: they run in their engine's steps only, one at a time in each engine.
//
// About one seed in four has RDMA: its engines have devices on one simulated fabric, and some or all requests name them.
// Requests over it may end one cleanup window of 30 s after their deadline. A library that refuses a call, or a device that
// loses a completion or is removed, may make an engine keep something for good; then it lists that, and its process is ended.
//
// About one seed in five has CUDA: its engines have drivers with GPUs of their own, on which some of their memory is, and
// copies take their time. The model keeps every byte of device memory, too, but for those that a copy may be writing. More
// than half of these have GPUDirect, remote staging, or both. What RDMA devices write to a GPU that does not order it is seen
// by the model after a flush only, as by a program; and a key to a GPU's memory is held against who asked for it.
//
// It may import anything. Beside the engines' public API it looks at simkernel's connections and at the
// operations that engines submit to their kernels, and counts segments.Mappings.
//
// A script goes through it so:
//
//	seed ──Generate──▶ faults.Script ──Run──▶ played ──▶ healed, drained ──▶ all closed ──▶ Result
//	                                            └──an oracle is violated──▶ abandoned ──────▲
//
// The same script gives the same history, byte by byte. It relies on context.AfterFunc for contexts that have
// an AfterFunc method of their own, on iter.Pull, and on a process in which nothing else starts goroutines.
package world
