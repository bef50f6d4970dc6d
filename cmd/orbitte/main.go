package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Exit statuses.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// console is where a command writes: results to out, progress and remarks to remarks.
type console struct {
	out, remarks io.Writer

	json   bool    // the command was asked for JSON
	result any     // what a command that succeeds prints in JSON; nil: nothing
	done   []moved // files that were done, should the command fail
}

func (c *console) remark(format string, args ...any) { fmt.Fprintf(c.remarks, format+"\n", args...) }

// command is one word of the command line.
type command struct {
	name, summary, help string
	run                 func(ctx context.Context, c *console, args []string) error
}

var commands = []command{
	{"serve", "publish files as registered memory", serveHelp, serve},
	{"get", "read files from a peer", getHelp, get},
	{"put", "write a file into a peer's file", putHelp, put},
	{"describe", "show a peer's regions, limits and files", describeHelp, describe},
	{"devices", "show the RDMA devices and GPUs of this host, or what is missing", devicesHelp, devices},
	{"version", "show the versions of tool, Go and protocol", versionHelp, version},
}

func overview() string {
	var text strings.Builder
	text.WriteString("orbitte moves files between processes and hosts as registered memory.\n\nusage: orbitte COMMAND [flags] [operands]\n\ncommands:\n")
	for _, c := range commands {
		fmt.Fprintf(&text, "  %-10s%s\n", c.name, c.summary)
	}
	text.WriteString(`
orbitte COMMAND --help says more. A first try, in two terminals:

  orbitte serve data.bin
  orbitte get --from ENDPOINT --epoch EPOCH data.bin -o copy.bin

The protocol is for trusted networks: an epoch tells a restarted source from the old one, it
authenticates nobody, and bytes travel in the clear.

exit status: 0 everything done, 1 something failed, 2 wrong command line
`)
	return text.String()
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, &console{out: os.Stdout, remarks: os.Stderr}, os.Args[1:]))
}

func run(ctx context.Context, c *console, args []string) int {
	if len(args) == 0 {
		io.WriteString(c.remarks, overview())
		return exitUsage
	}
	if slices.Contains([]string{"--help", "-help", "-h", "help"}, args[0]) {
		if len(args) > 1 {
			return run(ctx, c, []string{args[1], "--help"})
		}
		io.WriteString(c.out, overview())
		return exitDone
	}
	if args[0] == "--version" || args[0] == "-version" {
		args = append([]string{"version"}, args[1:]...)
	}
	for i := range commands {
		if commands[i].name == args[0] {
			return commands[i].start(ctx, c, args[1:])
		}
	}
	c.remark("orbitte: there is no command %q; orbitte --help lists them", args[0])
	return exitUsage
}

func (k *command) start(ctx context.Context, c *console, args []string) int {
	err := k.run(ctx, c, args)
	if err == nil && c.result != nil {
		err = json.NewEncoder(c.out).Encode(c.result)
	} else if err != nil && c.json && !errors.Is(err, errHelp) {
		json.NewEncoder(c.out).Encode(failedView{c.done, viewOf(k.name, err)}) // standard error says it too
	}
	var wrong usageError
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errHelp):
		io.WriteString(c.out, k.help)
		return exitDone
	case errors.As(err, &wrong):
		c.remark("orbitte %s: %s\norbitte %s --help says more", k.name, wrong.text, k.name)
		return exitUsage
	}
	io.WriteString(c.remarks, explain("orbitte "+k.name, err))
	if errors.Is(err, errTarget) {
		return exitUsage
	}
	return exitFailed
}
