package field

import (
	"flag"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte"
)

// The environment of a child says what it is. It is read before anything else runs.
const (
	childVariable   = "ORBITTE_FIELD_CHILD"   // non-empty: this process is a child
	nofileVariable  = "ORBITTE_FIELD_NOFILE"  // RLIMIT_NOFILE
	seccompVariable = "ORBITTE_FIELD_SECCOMP" // io_uring_setup answers this errno
	sigpipeVariable = "ORBITTE_FIELD_SIGPIPE" // SIGPIPE kills, as in a program without a handler
)

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		prepareChild()
		serveOrders()
		os.Exit(0)
	}
	// Parallel cases mostly wait for deadlines and idle times, not for a processor; those that compare rates run alone.
	flag.Parse()
	must(flag.Set("test.parallel", "12"))
	os.Exit(m.Run())
}

func prepareChild() {
	if n, err := strconv.ParseUint(os.Getenv(nofileVariable), 10, 32); err == nil {
		must(unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n}))
	}
	if errno, err := strconv.ParseUint(os.Getenv(seccompVariable), 10, 16); err == nil {
		must(forbidRings(uint32(errno)))
	}
	if os.Getenv(sigpipeVariable) != "" {
		must(defaultSigpipe())
	}
}

// must ends a child that cannot become what its test asks for; the parent prints what it said.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// scaled is how many of a heavy count's repetitions run: all, or a tenth under the race detector or with -short.
func scaled(n int) int {
	if underRace || testing.Short() {
		return n / 10
	}
	return n
}

// kernels that the cases run on.
var kernels = []struct {
	name   string
	choice orbitte.KernelChoice
}{{"epoll", orbitte.Epoll}, {"io_uring", orbitte.IOUring}}

// onKernels runs a case on both kernels.
func onKernels(t *testing.T, run func(t *testing.T, kernel orbitte.KernelChoice)) {
	for _, k := range kernels {
		t.Run(k.name, func(t *testing.T) {
			if k.choice == orbitte.IOUring {
				needRings(t)
			}
			run(t, k.choice)
		})
	}
}

// needRings skips where the system forbids io_uring to everybody.
func needRings(t *testing.T) {
	t.Helper()
	e, err := orbitte.Open(orbitte.Config{Kernel: orbitte.IOUring})
	if err != nil {
		t.Skip("no-io-uring: " + err.Error())
	}
	closeEngine(t, e)
}
