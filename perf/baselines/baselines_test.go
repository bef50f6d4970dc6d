package baselines

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// TestMain lets the test's own program be the helper of a Duo, its server and its client.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 {
		switch os.Args[1] {
		case DuoArgument:
			DuoMain(os.Args[2:])
			return
		case "-greet-server":
			l, err := net.Listen("tcp", "127.0.0.1:"+os.Args[2])
			if err != nil {
				os.Exit(1)
			}
			c, err := l.Accept()
			if err == nil {
				fmt.Fprint(c, "hello")
				c.Close()
			}
			return
		case "-greet-client":
			c, err := net.Dial("tcp", "127.0.0.1:"+os.Args[2])
			if err != nil {
				os.Exit(1)
			}
			_, _ = io.Copy(os.Stdout, c)
			return
		case "-echo":
			_ = Serve("ready", func(q []byte) (any, error) {
				if string(q) == `"fail"` {
					return nil, fmt.Errorf("as asked")
				}
				return map[string]string{"got": string(q)}, nil
			})
			return
		}
	}
	os.Exit(m.Run())
}

func TestCommandComesBackAsItWas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Command{What: byte(rapid.IntRange(Pull, PingPong).Draw(t, "what")), Spin: rapid.Bool().Draw(t, "spin"), Scattered: rapid.Bool().Draw(t, "scattered"),
			Count: uint32(rapid.IntRange(0, 1000).Draw(t, "count")), Size: uint64(rapid.IntRange(0, 1<<20).Draw(t, "size"))}
		back, err := Decode(c.Encode())
		if err != nil || back != c {
			t.Fatalf("%+v came back as %+v, %v", c, back, err)
		}
	})
}

func TestDecodeRefusesWhatWouldTakeTooMuch(t *testing.T) {
	for _, c := range []Command{{}, {What: 9}, {What: Pull, Size: BlockBytesMax + 1}, {What: Pull, Scattered: true, Count: 1 << 20, Size: 1 << 20}} {
		if _, err := Decode(c.Encode()); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
}

func TestJumpsVisitEveryPageOnce(t *testing.T) {
	for _, count := range []uint64{1, 16, 64, 1024, 1792, 1952, 2048, 2304, 5120, 120000} {
		for _, step := range []uint64{NearStep, FarStep} {
			seen := make([]bool, count)
			for i := range count {
				seen[Jump(i, count, step)] = true
			}
			for i, ok := range seen {
				if !ok {
					t.Fatalf("page %d of %d is never visited with step %d", i, count, step)
				}
			}
		}
	}
}

func TestBlocksStayInTheirMemory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := uint64(rapid.IntRange(1, BlockBytesMax).Draw(t, "size"))
		i := uint64(rapid.IntRange(0, 1<<20).Draw(t, "i"))
		if at := Offset(i, size); at+size > MemoryBytes(size) || at%size != 0 {
			t.Fatalf("block %d of %d bytes is at %d", i, size, at)
		}
	})
}

func rawServer(t *testing.T) string {
	t.Helper()
	_, address, err := ListenRaw()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// client is what a raw stream and a net.Conn have in common.
type client interface {
	Bulk(Command, []byte) (time.Duration, error)
	PingPong(Command, []byte, func(time.Duration)) error
}

// exercise makes each kind of exchange, twice, so that a stream is seen to be in step afterwards.
func exercise(t *testing.T, c client) {
	t.Helper()
	block := make([]byte, WorkingBytes)
	for range 2 {
		for _, size := range []uint64{64, 4096, 100000} {
			for _, spin := range []bool{false, true} {
				if _, err := c.Bulk(Command{What: Pull, Spin: spin, Count: 5, Size: size}, block); err != nil {
					t.Fatal(err)
				}
				if _, err := c.Bulk(Command{What: Push, Spin: spin, Count: 5, Size: size}, block); err != nil {
					t.Fatal(err)
				}
			}
			times := 0
			if err := c.PingPong(Command{What: PingPong, Count: 5, Size: size}, block, func(time.Duration) { times++ }); err != nil || times != 5 {
				t.Fatalf("%d round trips, %v", times, err)
			}
		}
	}
}

func TestRawStreamStaysInStepWithItsServer(t *testing.T) {
	fd, address, err := ListenRaw()
	if err != nil {
		t.Fatal(err)
	}
	go ServeRaw(fd)
	s, err := Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	exercise(t, s)
	block, times := make([]byte, WorkingBytes), 0
	for _, look := range []time.Duration{0, 10 * time.Microsecond} {
		if err := s.PingPongByLane(Command{What: PingPong, Count: 5, Size: 4096}, look, block, func(time.Duration) { times++ }); err != nil {
			t.Fatal(err)
		}
	}
	if times != 10 {
		t.Errorf("%d round trips behind a thread", times)
	}
	exercise(t, s)
}

func TestPiecesOfBlocksAreAskedForOneByOne(t *testing.T) {
	fd, address, err := ListenRaw()
	if err != nil {
		t.Fatal(err)
	}
	go ServeRaw(fd)
	s, err := Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	block := make([]byte, WorkingBytes)
	far := make([]byte, WorkingBytes)
	Fill(far)
	for _, piece := range []uint64{4096, 1024} { // the server's blocks begin anew with each command
		clear(block)
		if _, err := s.PullAsked(Command{Count: 7, Size: 4096}, piece, 3, block); err != nil {
			t.Fatal(err)
		}
		for at := uint64(0); at < 7*4096; at += piece {
			if !bytes.Equal(block[at:][:piece], far[:piece]) {
				t.Fatalf("pieces of %d bytes: the one at %d is not there", piece, at)
			}
		}
	}
	exercise(t, s)
}

func TestScatteredPagesAreEachWrittenOnce(t *testing.T) {
	fd, address, err := ListenRaw()
	if err != nil {
		t.Fatal(err)
	}
	go ServeRaw(fd)
	s, err := Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const count, size = 600, 4096
	block := make([]byte, count*size)
	if _, err := s.Bulk(Command{What: Pull, Scattered: true, Count: count, Size: size}, block); err != nil {
		t.Fatal(err)
	}
	far := make([]byte, count*size)
	Fill(far)
	for i := range uint64(count) {
		near, want := block[Jump(i, count, NearStep)*size:][:size], far[Jump(i, count, FarStep)*size:][:size]
		if !bytes.Equal(near, want) {
			t.Fatalf("page %d is not the one that it should be", i)
		}
	}
	exercise(t, s)
}

func TestStreamsShareTheirBlocksOut(t *testing.T) {
	fd, address, err := ListenRaw()
	if err != nil {
		t.Fatal(err)
	}
	go ServeRaw(fd)
	all, err := ConnectAll(address, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	if _, err := all.Bulk(Command{What: Pull, Count: 7, Size: 4096}, make([]byte, 3*WorkingBytes)); err != nil {
		t.Fatal(err)
	}
	if n := all.Blocks(7); n != 9 {
		t.Errorf("%d blocks for 7 over 3 streams", n)
	}
}

func TestPlainGoStaysInStepWithItsServer(t *testing.T) {
	l, err := ListenNet()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go ServeNet(l)
	c, err := DialNet(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	exercise(t, c)
}

func TestStreamToNobodyFails(t *testing.T) {
	if _, err := Connect("127.0.0.1:1"); err == nil {
		t.Error("a stream to nobody")
	}
	if _, err := Connect("nonsense"); err == nil {
		t.Error("a stream to nonsense")
	}
	_ = rawServer(t) // a listener that nobody serves ends with the process
}

func TestCopyCopiesEveryBlock(t *testing.T) {
	from, to := make([]byte, WorkingBytes), make([]byte, WorkingBytes)
	for i := range from {
		from[i] = byte(i)
	}
	Copy(to, from, WorkingBytes/4096, 4096)
	if !bytes.Equal(from, to) {
		t.Error("the copy differs")
	}
}

func TestProgramAnswersAndFails(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := StartProgram("echo", self, "-echo", "x")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var answer struct{ Got string }
	if err := p.Ask([]int{1, 2}, &answer); err != nil || answer.Got != "[1,2]" || p.Hello() != "ready" {
		t.Errorf("answer %+v, hello %q, %v", answer, p.Hello(), err)
	}
	if err := p.Ask("fail", nil); err == nil || !strings.Contains(err.Error(), "as asked") {
		t.Errorf("a failure came as %v", err)
	}
	p.Close()
	first, second := p.Ask(1, nil), p.Ask(2, nil)
	if first == nil || first != second || !strings.HasPrefix(first.Error(), "echo ended") {
		t.Errorf("a program that has ended says %v, then %v", first, second)
	}
	if _, err := StartProgram("nothing", "/nonexistent"); err == nil {
		t.Error("a program that is not there started")
	}
}

func TestDuoRunsServerAndClient(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	p := fmt.Sprint(port)
	r, err := Duo{Server: []string{self, "-greet-server", p}, Client: []string{self, "-greet-client", p}, Port: port}.Run(context.Background())
	if err != nil || r.Output != "hello" || r.Peak == 0 {
		t.Errorf("result %+v, %v", r, err)
	}
	_, err = Duo{Server: []string{self, "-echo", "x"}, Client: []string{self, "-greet-client", p}, Port: port}.Run(context.Background())
	if err == nil || !strings.Contains(err.Error(), "did not listen") {
		t.Errorf("a server that does not listen: %v", err)
	}
}

func TestToolsOutputsAreRead(t *testing.T) {
	tools := map[string]*Tool{}
	for _, tool := range Tools() {
		tools[tool.Name] = tool
	}
	for _, c := range []struct {
		tool, output string
		want         float64
	}{
		{"iperf3", `{"end":{"sum_sent":{"bits_per_second":9e9},"sum_received":{"seconds":1,"bits_per_second":8e9}}}`, 1},
		{"ucx put", "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n 300,0.160,5193.953,5193.953,192.53,1000.00,193,193\n", 1000 * 1.048576e-3},
		{"ucx tag latency", "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n 9,1,2,3.5,4,5,6,7", 3.5},
		{"libfabric ping-pong", "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n64k     200     =200     25m         0.02s   1250.00      51.61       0.02\n", 1.25},
		{"libfabric latency", "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n64k     200     =200     25m         0.02s   1250.00      51.61       0.02\n", 51.61},
	} {
		got, err := tools[c.tool].parse(c.output)
		if err != nil || got < c.want*0.9999 || got > c.want*1.0001 {
			t.Errorf("%s: %v, %v, want %v", c.tool, got, err, c.want)
		}
	}
	for _, tool := range tools {
		for _, output := range []string{"", "nonsense", "a,b\nc", `{"error":"refused"}`} {
			if v, err := tool.parse(output); err == nil {
				t.Errorf("%s read %v out of %q", tool.Name, v, output)
			}
		}
	}
}

func TestMissingToolSaysWhatToInstall(t *testing.T) {
	tool := &Tool{Name: "x", Program: "orbitte-no-such-program", Package: "some-package"}
	err := tool.Missing()
	if err == nil || !strings.Contains(err.Error(), "some-package") {
		t.Errorf("missing tool: %v", err)
	}
	if _, err := tool.Run(context.Background(), 1, 64); err == nil || err.Error() != tool.Missing().Error() {
		t.Errorf("a missing tool ran: %v", err)
	}
}

// A line without a zero byte in most places: what processors move faster is not what is measured.
func TestFillLeavesNoLineOfZeros(t *testing.T) {
	b := make([]byte, 8192+5)
	Fill(b)
	for at := 0; at < len(b); at += 64 {
		line := b[at:min(at+64, len(b))]
		if zeros := bytes.Count(line, []byte{0}); zeros > len(line)/8 {
			t.Errorf("the line at %d has %d zeros", at, zeros)
		}
	}
	if bytes.Equal(b[:4096], b[4096:8192]) {
		t.Error("two pages are the same")
	}
}

// Both sides of every connection of the raw loops and of plain Go have the congestion control that the engine has.
func TestBothSidesOfPlainGoHaveReno(t *testing.T) {
	l, err := ListenNet()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := Dial(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for name, c := range map[string]net.Conn{"client": client, "server": server} {
		raw, err := c.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var used string
		if controlled := raw.Control(func(fd uintptr) { used, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION) }); controlled != nil || err != nil {
			t.Fatal(controlled, err)
		}
		if strings.TrimRight(used, "\x00") != "reno" {
			t.Errorf("the %s has %q", name, used)
		}
	}
}

// gnet and grpc-go are found from any working folder: of this module, of the nested one, and of none.
func TestPeersAreFoundFromAnyFolder(t *testing.T) {
	var folders []string
	for _, name := range []string{"../..", "../../examples", "../peers", t.TempDir()} {
		folder, err := filepath.Abs(name)
		if err != nil {
			t.Fatal(err)
		}
		folders = append(folders, folder)
	}
	for _, folder := range folders {
		t.Chdir(folder)
		at, err := peersFolder(t.Context())
		if err != nil {
			t.Errorf("from %s: %v", folder, err)
		} else if _, err := os.Stat(filepath.Join(at, "gnet.go")); err != nil {
			t.Errorf("from %s: %v", folder, err)
		}
	}
}

// The engine allocates in huge pages; servers whose memory was in small ones would pay for them in each copy.
func TestMemoryOfServersIsInHugePagesAsTheEnginesIs(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err != nil {
		t.Skip("huge pages: this kernel has none: ", err)
	}
	const n = 5 << 20
	var m Memory
	defer m.Close()
	small := m.Hold(100)
	if len(small) != 100 || bytes.IndexByte(small, 0) >= 0 {
		t.Errorf("%d bytes, or one without content", len(small))
	}
	b := m.Hold(n)
	if at := uintptr(unsafe.Pointer(unsafe.SliceData(b))); len(b) != n || at%hugePage != 0 {
		t.Fatalf("%d bytes at %#x", len(b), at)
	}
	if again := m.Hold(n - 1); &again[0] != &b[0] {
		t.Error("enough memory was replaced")
	}
	want := make([]byte, n)
	if Fill(want); !bytes.Equal(b, want) {
		t.Error("the content is not Fill's")
	}
	if flags := mappingFlags(t, uintptr(unsafe.Pointer(unsafe.SliceData(b)))); !slices.Contains(flags, "hg") {
		t.Errorf("its mapping has the flags %q, not that of huge pages", flags)
	}
}

// mappingFlags are the VmFlags of proc_pid_smaps(5) of the mapping that begins at, or just before, an address.
func mappingFlags(t *testing.T, address uintptr) []string {
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Skip("smaps: the system does not show mappings: ", err)
	}
	inside := false
	for line := range strings.Lines(string(text)) {
		var low, high uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &low, &high); n == 2 {
			inside = low <= address && address < high
		}
		if flags, found := strings.CutPrefix(line, "VmFlags:"); found && inside {
			return strings.Fields(flags)
		}
	}
	t.Skip("smaps: the system does not show the flags of mappings")
	return nil
}
