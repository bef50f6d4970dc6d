// Command notifications moves data and tells the peer about it.
//
// SubmitAndNotify sends once, after every request of the batch has succeeded, so that the receiver of the
// notification finds the data in place. The fate of the notification is reported apart from the data's.
package main
