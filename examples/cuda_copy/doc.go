// Command cuda_copy moves odd sizes between host memory and GPUs, and between GPUs, and checks every byte around them.
//
//	cuda_copy [-twin] [ORDINAL…]                      each GPU of the process, or those named: eight callers at once
//	cuda_copy [-twin] source ADDRESS [ORDINAL]        one role: publish memory of a GPU (0), until SIGINT
//	cuda_copy [-twin] peer ENDPOINT EPOCH [ORDINAL]   the other role: from its own GPU (0) to the source's and back
//
// It needs a program built with cgo, and libcuda.so.1 with a GPU that this process may use; `orbitte devices` shows what is
// there. With -twin it runs on a simulated driver instead, anywhere. What is missing is said by the typed error with which
// the program exits; no copy is made by other means.
package main
