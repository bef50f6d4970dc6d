package main

import (
	"errors"
	"strings"

	"github.com/orbitte/orbitte"
	"github.com/orbitte/orbitte/lanes/hptcp"
)

// telling is an engine's class of error in the words of the tool, which knows files and sources where the
// engine knows requests, segments and streams.
type telling struct {
	class         string // empty: the engine's own
	known, remedy string
}

var tellings = map[error]telling{
	orbitte.ErrInvalid:       {known: "nothing was done", remedy: "correct the command line"},
	orbitte.ErrClosed:        {known: "no byte was moved", remedy: "the source is closing: start it again, or name another one"},
	orbitte.ErrExhausted:     {known: "no byte was moved; what ran out is named", remedy: "try again when the source is less busy, or with a smaller --request-size"},
	orbitte.ErrUncovered:     {known: "no byte was moved", remedy: "this is a fault of the tool; report it"},
	orbitte.ErrUnknownRegion: {known: "no byte was moved", remedy: "the source publishes other regions by now: run the command again"},
	orbitte.ErrPermission:    {known: "no byte was moved", remedy: "serve the file with --writable, if it is to be written"},
	orbitte.ErrConflict:      {known: "no byte of the range was changed", remedy: "wait until nobody else reads or writes the file, then run the command again"},
	orbitte.ErrUnavailable:   {known: "no byte was moved; no other path was tried", remedy: "name another --transport, or serve the file with that one; without --transport both sides use tcp"},
	orbitte.ErrStaleEpoch: {class: "the source is not the one that --epoch names", known: "no byte was moved; the source was restarted, or another process has its address",
		remedy: "give the epoch that the running source printed"},
	orbitte.ErrUnreachable:  {class: "source unreachable", known: "no byte was moved", remedy: "check the endpoint, the network, and that the source runs; then run the command again"},
	orbitte.ErrDisconnected: {known: "the connection to the source ended in the middle", remedy: "check that the source still runs, then run the command again"},
	orbitte.ErrDeadline:     {known: "the source did not answer in time", remedy: "check that the source still runs, or give a longer --timeout"},
	orbitte.ErrCancelled:    {known: "the command was interrupted", remedy: "nothing, it was asked for"},
	orbitte.ErrProtocol:     {class: "protocol violated by the source", known: "the connection was given up", remedy: "check that the endpoint is an OrbitTE source; orbitte version shows the protocol of each side"},
	orbitte.ErrPeer:         {class: "the source failed", known: "the source answered so; no byte was stored", remedy: "look at the source's output (--verbose)"},
	orbitte.ErrUnquiesced:   {known: "the system may still touch the file's memory, which is kept until the process ends", remedy: "run the command again"},
	orbitte.ErrSystem:       {remedy: "see the system's error"},
	orbitte.ErrDevice:       {known: "a GPU failed, which the tool does not use", remedy: "this is a fault of the tool; report it"},
}

// dataPort is what is told where the source's data port alone has not answered (hptcp.UnreachedError), in place of tellings.
var dataPort = map[error]telling{
	orbitte.ErrUnreachable: {known: "no byte was moved; the source's data port did not answer, which says nothing about its endpoint", remedy: openDataPort + "; then run the command again, or run it without --transport hptcp"},
	orbitte.ErrDeadline: {known: "no byte was moved; the source's data port did not answer in time, which says nothing about its endpoint",
		remedy: openDataPort + ", or give a longer --timeout if it was short; without --transport hptcp the data port is not needed"},
}

const openDataPort = "let the data port through every firewall (serve --data-bind fixes it), and check that the source still runs"

// tellingOf is the engine's error in the tool's words; where it has none, in the engine's.
func tellingOf(e *orbitte.Error) telling {
	if alone(e) {
		if said, ok := dataPort[e.Class]; ok {
			return said
		}
	}
	if said, ok := tellings[e.Class]; ok {
		return said
	}
	return telling{known: e.Known(), remedy: inFlags(e.Remedy())}
}

// alone is true exactly when nothing but the data port failed, so far as is known.
func alone(err error) bool {
	var data *hptcp.UnreachedError
	return errors.As(err, &data)
}

// inFlags names what the command line sets as the command line does.
func inFlags(text string) string { return fieldFlags.Replace(text) }

var fieldFlags = strings.NewReplacer("Config.HPTCP.Bind", "--data-bind", "HPTCP.Bind", "--data-bind", "Config.Bind", "--bind", "Config.Advertise", "--advertise",
	"Config.Lanes", "--lanes", "Config.Kernel", "--kernel", "Config.SourceTimeout", "--timeout")

// className names a class of error in the tool's words.
func className(class error) string {
	if name := tellings[class].class; name != "" {
		return name
	}
	return class.Error()
}

// interrupted names what befell a source that had answered already: an engine that cannot connect again
// calls it unreachable, the user has lost a connection. A data port that alone does not answer is named for what it is.
func interrupted(err error) error {
	if errors.Is(err, orbitte.ErrUnreachable) && !alone(err) {
		return &failure{class: orbitte.ErrDisconnected, cause: err, remedy: tellings[orbitte.ErrDisconnected].remedy}
	}
	return err
}

// errorView is a failure in JSON. Known and Remedy may be empty.
type errorView struct {
	Class  string `json:"class"`
	Text   string `json:"text"`
	Known  string `json:"known"`
	Remedy string `json:"remedy"`
}

// failedView is what a failed command prints with --json: files that were done before, if any.
type failedView struct {
	Files []moved   `json:"files,omitempty"`
	Error errorView `json:"error"`
}

// classOther is the class of an error that has none.
const classOther = "other"

func viewOf(command string, err error) errorView {
	var wrong usageError
	if errors.As(err, &wrong) {
		return errorView{"wrong command line", wrong.text, "nothing was done", "orbitte " + command + " --help says more"}
	}
	f := factsOf(err)
	if f.class == "" {
		f.class = classOther
	}
	return errorView{f.class, headline(err), strings.Join(f.known, "; "), f.remedy}
}
