package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/orbitte/orbitte"
)

// errHelp asks for the command's help.
var errHelp = flag.ErrHelp

// engineHelp describes the flags of every command.
const engineHelp = `
engine:
  --kernel KIND        auto, io_uring or epoll: what drives the sockets (auto)
  --lanes N            progress threads; 0 follows the CPU quota, at most 4 (0)
  --direct             sockets read and write the registered bytes themselves: one copy less, but a
                       failure may leave part of them changed
  --verbose            write the engine's log to standard error
`

// requesterHelp describes the flags of the commands that ask a peer.
const requesterHelp = `
peer:
  --epoch E            the source's life, 32 hexadecimal digits, as serve prints it; a source that was
                       restarted since is refused. Without it the epoch is learned from whoever
                       answers, which the tool says
  --timeout D          the longest wait for one answer or one batch of requests (30s)
`

// moverHelp describes the flags of get and put.
const moverHelp = `  --request-size SIZE  largest request, such as 256KiB; never more than both sides admit (1MiB)

output:
  --progress KIND      bar, plain or none; auto is a bar on a terminal and plain lines elsewhere (auto)
  --json               print the result as one line of JSON; a failure too, as
                       {"error":{"class":…,"text":…,"known":…,"remedy":…}}, with "files" if some were done
`

// transportHelp describes the flag of the commands that move bytes.
const transportHelp = `
transport:
  --transport KIND     tcp, hptcp or rdma (tcp). hptcp moves the bytes over data streams of their own, straight
                       from and into the memory of both sides; rdma through private registered buffers
                       over the RDMA devices of both sides (orbitte devices). Either fails where a side
                       does not have it; a source that is served with it still answers tcp
`

// flags are one command's flags.
type flags struct {
	*flag.FlagSet
	kernel          string
	lanes           int
	direct, verbose bool
	timeout         time.Duration
	epoch           orbitte.Epoch
	json            bool
	progress        string
	requestSize     size
	transport       string
	dataBind        string
}

func newFlags(name string) *flags {
	f := bareFlags(name)
	f.StringVar(&f.kernel, "kernel", "auto", "")
	f.IntVar(&f.lanes, "lanes", 0, "")
	f.BoolVar(&f.direct, "direct", false, "")
	f.BoolVar(&f.verbose, "verbose", false, "")
	f.DurationVar(&f.timeout, "timeout", 30*time.Second, "")
	return f
}

// bareFlags are those of a command without an engine.
func bareFlags(name string) *flags {
	f := &flags{FlagSet: flag.NewFlagSet(name, flag.ContinueOnError), requestSize: 1 << 20, kernel: "auto", timeout: 1, transport: "tcp"}
	f.SetOutput(io.Discard) // errors and help are written by command.start
	f.BoolVar(&f.json, "json", false, "")
	return f
}

// requester adds the flags of commands that ask a peer.
func (f *flags) requester() {
	f.Func("epoch", "", func(text string) (err error) {
		if f.epoch, err = orbitte.ParseEpoch(text); err != nil || f.epoch.IsZero() {
			return errors.New("an epoch has 32 hexadecimal digits, not all zero")
		}
		return nil
	})
}

// moves adds the flag of the commands that move bytes.
func (f *flags) moves() { f.StringVar(&f.transport, "transport", "tcp", "") }

// mover adds the flags of get and put.
func (f *flags) mover() {
	f.requester()
	f.moves()
	f.StringVar(&f.progress, "progress", "auto", "")
	f.Var(&f.requestSize, "request-size", "")
}

// read is parse for a command, whose failures are JSON too if it was asked for.
func (f *flags) read(c *console, args []string) (operands []string, err error) {
	operands, err = f.parse(args)
	c.json = f.json || err != nil && slices.ContainsFunc(args, func(arg string) bool { return arg == "--json" || arg == "-json" })
	return operands, err
}

// parse reads flags and operands in any order; what follows "--" is operands.
func (f *flags) parse(args []string) (operands []string, err error) {
	for {
		if err := f.Parse(args); err != nil {
			if errors.Is(err, errHelp) {
				return nil, errHelp
			}
			return nil, usageError{asShown(err)}
		}
		rest := f.Args()
		if len(rest) == 0 {
			return operands, f.check()
		}
		if read := len(args) - len(rest); read > 0 && args[read-1] == "--" {
			return append(operands, rest...), f.check()
		}
		operands, args = append(operands, rest[0]), rest[1:]
	}
}

// asShown names flags with the dashes that the help shows; package flag knows one dash only.
func asShown(err error) string {
	text := strings.Replace(err.Error(), "flag provided but not defined: ", "there is no flag ", 1)
	return oneDash.ReplaceAllString(text, "${1}--${2}")
}

// oneDash is a flag of several letters as package flag's errors end with, or have before a colon; the value that is said before
// it is quoted.
var oneDash = regexp.MustCompile(`^((?:invalid (?:boolean )?value "(?:[^"\\]|\\.)*" for(?: flag)?|flag needs an argument:|there is no flag) )-(\w[\w-]+)`)

func (f *flags) check() error {
	switch {
	case f.timeout <= 0:
		return usage("--timeout is %v; it must be above 0", f.timeout)
	case f.lanes < 0 || f.lanes > 64:
		return usage("--lanes is %d; it must be 0 to 64", f.lanes)
	case f.transport != "tcp" && f.transport != "hptcp" && f.transport != "rdma":
		return usage("--transport is %q; it must be tcp, hptcp or rdma", f.transport)
	case f.kernel != "auto" && f.kernel != "io_uring" && f.kernel != "epoll":
		return usage("--kernel is %q; it must be auto, io_uring or epoll", f.kernel)
	case f.progress != "" && f.progress != "auto" && f.progress != "bar" && f.progress != "plain" && f.progress != "none":
		return usage("--progress is %q; it must be auto, bar, plain or none", f.progress)
	}
	return nil
}

// open opens the command's engine. Nothing bounds the registered bytes but the files themselves.
func (f *flags) open(c *console, config orbitte.Config) (*orbitte.Engine, error) {
	config.Kernel = map[string]orbitte.KernelChoice{"auto": orbitte.Auto, "io_uring": orbitte.IOUring, "epoll": orbitte.Epoll}[f.kernel]
	config.Lanes = f.lanes
	if f.direct {
		config.TCPHostMemory = orbitte.Direct
	}
	if f.verbose {
		logger := zerolog.New(zerolog.ConsoleWriter{Out: c.remarks, NoColor: true, TimeFormat: time.TimeOnly}).With().Timestamp().Logger()
		config.Logger = &logger
	}
	config.Limits.RegisteredBytes = 1 << 62
	if f.fast() {
		config.HPTCP = &orbitte.HPTCPConfig{Bind: f.dataBind}
	}
	if f.transport == "rdma" {
		library, err := loadVerbs()
		if err != nil {
			return nil, &failure{class: errNoRDMA, cause: err, known: "nothing was moved; nothing was tried over TCP instead", remedy: "do what the first line says, or leave --transport rdma away"}
		}
		// Files are mapped, and what maps a file cannot be pinned for a device (writable file-backed pages, since Linux 6.4).
		config.Verbs, config.RDMA = library, &orbitte.RDMAConfig{HostMemory: orbitte.HostStaged, Limits: orbitte.RDMALimits{StagingBytes: 512 << 20, Endpoints: 256}}
	}
	e, err := orbitte.Open(config)
	if errors.Is(err, orbitte.ErrUnavailable) {
		return nil, &failure{cause: err, known: "nothing was moved, and nothing was taken in its place", remedy: f.missing()}
	}
	return e, invalidUsage(err)
}

// missing says what helps when this system lacks what the command line asks for.
func (f *flags) missing() string {
	var ways []string
	if f.kernel == "io_uring" {
		ways = append(ways, "choose a --kernel that this system has")
	}
	if f.transport == "rdma" {
		ways = append(ways, "do what orbitte devices says, or leave --transport rdma away")
	}
	return strings.Join(ways, "; ")
}

// carrier is the transport that requests name.
func (f *flags) carrier() orbitte.Transport {
	switch f.transport {
	case "rdma":
		return orbitte.TransportRDMA
	case "hptcp":
		return orbitte.TransportHPTCP
	}
	return orbitte.TransportTCP
}

// fast is true exactly when the command uses, or serves, HP-TCP.
func (f *flags) fast() bool { return f.transport == "hptcp" }

// invalidUsage makes a value from the command line that the engine calls invalid a usage error.
func invalidUsage(err error) error {
	if errors.Is(err, orbitte.ErrInvalid) {
		return usageError{headline(err)}
	}
	return err
}

// closeTimeout bounds the end of an engine.
const closeTimeout = 10 * time.Second

// shut closes an engine and joins its error to the command's.
func shut(e *orbitte.Engine, failed *error) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := e.Close(ctx)
	if err == nil || *failed != nil {
		return
	}
	var kept strings.Builder
	for _, r := range e.RetainedResources() {
		fmt.Fprintf(&kept, "; %s (%s): %s", r.Kind, r.Object, r.Reason)
	}
	*failed = &failure{cause: err, known: "the command's work was done" + kept.String()}
}

// size is a number of bytes on the command line.
type size uint64

var units = []struct {
	name  string
	bytes uint64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"K", 1 << 10}, {"M", 1 << 20}, {"G", 1 << 30}, {"B", 1}}

func (s *size) String() string { return strconv.FormatUint(uint64(*s), 10) }

// Set reads "4096", "256KiB", "1M" (flag.Value).
func (s *size) Set(text string) error {
	digits, factor := text, uint64(1)
	for _, unit := range units {
		if rest, ok := strings.CutSuffix(text, unit.name); ok {
			digits, factor = rest, unit.bytes
			break
		}
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n == 0 || n > math.MaxInt64/factor {
		return errors.New("a size is a number above 0, with KiB, MiB or GiB behind it or nothing")
	}
	*s = size(n * factor)
	return nil
}
