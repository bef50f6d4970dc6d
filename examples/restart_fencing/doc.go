// Command restart_fencing kills a source and starts it again on the same port: the authority for the old
// life is refused, without a byte moved, and the new epoch works.
//
// The program starts itself as the source, in a child process that prints what its owner would hand
// out: endpoint, epoch and the address of its bytes.
package main
