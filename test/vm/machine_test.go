//go:build !vm

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestFramesArriveWholeOrNotAtAll(t *testing.T) {
	var wire bytes.Buffer
	long := bytes.Repeat([]byte("x"), frameTextMax+3)
	s := &sender{to: &wire}
	if _, err := (stream{s, frameStdout}).Write(long); err != nil {
		t.Fatal(err)
	}
	if err := s.send(frameExit, []byte("7")); err != nil {
		t.Fatal(err)
	}
	whole := slices.Clone(wire.Bytes())
	var got []byte
	for range 2 {
		f, err := receive(&wire)
		if err != nil || f.kind != frameStdout {
			t.Fatalf("%q, %v", f.kind, err)
		}
		got = append(got, f.text...)
	}
	if f, err := receive(&wire); err != nil || f.kind != frameExit || string(f.text) != "7" || !bytes.Equal(got, long) {
		t.Errorf("%q %q, %v; %d bytes", f.kind, f.text, err, len(got))
	}
	if _, err := receive(&wire); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	if _, err := receive(bytes.NewReader(whole[:100])); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut off: %v", err)
	}
	if _, err := receive(strings.NewReader("o\xff\xff\xff\xff")); err == nil {
		t.Error("a frame of 4 GiB is taken")
	}
}

func TestArchiveIsAlignedAndEnds(t *testing.T) {
	var out bytes.Buffer
	a := archive{to: &out}
	a.program("init", []byte("12345"))
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	// Header (110), name with its end (5), one byte up to a multiple of four, text (5) and three more.
	if text := out.String(); len(text)%4 != 0 || text[110:115] != "init\x00" || text[116:121] != "12345" || text[124:130] != "070701" ||
		text[14:22] != "000081ed" || text[54:62] != "00000005" || !strings.Contains(text, "TRAILER!!!\x00") {
		t.Errorf("%q", text)
	}
}

func TestVersionsAreComparedByTheirNumbers(t *testing.T) {
	names := []string{"linux-image-6.12.100+deb12-amd64", "linux-image-6.12.9+deb12-amd64", "linux-image-6.12.117+deb12-amd64"}
	if got := slices.MaxFunc(names, byVersion); got != names[2] {
		t.Error(got)
	}
	if got := slices.MinFunc(names, byVersion); got != names[1] {
		t.Error(got)
	}
	for version, name := range map[string]string{"6.12": names[0], "6.1": "linux-image-6.1.0-57-amd64"} {
		for other, pattern := range kernels {
			if pattern.MatchString(name) != (other == version) {
				t.Errorf("%s as %s", name, other)
			}
		}
	}
	for _, not := range []string{"linux-image-6.12.100+deb12-cloud-amd64", "linux-image-6.12.100+deb12-amd64-dbg", "linux-image-6.1.0-57-rt-amd64"} {
		if kernels["6.12"].MatchString(not) || kernels["6.1"].MatchString(not) {
			t.Error(not)
		}
	}
}

func TestPayloadOfABootImageIsFoundOrRefused(t *testing.T) {
	image := make([]byte, 0x1000)
	image[0x1f1] = 3
	copy(image[0x202:], "HdrS")
	binary.LittleEndian.PutUint32(image[0x248:], 0x10)
	binary.LittleEndian.PutUint32(image[0x24c:], 7+4)
	copy(image[4*512+0x10:], "payload")
	if got, err := payload(image); err != nil || string(got) != "payload" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := payload(image[:4*512]); err == nil {
		t.Error("a payload behind the end of the file is taken")
	}
	if _, err := payload(make([]byte, 0x1000)); err == nil {
		t.Error("a file without header is taken")
	}
}

func TestProgramsThatTheGuestCannotSeeAreRefused(t *testing.T) {
	for path, want := range map[string]string{
		"/tmp/x": "/tmp", "/tmp/share/x": "", "/tmp/share2/x": "/tmp", "/usr/bin/x": "", "/run": "/run", "/tmpfiles/x": "", "/home/run/x": "",
	} {
		if got := hiddenIn(path, "/tmp/share"); got != want {
			t.Errorf("%s: hidden in %q, want %q", path, got, want)
		}
	}
}

func TestEndOfQEMUIsDescribed(t *testing.T) {
	if ended, detail := describe("[ 1.0] Kernel panic - not syncing: VFS: x\r\n[ 1.1] CPU", nil); ended != endPanic || detail != "Kernel panic - not syncing: VFS: x" {
		t.Errorf("%s, %q", ended, detail)
	}
	if ended, detail := describe("qemu: no such device", errors.New("exit status 1")); ended != endDied || !strings.Contains(detail, "exit status 1") {
		t.Errorf("%s, %q", ended, detail)
	}
}

func TestWhatIsMissingIsNamedByItsPackage(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "lib.so.1"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	got := missing([]need{{folder + "/*.so.1", "there"}, {folder + "/*.so.2", "absent"}, {"orbitte-no-such-program", "absent"}, {"sh", "dash"}})
	if !slices.Equal(got, []string{"absent"}) {
		t.Error(got)
	}
}

func TestLinesOfTwoGuestsAreKeptApart(t *testing.T) {
	var out strings.Builder
	p := &prefixed{to: &out, prefix: "1| "}
	for _, text := range []string{"a", "b\nc", "\n", "rest"} {
		if _, err := p.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	p.flush()
	if out.String() != "1| ab\n1| c\n1| rest\n" {
		t.Errorf("%q", out.String())
	}
}

// The guest's side of a command needs no guest.
func TestCommandsEndWithAStatusAsInAShell(t *testing.T) {
	for script, want := range map[string]struct {
		status int
		stderr string
	}{
		"exit 7":                 {7, ""},
		"kill -9 $$":             {137, "ended by a signal: killed"},
		"exec no-such-program":   {127, "not found"},
		"sleep 60 & echo s >&2":  {0, "s\n"}, // a child that keeps the output open
		"test $ORBITTE_VM = two": {0, ""},
	} {
		var wire bytes.Buffer
		began := time.Now()
		status := runCommand(orders{Net: "two", Dir: t.TempDir(), Args: []string{"sh", "-c", script}}, &sender{to: &wire})
		if status != want.status || !strings.Contains(wire.String(), want.stderr) {
			t.Errorf("%s: status %d, want %d; frames %q", script, status, want.status, wire.String())
		}
		if took := time.Since(began); took > 50*time.Second {
			t.Errorf("%s: waited %v for a child of the command", script, took)
		}
	}
	var wire bytes.Buffer
	if status := runCommand(orders{Dir: t.TempDir(), Args: []string{"no-such-program"}}, &sender{to: &wire}); status != 127 {
		t.Errorf("a program that is not there: status %d", status)
	}
}

// The guest's first program must not need the C library: the kernel would say no more than that there is no working init.
func TestFirstProgramNeedsNoOther(t *testing.T) {
	static := filepath.Join(t.TempDir(), "static")
	build := exec.Command("go", "build", "-o", static, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := firstProgram(static); err != nil {
		t.Error(err)
	}
	if _, err := firstProgram("/bin/sh"); err == nil || !strings.Contains(err.Error(), "CGO_ENABLED=0") {
		t.Errorf("a program with a loader: %v", err)
	}
	if _, err := firstProgram("machine_test.go"); err == nil {
		t.Error("a text is taken for a program")
	}
}
