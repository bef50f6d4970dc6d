package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/orbitte/orbitte"
)

const serveHelp = `usage: orbitte serve [flags] FILE…

Publishes the files as registered memory and serves them until SIGINT or SIGTERM; a second signal ends
the process at once. Prints the endpoint, the epoch, which names this run, and the files with their
SHA-256. Peers see a file under its name without the folder.

By default a file is loaded: peers READ a private copy, which stays as it was whatever happens to the
file. It takes the file's size in memory.

files:
  --map                map the files instead of loading them: no copy, for files larger than memory; do
                       not change them meanwhile
  --writable           map the files shared and let peers WRITE: put changes the file itself, in place
                       and in its size; the file system has it when put says ok, and at the end

WARNING: whoever shortens a file while it is served with --map or --writable kills the server (SIGBUS);
only loaded files, the default, are safe from that.

network:
  --bind ADDRESS       where to listen (127.0.0.1:0: this host only, a free port)
  --advertise ENDPOINT what peers are told, where it differs from --bind, as with 0.0.0.0:7000
  --data-bind ADDRESS  with --transport hptcp: where the data streams come in (the host of --bind, a free port);
                       peers need it let through a firewall like the port of --bind
  --timeout D          the longest that one request may take here, at most 300s (30s)

output:
  --json               print what is served as one line of JSON; a failure, at the start or later, is
                       one more line, {"error":{"class":…,"text":…,"known":…,"remedy":…}}
` + transportHelp + engineHelp + `                       (peers refused for epoch or permission, closed connections); serve adds other refused
                       requests, at most a line a second

exit status: 0 ended by a signal and everything closed, 1 something failed, 2 wrong command line
`

// server is one run of serve.
type server struct {
	console  *console
	flags    *flags
	engine   *orbitte.Engine
	files    []*served
	checks   []check
	memory   *orbitte.Memory       // of the manifest
	manifest *orbitte.Registration // of memory
	ranges   []*orbitte.Registration
	seen     orbitte.Traffic // what refusals has shown
}

func serve(ctx context.Context, c *console, args []string) (err error) {
	f := newFlags("serve")
	bind := f.String("bind", "", "")
	advertise := f.String("advertise", "", "")
	data := f.String("data-bind", "", "")
	writable := f.Bool("writable", false, "")
	mapped := f.Bool("map", false, "")
	f.moves()
	paths, err := f.read(c, args)
	f.dataBind = *data
	switch {
	case err != nil:
		return err
	case len(paths) == 0:
		return usage("name at least one file")
	case len(paths) > servedFilesMax:
		return usage("%d files are named; at most %d can be served", len(paths), servedFilesMax)
	case f.dataBind != "" && !f.fast():
		return usage("--data-bind is for --transport hptcp")
	case f.timeout > 300*time.Second:
		return usage("--timeout is %v; a source allows at most 300s", f.timeout)
	}
	s := &server{console: c, flags: f}
	defer s.end(&err)
	if err := s.openFiles(paths, *writable); err != nil {
		return err
	}
	s.engine, err = f.open(c, orbitte.Config{
		Bind: *bind, Advertise: *advertise, SourceTimeout: f.timeout,
		Limits: orbitte.Limits{Registrations: len(paths) + 2, SourceHandlers: 16, SourceQueue: 64},
	})
	if err != nil {
		return err
	}
	defer s.shut(&err)
	if err := s.publish(ctx, *mapped); err != nil {
		return stopped(ctx, err)
	}
	if err := s.announce(); err != nil {
		return err
	}
	return stopped(ctx, s.answer(ctx))
}

// end closes the files, after the engine. What is not proven quiet stays mapped.
func (s *server) end(err *error) {
	for _, file := range s.files {
		if errors.Is(*err, orbitte.ErrUnquiesced) {
			file.sync()
			continue
		}
		if failed := file.close(); failed != nil && *err == nil {
			*err = failed
		}
	}
}

// stopped turns the end that a signal asked for into success.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (s *server) openFiles(paths []string, writable bool) error {
	seen := map[string]string{}
	for _, path := range paths {
		file, err := openServed(path, writable)
		if err != nil {
			return err
		}
		s.files = append(s.files, file)
		if other, ok := seen[file.Name]; ok {
			return usage("%s and %s would have the same name, %s", other, path, file.Name)
		}
		seen[file.Name] = path
	}
	return nil
}

// publish loads the files and makes them visible, all at once and the manifest last (SPEC M-4).
func (s *server) publish(ctx context.Context, mapped bool) error {
	var ranges []orbitte.Range
	for _, file := range s.files {
		if err := file.load(ctx, mapped); err != nil {
			return err
		}
		if file.memory != nil {
			ranges = append(ranges, orbitte.Range{Memory: file.memory, Length: file.Size, Permission: file.permission(), HPTCP: s.flags.fast()})
		}
	}
	memory, err := s.newManifest()
	if err != nil {
		return err
	}
	ranges = append(ranges, orbitte.Range{Memory: memory, Length: uint64(memory.Len()), Permission: orbitte.RemoteRead, HPTCP: s.flags.fast()})
	registrations, err := s.engine.RegisterBatch(ranges)
	if err != nil {
		memory.Close()
		return err
	}
	last := len(registrations) - 1
	s.memory, s.manifest, s.ranges = memory, registrations[last], registrations[:last]
	return nil
}

func (s *server) newManifest() (*orbitte.Memory, error) {
	m := manifest{Checks: s.checks}
	for _, file := range s.files {
		m.Files = append(m.Files, file.entry)
	}
	bytes, err := m.encode()
	if err != nil {
		return nil, err
	}
	memory, err := orbitte.Allocate(len(bytes))
	if err != nil {
		return nil, err
	}
	copy(memory.Bytes(), bytes)
	return memory, nil
}

// republish puts a new manifest behind the others, then takes the old one away.
func (s *server) republish(ctx context.Context) error {
	memory, err := s.newManifest()
	if err != nil {
		return err
	}
	registrations, err := s.engine.RegisterBatch([]orbitte.Range{{Memory: memory, Length: uint64(memory.Len()), Permission: orbitte.RemoteRead, HPTCP: s.flags.fast()}})
	if err != nil {
		memory.Close()
		return err
	}
	old, oldMemory := s.manifest, s.memory
	s.manifest, s.memory = registrations[0], memory
	oldMemory.Close()
	return s.engine.Unregister(ctx, old)
}

// answer hashes files again when put asks for it, until the context ends.
func (s *server) answer(ctx context.Context) error {
	for {
		notes, err := s.await(ctx)
		if err != nil {
			return err
		}
		if len(notes) == 0 {
			continue
		}
		for _, n := range notes {
			var asked recheck
			if n.Name != recheckName || json.Unmarshal([]byte(n.Message), &asked) != nil {
				s.console.remark("notification %.64q ignored: it is none of this tool's", n.Name)
				continue
			}
			s.recheck(ctx, asked)
		}
		if err := s.republish(ctx); err != nil {
			return err
		}
	}
}

// await waits for notifications; with --verbose it looks once a second at what was refused, and may return
// none.
func (s *server) await(ctx context.Context) ([]orbitte.Notification, error) {
	if !s.flags.verbose {
		return s.engine.AwaitNotifications(ctx)
	}
	bounded, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	notes, err := s.engine.AwaitNotifications(bounded)
	s.refusals()
	if err != nil && ctx.Err() == nil && errors.Is(err, orbitte.ErrDeadline) {
		return nil, nil
	}
	return notes, err
}

// refusals says what was refused since the last look and has no line in the engine's log, as stale epochs,
// permissions and closed connections have.
func (s *server) refusals() {
	now, was := s.engine.Stats().Totals, s.seen
	s.seen = now
	var news []string
	for _, n := range []struct {
		what     string
		now, was uint64
	}{
		{"for an unknown region", now.RefusedUnknownRegion, was.RefusedUnknownRegion},
		{"outside its region", now.RefusedRange, was.RefusedRange},
		{"over a limit", now.RefusedExhausted, was.RefusedExhausted},
		{"while closing", now.RefusedClosed, was.RefusedClosed},
		{"past --timeout", now.SourceTimeouts, was.SourceTimeouts},
	} {
		if n.now > n.was {
			news = append(news, fmt.Sprintf("%d %s", n.now-n.was, n.what))
		}
	}
	if len(news) > 0 {
		s.console.remark("requests refused: %s", strings.Join(news, ", "))
	}
}

// recheck notes what a file's bytes are now, once the file system has them.
func (s *server) recheck(ctx context.Context, asked recheck) {
	answer := check{ID: asked.ID, Name: asked.Name, Error: "no such file"}
	for _, file := range s.files {
		if file.Name != asked.Name {
			continue
		}
		answer.Error = "the file is served read-only"
		if file.Writable {
			answer.Error = ""
			err := file.hash(ctx)
			if err == nil {
				err = file.sync()
			}
			if err == nil { // last, so that nothing that was done before it counts for another file
				err = file.inPlace()
			}
			answer.SHA256 = file.SHA256
			if err != nil {
				answer.Error = err.Error()
				s.console.remark("%s was written, but: %v", file.Name, err)
				continue
			}
			s.console.remark("%s was written: %d bytes, sha256 %s", file.Name, file.Size, file.SHA256)
		}
	}
	if len(answer.ID) > nameBytesMax || checkName(answer.Name) != nil {
		return // not from this tool; nothing of it is passed on
	}
	s.checks = append(s.checks, answer)
	s.checks = s.checks[max(0, len(s.checks)-checksKept):]
}

// servedView is what serve prints, and describe too in part.
type servedView struct {
	Endpoint  string  `json:"endpoint"`
	Epoch     string  `json:"epoch"`
	Transport string  `json:"transport"`      // the fastest that is served; tcp is beside it
	Data      string  `json:"data,omitempty"` // the listener of HP-TCP
	Kernel    string  `json:"kernel"`
	Lanes     int     `json:"lanes"`
	Files     []entry `json:"files"`
}

func (s *server) announce() error {
	stats := s.engine.Stats()
	view := servedView{Endpoint: s.engine.Endpoint(), Epoch: s.engine.Epoch().String(), Transport: s.flags.transport, Kernel: stats.Kernel, Lanes: len(stats.Lanes)}
	if stats.HPTCP != nil {
		view.Data = stats.HPTCP.Address
	}
	for _, file := range s.files {
		view.Files = append(view.Files, file.entry)
	}
	if s.flags.json {
		return json.NewEncoder(s.console.out).Encode(view)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "endpoint  %s\nepoch     %s\nkernel    %s (%s), lanes %d\n", view.Endpoint, view.Epoch, view.Kernel, stats.KernelReason, view.Lanes)
	over := ""
	if s.flags.transport != "tcp" {
		over = " --transport " + s.flags.transport
		fmt.Fprintf(&text, "transport %s and tcp\n", s.flags.transport)
	}
	if view.Data != "" {
		fmt.Fprintf(&text, "data      %s\n", view.Data)
	}
	text.WriteString("\n")
	regions := map[uint64]uint64{}
	for _, r := range s.ranges {
		regions[r.Address()] = r.ID()
	}
	text.WriteString(fileTable(view.Files, regions))
	fmt.Fprintf(&text, "\nget them:  orbitte get --from %s --epoch %s%s --all -o FOLDER\nserving until SIGINT or SIGTERM\n", view.Endpoint, view.Epoch, over)
	_, err := s.console.out.Write([]byte(text.String()))
	return err
}

// shut closes the engine and says what it did.
func (s *server) shut(err *error) {
	if s.flags.verbose {
		s.refusals()
	}
	shut(s.engine, err)
	t := s.engine.Stats().Totals
	s.console.remark("closed: served %d READs of %d bytes and %d WRITEs of %d bytes over %d connections",
		t.ReadsServed, t.BytesServed, t.WritesServed, t.BytesStored, t.Accepted)
	if s.memory != nil {
		s.memory.Close()
	}
}
