// Command manual_mode drives a requester on its own goroutine, in a program that has a loop already, and
// shows the settings that most programs want sooner or later: limits, a logger, and statistics.
package main
