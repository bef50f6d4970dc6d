package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/orbitte/orbitte"
)

// embedding is a program that embeds the engine and publishes what a test gives it.
func embedding(t *testing.T, limits orbitte.Limits, contents ...[]byte) (*orbitte.Engine, []*orbitte.Registration) {
	t.Helper()
	e, err := orbitte.Open(orbitte.Config{Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	var memories []*orbitte.Memory
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Error(err)
		}
		for _, m := range memories {
			m.Close()
		}
	})
	var all []*orbitte.Registration
	for _, content := range contents {
		memory, err := orbitte.Allocate(len(content))
		if err != nil {
			t.Fatal(err)
		}
		copy(memory.Bytes(), content)
		memories = append(memories, memory)
		r, err := e.Register(memory, 0, uint64(len(content)), orbitte.RemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return e, all
}

// field case F-73
func TestRequestsNeverExceedWhatThePeerAdmits(t *testing.T) {
	content := []byte(strings.Repeat("0123456789abcdef", 1000)) // 16,000 bytes against 100 for each request
	e, r := embedding(t, orbitte.Limits{PayloadBytes: 100}, content)
	memory := encoded(t, &manifest{Files: []entry{{Name: "data", Size: uint64(len(content)), SHA256: sha256.Sum256(content), Address: r[0].Address()}}})
	published, err := orbitte.Adopt(memory)
	if err != nil {
		t.Fatal(err)
	}
	defer published.Close()
	if _, err := e.Register(published, 0, uint64(len(memory)), orbitte.RemoteRead); err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	tool(t, "get", "--from", e.Endpoint(), "--epoch", e.Epoch().String(), "data", "-o", to).want(t, 0)
	same(t, filepath.Join(to, "data"), content)
	if served := e.Stats().Totals.ReadsServed; served < 160 {
		t.Errorf("%d READs were served, want at least 160", served)
	}
}

func TestAHostileManifestWritesNothing(t *testing.T) {
	content := []byte("content")
	for name, m := range map[string]*manifest{
		"outside its folder":   {Files: []entry{{Name: "../escaped", Size: 7, SHA256: sha256.Sum256(content)}}},
		"an address of nobody": {Files: []entry{{Name: "data", Size: 7, SHA256: sha256.Sum256(content), Address: 4096}}},
		"a size of everything": {Files: []entry{{Name: "data", Size: 1<<64 - 1, SHA256: sha256.Sum256(content)}}},
		"another's SHA-256":    {Files: []entry{{Name: "data", Size: 0, SHA256: sha256.Sum256(content)}}},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := embedding(t, orbitte.Limits{}, encoded(t, m))
			top := t.TempDir()
			to := filepath.Join(top, "to")
			tool(t, "get", "--from", e.Endpoint(), "--epoch", e.Epoch().String(), "--all", "-o", to).want(t, 1)
			for _, folder := range []string{top, to} {
				if found, _ := filepath.Glob(filepath.Join(folder, "*a*")); len(found) > 0 {
					t.Errorf("wrote %q", found)
				}
			}
		})
	}
}

func TestDescribeShowsAnyEmbeddingProgram(t *testing.T) {
	e, r := embedding(t, orbitte.Limits{PayloadBytes: 12345}, make([]byte, 4096), make([]byte, 100))
	shown := tool(t, "describe", e.Endpoint(), "--json")
	shown.want(t, 0, "learned "+e.Epoch().String())
	var d described
	if err := json.Unmarshal([]byte(shown.out), &d); err != nil {
		t.Fatal(err)
	}
	if d.Epoch != e.Epoch().String() || d.TransferBytesMax != 12345 || len(d.Regions) != 2 || d.Files != nil ||
		d.Regions[1] != (regionView{r[1].ID(), r[1].Address(), 100, "remote-read", "host", false}) {
		t.Errorf("%+v", d)
	}
	if text := tool(t, "describe", e.Endpoint()); !strings.Contains(text.out, "no files: not an orbitte serve") {
		t.Errorf("%s", text.out)
	}
	tool(t, "get", "--from", e.Endpoint(), "--all").want(t, 1, "class:  the peer publishes no files", "it publishes 2 regions")
}

func TestDescribeShowsFiles(t *testing.T) {
	path, content := file(t, t.TempDir(), "data", 5000)
	s := startSource(t, path)
	shown := tool(t, "describe", s.Endpoint, "--epoch", s.Epoch)
	shown.want(t, 0)
	for _, word := range []string{s.Endpoint, s.Epoch, "8388608 bytes", "remote-read", "data", "5000", digest(sha256.Sum256(content)).String()} {
		if !strings.Contains(shown.out, word) {
			t.Errorf("%q is not shown:\n%s", word, shown.out)
		}
	}
	tool(t, append([]string{"get", "data", "nothing"}, s.peerFlags("--from")...)...).want(t, 1, "class:  the peer has no such file", "it has data")
}

func TestForeignNotificationsAndRechecksChangeNothing(t *testing.T) {
	path, content := file(t, t.TempDir(), "data", 5000)
	s := startSource(t, path)
	e, _ := embedding(t, orbitte.Limits{})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	segment, err := e.Describe(ctx, s.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []orbitte.Notification{
		{Name: "\x1b[31mred", Message: "text"}, {Name: recheckName, Message: "{"},
		{Name: recheckName, Message: `{"id":"1","name":"nobody"}`}, {Name: recheckName, Message: `{"id":"2","name":"data"}`},
		{Name: recheckName, Message: `{"id":"3","name":"../\u001b"}`},
	} {
		if _, err := e.SendNotification(ctx, segment, n); err != nil {
			t.Error(err)
		}
	}
	out := filepath.Join(t.TempDir(), "out")
	tool(t, append([]string{"get", "data", "-o", out}, s.peerFlags("--from")...)...).want(t, 0)
	same(t, out, content)
	s.stop(t)
	if errs := s.errs.String(); strings.Contains(errs, "\x1b") || !strings.Contains(errs, "ignored") {
		t.Errorf("standard error: %q", errs)
	}
}
