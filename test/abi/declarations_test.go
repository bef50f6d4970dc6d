package abi

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// room is where the declarations are.
const room = "../../verbs/libibverbs/"

// A field is one field that the room declares, and its path in the library's structure.
type field struct{ own, theirs string }

// A structure is one that the room declares, without its unused fields.
type structure struct {
	own, theirs string // "orb_wc", "ibv_wc"
	fields      []field
}

var (
	structBegin = regexp.MustCompile(`^struct orb_(\w+) \{$`)
	fieldLine   = regexp.MustCompile(`^\t[^/]*?(?:\(\*(\w+)\)\(.*\)|(\w+)(?:\[\d+\])?);(?: // ([\w.]+))?$`)
	constLine   = regexp.MustCompile(`^\tORB_(\w+) = .*,$`)
	functionRow = regexp.MustCompile(`^\t[^/]*\(\*(\w+)\)\(.*\);`)
)

func read(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(text), "\n")
}

// declared reads abi.h.
func declared(t *testing.T) (structures []structure, constants []string) {
	t.Helper()
	inside := false
	for i, line := range read(t, room+"abi.h") {
		if m := structBegin.FindStringSubmatch(line); m != nil {
			theirs := "ibv_" + m[1]
			if m[1] == "verbs_context" {
				theirs = m[1]
			}
			structures, inside = append(structures, structure{"orb_" + m[1], theirs, nil}), true
			continue
		}
		if m := constLine.FindStringSubmatch(line); m != nil {
			constants = append(constants, m[1])
			continue
		}
		if line == "};" {
			inside = false
		}
		if !inside {
			continue
		}
		m := fieldLine.FindStringSubmatch(line)
		if m == nil && strings.HasPrefix(line, "\tunion {") {
			m = []string{line, "", strings.TrimSuffix(line[strings.LastIndex(line, " ")+1:], ";"), ""}
		}
		if m == nil {
			t.Fatalf("%sabi.h:%d: this line declares no field in the form that is read here: %q", room, i+1, line)
		}
		name := m[1] + m[2]
		if strings.HasPrefix(name, "unused") {
			continue
		}
		theirs := name
		if m[3] != "" {
			theirs = m[3]
		}
		s := &structures[len(structures)-1]
		s.fields = append(s.fields, field{name, theirs})
	}
	if len(structures) < 20 || len(constants) < 30 {
		t.Fatalf("read only %d structures and %d constants of abi.h", len(structures), len(constants))
	}
	return structures, constants
}

// functions reads the names in library.h.
func functions(t *testing.T) (names []string) {
	t.Helper()
	for _, line := range read(t, room+"library.h") {
		if m := functionRow.FindStringSubmatch(line); m != nil {
			names = append(names, m[1])
		}
	}
	if len(names) < 20 {
		t.Fatalf("read only %d functions of library.h", len(names))
	}
	return names
}
