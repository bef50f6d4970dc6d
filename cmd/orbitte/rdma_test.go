package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/verbs"
	"github.com/orbitte/orbitte/verbs/libibverbs"
	"github.com/orbitte/orbitte/verbs/simverbs"
)

// withFabric gives each engine of this process a host of its own on one fabric, which lives by the real clock.
func withFabric(t *testing.T) {
	t.Helper()
	began := time.Now()
	var timers sync.WaitGroup
	f := simverbs.NewFabric(1, simverbs.Options{
		Now: func() time.Duration { return time.Since(began) },
		Later: func(d time.Duration, do func()) {
			timers.Add(1)
			time.AfterFunc(d, func() { do(); timers.Done() })
		},
		Signal: func(*simverbs.Process) (int, func(), func(), func(), error) {
			fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
			set := func() { unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }
			clear := func() { unix.Read(fd, make([]byte, 8)) }
			return fd, set, clear, func() { unix.Close(fd) }, err
		},
	})
	var hosts atomic.Int64
	loadVerbs = func() (verbs.Calls, error) {
		name := fmt.Sprintf("host %d", hosts.Add(1))
		return f.Host(name).Process(name), nil
	}
	t.Cleanup(func() {
		loadVerbs = libibverbs.Load
		timers.Wait()
		if left := f.Live(); len(left) > 0 {
			t.Errorf("native objects are left: %+v", left)
		}
	})
}

// field case F-68, F-70
func TestServeGetAndPutMoveFilesOverRDMAWhenAskedTo(t *testing.T) {
	withFabric(t)
	from, to := t.TempDir(), t.TempDir()
	path, content := file(t, from, "data", 3<<20+7)
	changed, other := file(t, t.TempDir(), "other", 3<<20+7)
	ctx, stop := context.WithCancel(context.Background())
	out, in := io.Pipe()
	served := make(chan int, 1)
	go func() {
		served <- run(ctx, &console{out: in, remarks: io.Discard}, []string{"serve", "--json", "--writable", "--transport", "rdma", path})
		in.Close()
	}()
	var view servedView
	line, _ := bufio.NewReader(out).ReadBytes('\n')
	if err := json.Unmarshal(line, &view); err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	peer := []string{"--epoch", view.Epoch, "--transport", "rdma"}
	got := filepath.Join(to, "copy")
	carried(t, inside(append([]string{"get", "--from", view.Endpoint, "-o", got, "data"}, peer...)...), "rdma, staged on both sides")
	same(t, got, content)
	carried(t, inside(append([]string{"put", "--to", view.Endpoint, changed, "data"}, peer...)...), "rdma, staged")
	same(t, path, other)
	carried(t, inside("get", "--from", view.Endpoint, "--epoch", view.Epoch, "-o", got, "data"), "tcp")
	same(t, got, other)
	stop()
	if status := <-served; status != exitDone {
		t.Errorf("serve ended with %d", status)
	}
}

// field case F-70
func TestATransportThatIsNotThereFailsTheCommand(t *testing.T) {
	from := t.TempDir()
	path, _ := file(t, from, "data", 10)
	loadVerbs = func() (verbs.Calls, error) { return nil, &libibverbs.NoCgo{} }
	t.Cleanup(func() { loadVerbs = libibverbs.Load })
	inside("serve", "--transport", "rdma", path).want(t, exitFailed, "without cgo", "nothing was tried over TCP")
	inside("serve", "--transport", "pigeon", path).want(t, exitUsage, "tcp, hptcp or rdma")
}

// carried checks that a command succeeded, and what its table says about the way.
func carried(t *testing.T, e ended, way string) {
	t.Helper()
	e.want(t, exitDone)
	if !strings.Contains(e.out, way) {
		t.Errorf("no %q in\n%s", way, e.out)
	}
}
