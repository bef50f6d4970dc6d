package consumer

import (
	"bytes"
	"context"
	"errors"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/orbitte/orbitte"
)

func open(t *testing.T, kernel orbitte.KernelChoice) (context.Context, *Store) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	s, err := Open(kernel, orbitte.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
		if owed := s.Owed(); owed != nil {
			t.Errorf("still charged: %+v", owed)
		}
	})
	return ctx, s
}

// proves U-2
func TestTwoStoresExchangeValues(t *testing.T) {
	for name, kernel := range map[string]orbitte.KernelChoice{"auto": orbitte.Auto, "epoll": orbitte.Epoll} {
		t.Run(name, func(t *testing.T) {
			ctx, there := open(t, kernel)
			_, here := open(t, kernel)
			want := bytes.Repeat([]byte("value of the other one. "), 10_000)
			ticket, err := there.Put("v", want, orbitte.ReadWrite)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := here.Put("v", make([]byte, len(want)), orbitte.LocalOnly); err != nil {
				t.Fatal(err)
			}
			segment, err := here.Segment(ctx, ticket)
			if err != nil {
				t.Fatal(err)
			}
			report, err := here.Move(ctx, orbitte.Read, "v", segment, ticket, orbitte.Notification{Name: "read", Message: "v"})
			if err != nil || report.Bytes != uint64(len(want)) || report.Notification.Status != orbitte.Delivered {
				t.Fatalf("%+v %v", report, err)
			}
			if !bytes.Equal(here.Bytes("v"), want) {
				t.Error("READ brought other bytes")
			}
			if notes, err := there.Told(ctx); err != nil || len(notes) != 1 || notes[0] != (orbitte.Notification{Name: "read", Message: "v"}) {
				t.Errorf("%+v %v", notes, err)
			}
			copy(here.Bytes("v"), "changed")
			batch, err := here.Start(ctx, orbitte.Write, "v", segment, ticket)
			if err != nil {
				t.Fatal(err)
			}
			defer batch.Free()
			if report, err := batch.Wait(ctx); err != nil || report.Completed != 1 {
				t.Fatalf("%+v %v", report, err)
			}
			if notes, err := there.Told(ctx); err != nil || len(notes) != 1 || notes[0].Name != "v" {
				t.Errorf("%+v %v", notes, err)
			}
			if !bytes.HasPrefix(there.Bytes("v"), []byte("changed")) {
				t.Error("WRITE brought other bytes")
			}
		})
	}
}

func TestErrorsAreToldApartByTheirClass(t *testing.T) {
	ctx, there := open(t, orbitte.Auto)
	_, here := open(t, orbitte.Auto)
	ticket, err := there.Put("v", make([]byte, 100), orbitte.RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := here.Put("v", make([]byte, 100), orbitte.LocalOnly); err != nil {
		t.Fatal(err)
	}
	stale := ticket
	stale.Epoch = strings.Repeat("ab", 16)
	if _, err := here.Segment(ctx, stale); !errors.Is(err, orbitte.ErrStaleEpoch) {
		t.Error(err)
	}
	segment, err := here.Segment(ctx, ticket)
	if err != nil {
		t.Fatal(err)
	}
	_, err = here.Move(ctx, orbitte.Write, "v", segment, ticket, orbitte.Notification{})
	var failed *orbitte.Error
	if !errors.Is(err, orbitte.ErrPermission) || !errors.As(err, &failed) || failed.Known() == "" || failed.Remedy() == "" {
		t.Error(err)
	}
}

func TestOnlyThePublicPackageIsImported(t *testing.T) {
	const project = "github.com/orbitte/orbitte"
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 3 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		tree, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range tree.Imports {
			if path := strings.Trim(i.Path.Value, `"`); strings.HasPrefix(path, project+"/") {
				t.Errorf("%s imports %s, which is not public", name, path)
			}
		}
	}
}

func TestAConsumerBuildsWithoutC(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		c := exec.Command("go", "build", ".")
		c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+arch)
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", arch, err, out)
		}
	}
}
