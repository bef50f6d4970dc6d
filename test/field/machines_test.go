package field

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A machine is a type whose constants are states.
type machine struct {
	room, name string
	terminal   []string // where it may stay for good
	// passing states are entered and left within one turn of the lane, so that no fault can meet them; why.
	passing map[string]string
}

// machines of the engine's path from a request to its end. The source is read for more (machineTypes).
var machines = []machine{
	{"lanes/tcp", "stage", []string{"stageDone"}, nil},
	{"lanes/tcp", "serveStage", []string{"serveDone"}, map[string]string{
		"serveDone": "finish, called with it, gives the handler back",
	}},
	{"lanes/control", "exchangeState", []string{"exchangeIdle"}, nil},
	{"lanes/control", "channelState", []string{"channelAbsent", "channelRetained"}, map[string]string{
		"channelRetained": "only a descriptor that the system refuses to close leads there (SPEC G-9); nothing is queued on it any more",
	}},
	// A session has no state in which it may stay: it ends with its stream. The frames of this walk are served one after the
	// other; what a session does that owes several answers, lanes/control's tests of detached frames show.
	{"lanes/control", "sessionState", nil, map[string]string{
		"sessionFull":     "only questions of RDMA, which are served side by side, lead there",
		"sessionHeld":     "only a frame behind such questions waits so",
		"sessionRefusing": "only a frame behind such questions is refused so",
	}},
	{"lanes/control", "notifyStage", []string{"notifyDone"}, nil},
	{".", "TaskState", []string{"TaskSucceeded", "TaskFailed", "TaskSkipped"}, nil},
	// A batch's group is waited for by nobody else: waitingLeft belongs to a caller that returned ErrUnquiesced.
	{".", "waitingState", []string{"waitingOver", "waitingLeft"}, map[string]string{
		"waitingLeft": "only a synchronous call that gives up leads there; its group goes on and is walked like any other",
	}},
	// A registration with devices: no request of this walk has any. The root's tests over the twin end it in each state.
	{".", "nativeState", []string{"nativeLive", "nativeGone", "nativeKept"}, map[string]string{
		"nativeRetiring": "entered and left by Unregister alone, on the loop for slow calls, with a device",
	}},
}

// states of a machine by their value, read from the source.
type states map[string]map[uint64]string // "room.type" → value → name

var machineName = regexp.MustCompile(`(?i)(state|stage)$`)

// readStates finds every machine in the rooms of the path.
func readStates(t *testing.T) states {
	t.Helper()
	found := states{}
	for _, room := range []string{".", "lanes", "lanes/control", "lanes/tcp", "lanes/local"} {
		files, err := filepath.Glob(filepath.Join("../..", room, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no source in %s: %v", room, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			tree, err := parser.ParseFile(token.NewFileSet(), file, text, 0)
			if err != nil {
				t.Fatal(err)
			}
			found.read(room, tree)
		}
	}
	return found
}

// read takes constant blocks whose first constant has a machine's type and the value iota, or iota + 1.
func (s states) read(room string, tree *ast.File) {
	for _, d := range tree.Decls {
		block, ok := d.(*ast.GenDecl)
		if !ok || block.Tok != token.CONST {
			continue
		}
		first := block.Specs[0].(*ast.ValueSpec)
		kind, ok := first.Type.(*ast.Ident)
		if !ok || !machineName.MatchString(kind.Name) || len(first.Values) != 1 {
			continue
		}
		value := uint64(0)
		if _, sum := first.Values[0].(*ast.BinaryExpr); sum {
			value = 1
		}
		names := map[uint64]string{}
		for _, spec := range block.Specs {
			for _, name := range spec.(*ast.ValueSpec).Names {
				names[value] = name.Name
				value++
			}
		}
		s[room+"."+kind.Name] = names
	}
}

// field case F-17: a machine, or a state, that nobody has thought of here is found in the source.
func TestEveryMachineIsWalked(t *testing.T) {
	found := readStates(t)
	var known []string
	for _, m := range machines {
		key := m.room + "." + m.name
		known = append(known, key)
		all := slices.Collect(maps.Values(found[key]))
		for _, name := range append(slices.Clone(m.terminal), slices.Collect(maps.Keys(m.passing))...) {
			if !slices.Contains(all, name) {
				t.Errorf("%s has no state %s", key, name)
			}
		}
	}
	slices.Sort(known)
	if all := slices.Sorted(maps.Keys(found)); !slices.Equal(all, known) {
		t.Errorf("machines in the source: %v\nmachines walked: %v", all, known)
	}
}

const modulePath = "github.com/orbitte/orbitte"

// finder looks through the private fields of engines and batches for values that are states. It only reads, and the
// world's one goroutine stands still meanwhile.
type finder struct {
	names states
	seen  map[[2]any]bool
	found map[string]int // "room.type.state" → how often
}

// look returns every state that anything reachable from the roots is in.
func (n states) look(roots ...any) map[string]int {
	f := &finder{n, map[[2]any]bool{}, map[string]int{}}
	for _, r := range roots {
		f.visit(reflect.ValueOf(r))
	}
	return f.found
}

func roomOf(t reflect.Type) string {
	room, inside := strings.CutPrefix(t.PkgPath(), modulePath)
	switch {
	case !inside:
		return ""
	case room == "":
		return "."
	}
	return room[1:]
}

func (f *finder) visit(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() || f.seen[[2]any{v.Pointer(), v.Type()}] {
			return
		}
		f.seen[[2]any{v.Pointer(), v.Type()}] = true
		f.visit(v.Elem())
	case reflect.Interface:
		f.visit(v.Elem())
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			f.visit(v.Index(i))
		}
	case reflect.Map:
		for each := v.MapRange(); each.Next(); {
			f.visit(each.Value())
		}
	case reflect.Struct:
		f.object(v)
	case reflect.Uint8, reflect.Uint32:
		f.note(roomOf(v.Type())+"."+v.Type().Name(), v.Uint())
	}
}

// atomics are states that several goroutines look at: their field's type does not say what they are.
var atomics = map[string]string{"task.state": "..TaskState", "group.waiting": "..waitingState"}

// object looks into a struct of the path's rooms; what is in others are no machines.
func (f *finder) object(v reflect.Value) {
	kind, room := v.Type(), roomOf(v.Type())
	if room != "." && room != "lanes" && !strings.HasPrefix(room, "lanes/") {
		return
	}
	for i := range kind.NumField() {
		field := kind.Field(i)
		if machine := atomics[kind.Name()+"."+field.Name]; machine != "" {
			f.note(machine, v.Field(i).FieldByName("v").Uint())
			continue
		}
		if f.unused(v, kind.Name(), field.Name) {
			continue
		}
		switch field.Type.Kind() {
		case reflect.Slice, reflect.Array: // of bytes and numbers there may be millions
			if k := field.Type.Elem().Kind(); k != reflect.Pointer && k != reflect.Struct && k != reflect.Interface {
				continue
			}
		}
		f.visit(v.Field(i))
	}
}

// unused fields are not a machine at work: the other direction's machine of a transfer, machines whose exchange was
// never queued, handlers that wait to be used again.
func (f *finder) unused(v reflect.Value, kind, field string) bool {
	switch kind {
	case "Service", "NotifyService":
		return field == "idle"
	case "machine", "notifyMachine":
		return field == "last" // where it ended, for the report
	case "Transfer", "Delivery":
		exchange := v.FieldByName("exchange")
		if !exchange.IsValid() {
			return false // a local copy
		}
		idle := exchange.FieldByName("state").Uint() == 0
		switch field {
		case "read", "write":
			other := map[string]uint64{"read": 2, "write": 1}[field] // lanes.Write, lanes.Read
			return v.FieldByName("Direction").Uint() == other || idle && v.FieldByName(field).FieldByName("stage").Uint() == 0
		case "machine":
			return idle && v.FieldByName(field).FieldByName("stage").Uint() == 0
		}
	}
	return false
}

func (f *finder) note(machine string, value uint64) {
	names, ok := f.names[machine]
	if !ok {
		return
	}
	name := names[value]
	if name == "" {
		name = fmt.Sprintf("no state %d", value)
	}
	f.found[machine+"."+name]++
}
