package abi

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// compiler finds gcc and the library's headers.
func compiler(t *testing.T) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("system: the native rooms are for Linux")
	}
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("compiler: no gcc; install gcc and libc6-dev")
	}
	check := exec.Command(gcc, "-fsyntax-only", "-x", "c", "-")
	check.Stdin = strings.NewReader("#include <infiniband/verbs.h>\n")
	if out, err := check.CombinedOutput(); err != nil {
		t.Skipf("headers: no <infiniband/verbs.h>; install libibverbs-dev (%s)", strings.TrimSpace(string(out)))
	}
	return gcc
}

// compile builds a C program and returns its path.
func compile(t *testing.T, text string, flags ...string) string {
	t.Helper()
	gcc := compiler(t)
	folder := t.TempDir()
	source, program := filepath.Join(folder, "abi.c"), filepath.Join(folder, "abi")
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	here, err := filepath.Abs(room)
	if err != nil {
		t.Fatal(err)
	}
	args := append(append([]string{"-std=gnu11", "-I", here}, flags...), source, "-o", program)
	if out, err := exec.Command(gcc, args...).CombinedOutput(); err != nil {
		t.Fatalf("the declarations and the headers do not compile together: %v\n%s", err, out)
	}
	return program
}

// pairs runs a program that prints "what ours theirs" and reports each difference.
func pairs(t *testing.T, program string, least int) {
	t.Helper()
	out, err := exec.Command(program).Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	for _, line := range lines {
		var what string
		var ours, theirs int64
		if n, err := fmt.Sscan(line, &what, &ours, &theirs); n != 3 {
			t.Fatalf("the program said %q: %v", line, err)
		}
		if ours != theirs {
			t.Errorf("%s: declared %d, the header has %d", what, ours, theirs)
		}
	}
	if len(lines) < least {
		t.Errorf("compared only %d numbers, at least %d are declared", len(lines), least)
	}
	t.Logf("%d numbers compared", len(lines))
}

// partial are objects that only the library makes and of which the room declares the beginning.
var partial = map[string]bool{"ibv_cq": true, "ibv_qp": true, "verbs_context": true}

func TestDeclaredStructuresAreTheHeadersOwn(t *testing.T) {
	structures, constants := declared(t)
	var c strings.Builder
	c.WriteString("#include <stdio.h>\n#include <infiniband/verbs.h>\n#include \"abi.h\"\nint main(void) {\n")
	say := func(what, ours, theirs string) {
		fmt.Fprintf(&c, "\tprintf(\"%s %%lld %%lld\\n\", (long long)(%s), (long long)(%s));\n", what, ours, theirs)
	}
	count := 0
	for _, s := range structures {
		own, theirs := "struct "+s.own, "struct "+s.theirs
		if !partial[s.theirs] {
			say("sizeof_"+s.theirs, "sizeof("+own+")", "sizeof("+theirs+")")
		}
		for _, f := range s.fields {
			at := func(s, f string) string { return fmt.Sprintf("offsetof(%s, %s)", s, f) }
			ours, them := at(own, f.own), at(theirs, f.theirs)
			if s.theirs == "verbs_context" { // it grows at its front
				ours += " - (long long)" + at(own, "context")
				them += " - (long long)" + at(theirs, "context")
			}
			say("offsetof_"+s.theirs+"."+f.theirs, ours, them)
			say("width_"+s.theirs+"."+f.theirs, width(own, f.own), width(theirs, f.theirs))
			count += 2
		}
	}
	for _, name := range constants {
		say("IBV_"+name, "ORB_"+name, "IBV_"+name)
		count++
	}
	c.WriteString("\treturn 0;\n}\n")
	pairs(t, compile(t, c.String()), count)
}

func width(s, f string) string { return fmt.Sprintf("sizeof(((%s *)0)->%s)", s, f) }

// different are functions whose C type in the header differs in words only: the header's form of ibv_query_port is
// for a structure that it keeps to itself, and its big-endian number has another name.
var different = map[string]bool{"query_port": true, "get_device_guid": true}

func TestDeclaredFunctionsHaveTheHeadersTypes(t *testing.T) {
	structures, _ := declared(t)
	flags := []string{"-DORBITTE_ABI_H", "-Werror=incompatible-pointer-types", "-fsyntax-only"}
	for _, s := range structures {
		flags = append(flags, fmt.Sprintf("-D%s=%s", s.own, s.theirs))
	}
	var c strings.Builder
	c.WriteString("#include <infiniband/verbs.h>\n#include \"library.h\"\nvoid check(struct orb_library *l) {\n")
	for _, name := range functions(t) {
		symbol := "ibv_" + name
		if name == "query_gid_table" {
			symbol = "_ibv_query_gid_table"
		}
		if !different[name] {
			fmt.Fprintf(&c, "\tl->%s = %s;\n", name, symbol)
		}
	}
	c.WriteString("}\n")
	compile(t, c.String(), flags...)
}
