package arch

import (
	"go/ast"
	"slices"
	"strings"
)

var (
	machineRooms = places{"budgets", "lanes", "netproto", "segments"}

	// pureImports are the standard packages without socket, clock, goroutine, order or chance.
	pureImports = places{
		"bytes", "cmp", "container/heap", "container/list", "encoding/binary", "encoding/hex", "errors", "fmt",
		"hash/crc32", "iter", "math", "math/bits", "net/netip", "slices", "sort", "strconv", "strings", "time",
		"unicode/utf8",
	}
	pureTime = places{"Duration", "Nanosecond", "Microsecond", "Millisecond", "Second", "Minute", "Hour"}
)

// checkMachine holds a *_machine.go file to what a pure decision may use. Package is every shipped
// file of the same folder, where types and fields may be declared.
func checkMachine(f *file, pkg []*file) []finding {
	if !strings.HasSuffix(f.name, "_machine.go") {
		return nil
	}
	const remedy = "let the drive (*_drive.go) do it and hand the result to the machine"
	var found []finding
	for _, spec := range f.tree.Imports {
		path := importPath(spec)
		target, ours := strings.CutPrefix(path, module+"/")
		if ours && machineRooms.contains(target) || pureImports.contains(path) {
			continue
		}
		found = append(found, f.at(spec, "machine-import", "a machine may not import "+path, remedy))
	}
	maps := collectMaps(pkg)
	ast.Inspect(f.tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if path, name := f.selected(n); path == "time" && !pureTime.contains(name) {
				found = append(found, f.at(n, "machine-time", "a machine may not use time."+name, "take instants and durations as arguments"))
			}
		case *ast.SelectStmt, *ast.SendStmt, *ast.ChanType:
			found = append(found, f.at(n, "machine-channel", "a machine has no channels", remedy))
		case *ast.RangeStmt:
			if maps.isMap(n.X, f.tree) {
				found = append(found, f.at(n, "machine-map-range", "the order of a map is chance", "keep a slice beside the map, or sort the keys"))
			}
		}
		return true
	})
	return found
}

// mapNames is what one package declares with a map type, as far as its syntax shows.
type mapNames struct {
	types  []string // type names
	fields []string // struct fields
	values []string // package-level variables
	calls  []string // functions and methods whose first result is a map
}

func collectMaps(pkg []*file) *mapNames {
	m := &mapNames{}
	// Types first, since the other declarations may use them.
	for _, f := range pkg {
		ast.Inspect(f.tree, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok && m.mapType(spec.Type) {
				m.types = append(m.types, spec.Name.Name)
			}
			return true
		})
	}
	for _, f := range pkg {
		ast.Inspect(f.tree, func(n ast.Node) bool {
			m.collect(n)
			return true
		})
	}
	return m
}

func (m *mapNames) collect(n ast.Node) {
	switch n := n.(type) {
	case *ast.StructType:
		for _, field := range n.Fields.List {
			if m.mapType(field.Type) {
				m.fields = append(m.fields, names(field.Names)...)
			}
		}
	case *ast.FuncDecl:
		if r := n.Type.Results; r != nil && m.mapType(r.List[0].Type) {
			m.calls = append(m.calls, n.Name.Name)
		}
	case *ast.GenDecl:
		for _, spec := range n.Specs {
			if v, ok := spec.(*ast.ValueSpec); ok {
				m.values = append(m.values, m.declared(v)...)
			}
		}
	}
}

// declared returns the names that a var declaration gives to maps.
func (m *mapNames) declared(v *ast.ValueSpec) []string {
	if v.Type != nil {
		if m.mapType(v.Type) {
			return names(v.Names)
		}
		return nil
	}
	var found []string
	for i, value := range v.Values {
		if i < len(v.Names) && m.mapValue(value) {
			found = append(found, v.Names[i].Name)
		}
	}
	return found
}

func (m *mapNames) mapType(t ast.Expr) bool {
	switch t := t.(type) {
	case *ast.MapType:
		return true
	case *ast.Ident:
		return slices.Contains(m.types, t.Name)
	case *ast.ParenExpr:
		return m.mapType(t.X)
	}
	return false
}

// mapValue says whether an expression makes a map: a literal, make, or a function known to return one.
func (m *mapNames) mapValue(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.CompositeLit:
		return m.mapType(e.Type)
	case *ast.CallExpr:
		if id, ok := e.Fun.(*ast.Ident); ok {
			return id.Name == "make" && len(e.Args) > 0 && m.mapType(e.Args[0]) || slices.Contains(m.calls, id.Name) || m.mapType(id)
		}
		if s, ok := e.Fun.(*ast.SelectorExpr); ok {
			return slices.Contains(m.calls, s.Sel.Name)
		}
	}
	return false
}

// isMap says whether the operand of a range is a map.
func (m *mapNames) isMap(e ast.Expr, tree *ast.File) bool {
	switch e := e.(type) {
	case *ast.SelectorExpr:
		return slices.Contains(m.fields, e.Sel.Name)
	case *ast.ParenExpr:
		return m.isMap(e.X, tree)
	case *ast.Ident:
		if e.Obj == nil || tree.Scope.Lookup(e.Name) == e.Obj {
			return slices.Contains(m.values, e.Name)
		}
		return m.localMap(e)
	}
	return m.mapValue(e)
}

// localMap follows a local name to its declaration.
func (m *mapNames) localMap(local *ast.Ident) bool {
	switch d := local.Obj.Decl.(type) {
	case *ast.Field:
		return m.mapType(d.Type)
	case *ast.ValueSpec:
		return slices.Contains(m.declared(d), local.Name)
	case *ast.AssignStmt:
		for i, left := range d.Lhs {
			if id, ok := left.(*ast.Ident); !ok || id.Name != local.Name || i >= len(d.Rhs) {
				continue
			}
			if s, ok := d.Rhs[i].(*ast.SelectorExpr); ok {
				return slices.Contains(m.fields, s.Sel.Name)
			}
			return m.mapValue(d.Rhs[i])
		}
	}
	return false
}

func names(ids []*ast.Ident) []string {
	var all []string
	for _, id := range ids {
		all = append(all, id.Name)
	}
	return all
}
