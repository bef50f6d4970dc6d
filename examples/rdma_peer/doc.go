// Command rdma_peer moves odd sizes over RDMA, direct and staged, and checks every byte around them.
//
//	rdma_peer                          source and requester in one process
//	rdma_peer -twin                    the same on simulated devices, on any machine
//	rdma_peer source ADDRESS           one role: publish memory, until SIGINT
//	rdma_peer peer ENDPOINT EPOCH      the other role: WRITE and READ there
//
// It needs a program built with cgo, libibverbs.so.1 and a provider of rdma-core, and at least one RDMA device with an
// active port and an address that this process may open; locked memory for 4 MiB on each device (ulimit -l). `orbitte
// devices` shows all of it. What is missing is said by the typed error with which the program exits; nothing becomes TCP.
package main
