// Command cuda_copy moves odd sizes between host memory and GPUs, and between GPUs, and checks every byte around them.
//
//	cuda_copy [FLAGS] [ORDINAL…]                      each GPU of the process, or those named: eight callers at once
//	cuda_copy [FLAGS] source ADDRESS [ORDINAL]        one role: publish memory of a GPU (0), until SIGINT
//	cuda_copy [FLAGS] peer ENDPOINT EPOCH [ORDINAL]   the other role: from its own GPU (0) to the source's and back
//
// The flags come first, the same at both ends, except -twin:
//
//	-twin             a simulated driver instead of libcuda.so.1, anywhere
//	-rdma             over RDMA instead of TCP: it needs libibverbs.so.1 and a device; simulated, with -twin, in one process only
//	-remote-slots N   the requester directs the staging at the source (Request.RemoteSlots): 1 slot for a serial request, up
//	                  to 16 to let the source's GPU fill or empty some while others travel. The source offers as many.
//
// It needs a program built with cgo, and libcuda.so.1 with a GPU that this process may use; `orbitte devices` shows what is
// there. What is missing is said by the typed error with which the program exits; no copy is made by other means.
package main
