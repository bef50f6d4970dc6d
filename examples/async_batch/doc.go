// Command async_batch submits without waiting and follows the batch in the three ways there are: a
// channel, polling of the whole and of each task, and Wait.
//
// It also shows how a batch ends early, and that a handle belongs to the caller until Free.
package main
