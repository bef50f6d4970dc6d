package abi

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/orbitte/orbitte/cuda"
)

// cudaRoom is where the declarations of the CUDA driver are.
const cudaRoom = "../../cuda/libcuda/"

var (
	cudaConstLine = regexp.MustCompile(`^\tORB_(CU\w+) = .*,$`)
	cudaCallLine  = regexp.MustCompile(`^\torb_cu_result \(\*(cu\w+)\)\(.*\);`)
)

// cudaHeader is the folder of an installed cuda.h: ORBITTE_CUDA_INCLUDE, the usual places, or the compiler's own.
func cudaHeader(t *testing.T) (gcc, folder string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("system: the native rooms are for Linux")
	}
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("compiler: no gcc; install gcc and libc6-dev")
	}
	for _, folder := range []string{os.Getenv("ORBITTE_CUDA_INCLUDE"), "/usr/local/cuda/include", "/usr/include"} {
		if _, err := os.Stat(filepath.Join(folder, "cuda.h")); folder != "" && err == nil {
			return gcc, folder
		}
	}
	t.Skip("headers: no cuda.h; install nvidia-cuda-dev (Debian, non-free) or the CUDA Toolkit, or name its folder in ORBITTE_CUDA_INCLUDE")
	return "", ""
}

// cudaCompile compiles a C program beside the header; without a program name it only checks.
func cudaCompile(t *testing.T, gcc, folder, text string, flags ...string) (string, error) {
	t.Helper()
	here, err := filepath.Abs(cudaRoom)
	if err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(t.TempDir(), "abi.c")
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	program := strings.TrimSuffix(source, ".c")
	args := append([]string{"-std=gnu11", "-I", here, "-I", folder}, flags...)
	out, err := exec.Command(gcc, append(args, source, "-o", program)...).CombinedOutput()
	if err != nil {
		return program, fmt.Errorf("%w\n%s", err, out)
	}
	return program, nil
}

// matches collects what one group of an expression matches in a file's lines.
func matches(t *testing.T, path string, line *regexp.Regexp, least int) (all []string) {
	t.Helper()
	for _, text := range read(t, path) {
		if m := line.FindStringSubmatch(text); m != nil {
			all = append(all, m[1])
		}
	}
	if len(all) < least {
		t.Fatalf("read only %d declarations of %s", len(all), path)
	}
	return all
}

// cudaConstants are the Go constants that say that they are the driver's numbers.
var cudaConstants = map[string]struct {
	theirs string
	value  uint64
}{
	"Success": {"CUDA_SUCCESS", uint64(cuda.Success)}, "InvalidValue": {"CUDA_ERROR_INVALID_VALUE", uint64(cuda.InvalidValue)},
	"OutOfMemory": {"CUDA_ERROR_OUT_OF_MEMORY", uint64(cuda.OutOfMemory)}, "NotInitialized": {"CUDA_ERROR_NOT_INITIALIZED", uint64(cuda.NotInitialized)},
	"Deinitialized": {"CUDA_ERROR_DEINITIALIZED", uint64(cuda.Deinitialized)}, "NoDevice": {"CUDA_ERROR_NO_DEVICE", uint64(cuda.NoDevice)},
	"InvalidDevice": {"CUDA_ERROR_INVALID_DEVICE", uint64(cuda.InvalidDevice)}, "InvalidContext": {"CUDA_ERROR_INVALID_CONTEXT", uint64(cuda.InvalidContext)},
	"ECCUncorrectable": {"CUDA_ERROR_ECC_UNCORRECTABLE", uint64(cuda.ECCUncorrectable)}, "InvalidHandle": {"CUDA_ERROR_INVALID_HANDLE", uint64(cuda.InvalidHandle)},
	"NotFound": {"CUDA_ERROR_NOT_FOUND", uint64(cuda.NotFound)}, "NotReady": {"CUDA_ERROR_NOT_READY", uint64(cuda.NotReady)},
	"IllegalAddress": {"CUDA_ERROR_ILLEGAL_ADDRESS", uint64(cuda.IllegalAddress)}, "ContextDestroyed": {"CUDA_ERROR_CONTEXT_IS_DESTROYED", uint64(cuda.ContextDestroyed)},
	"LaunchFailed": {"CUDA_ERROR_LAUNCH_FAILED", uint64(cuda.LaunchFailed)}, "NotPermitted": {"CUDA_ERROR_NOT_PERMITTED", uint64(cuda.NotPermitted)},
	"NotSupported": {"CUDA_ERROR_NOT_SUPPORTED", uint64(cuda.NotSupported)}, "SystemNotReady": {"CUDA_ERROR_SYSTEM_NOT_READY", uint64(cuda.SystemNotReady)},
	"DriverMismatch": {"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", uint64(cuda.DriverMismatch)}, "CompatNotSupported": {"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", uint64(cuda.CompatNotSupported)},
	"Unknown":    {"CUDA_ERROR_UNKNOWN", uint64(cuda.Unknown)},
	"MemoryHost": {"CU_MEMORYTYPE_HOST", uint64(cuda.MemoryHost)}, "MemoryDevice": {"CU_MEMORYTYPE_DEVICE", uint64(cuda.MemoryDevice)},
}

// cudaOwn are constants of these types whose numbers are not the header's: 0 stands for an answer that it has no name for.
var cudaOwn = map[string]bool{"MemoryUnknown": true}

// cudaNames reads the names of the constants of type Result and MemoryType.
func cudaNames(t *testing.T) (names []string) {
	t.Helper()
	for _, file := range []string{"../../cuda/calls.go", "../../cuda/errors.go"} {
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range tree.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			for _, s := range g.Specs {
				v := s.(*ast.ValueSpec)
				if kind, ok := v.Type.(*ast.Ident); ok && (kind.Name == "Result" || kind.Name == "MemoryType") && !cudaOwn[v.Names[0].Name] {
					names = append(names, v.Names[0].Name)
				}
			}
		}
	}
	return names
}

// The numbers were compared once with cuda.h of CUDA 11.8 (Debian 12, nvidia-cuda-dev 11.8.89~11.8.0-5~deb12u1, 2026-11-30)
// by this test, and each with a second copy of the interface in another project's bindings.
func TestCUDANumbersAreTheHeaders(t *testing.T) {
	names := cudaNames(t)
	for _, name := range names {
		if _, ok := cudaConstants[name]; !ok {
			t.Errorf("cuda.%s is not compared: add it to the table, or to those of our own", name)
		}
	}
	if len(names) < len(cudaConstants) {
		t.Errorf("package cuda has %d constants of the driver's, the table %d", len(names), len(cudaConstants))
	}
	constants := matches(t, cudaRoom+"abi.h", cudaConstLine, 40)
	gcc, folder := cudaHeader(t)
	var c strings.Builder
	c.WriteString("#include <stdio.h>\n#include <cuda.h>\n#include \"abi.h\"\nint main(void) {\n")
	say := func(what, ours, theirs string) {
		fmt.Fprintf(&c, "\tprintf(\"%s %%lld %%lld\\n\", (long long)(%s), (long long)(%s));\n", what, ours, theirs)
	}
	for _, name := range constants {
		say(name, "ORB_"+name, name)
	}
	for name, k := range cudaConstants {
		say("cuda."+name+"="+k.theirs, fmt.Sprint(k.value)+"LL", k.theirs)
	}
	for own, theirs := range cudaTypes {
		say("sizeof_"+theirs, "sizeof("+own+")", "sizeof("+theirs+")")
	}
	c.WriteString("\treturn 0;\n}\n")
	program, err := cudaCompile(t, gcc, folder, c.String())
	if err != nil {
		t.Fatalf("the declarations and the header do not compile together: %v", err)
	}
	pairs(t, program, len(constants)+len(cudaConstants)+len(cudaTypes))
}

// cudaTypes are the types of the room and of the header that stand for each other in signatures.
var cudaTypes = map[string]string{
	"orb_cu_result": "CUresult", "orb_cu_device": "CUdevice", "orb_cu_pointer": "CUdeviceptr", "orb_cu_context": "CUcontext",
	"orb_cu_stream": "CUstream", "orb_cu_event": "CUevent", "orb_cu_uuid": "CUuuid", "orb_cu_attribute": "CUdevice_attribute",
	"orb_cu_pointer_attribute": "CUpointer_attribute", "orb_cu_flush_target": "CUflushGPUDirectRDMAWritesTarget",
	"orb_cu_flush_scope": "CUflushGPUDirectRDMAWritesScope", "orb_cu_range_handle": "CUmemRangeHandleType", "orb_cu_host_function": "CUhostFn",
}

// Each function has the header's type. That the name is the one that the header means today shows by using it without
// its ending: the header's own macros make cuMemAlloc_v2 of cuMemAlloc.
func TestCUDAFunctionsHaveTheHeadersTypes(t *testing.T) {
	names := matches(t, cudaRoom+"driver.h", cudaCallLine, 30)
	gcc, folder := cudaHeader(t)
	flags := []string{"-DORBITTE_CUDA_ABI_H", "-DORB_CUDA_SUCCESS=0", "-fsyntax-only"}
	for own, theirs := range cudaTypes {
		flags = append(flags, fmt.Sprintf("-D%s=%s", own, theirs))
	}
	for _, name := range matches(t, cudaRoom+"abi.h", cudaConstLine, 40) {
		flags = append(flags, fmt.Sprintf("-DORB_%s=%s", name, name))
	}
	program := func(extra string) string {
		var c strings.Builder
		c.WriteString("#include <stddef.h>\n#include <cuda.h>\n#include \"driver.h\"\n#define TEXT(x) #x\n#define NAME(x) TEXT(x)\n")
		for _, name := range names {
			plain := strings.TrimSuffix(name, "_v2")
			if plain == "cuDeviceGetUuid" {
				plain = name // both are called
			}
			fmt.Fprintf(&c, "_Static_assert(__builtin_types_compatible_p(__typeof__(&%s), __typeof__(((struct orbcu_driver *)0)->%s)), \"%s\");\n", plain, name, name)
			fmt.Fprintf(&c, "_Static_assert(__builtin_strcmp(NAME(%s), \"%s\") == 0, \"the name of %s\");\n", plain, name, name)
		}
		return c.String() + extra
	}
	if _, err := cudaCompile(t, gcc, folder, program(""), flags...); err != nil {
		t.Errorf("%v", err)
	}
	wrong := "_Static_assert(__builtin_types_compatible_p(__typeof__(&cuMemAlloc), __typeof__(((struct orbcu_driver *)0)->cuMemFree_v2)), \"differs\");\n"
	if _, err := cudaCompile(t, gcc, folder, program(wrong), flags...); err == nil {
		t.Error("a wrong type passes, so the check proves nothing")
	}
	t.Logf("%d functions compared", len(names))
}
