package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// A node is anything with a position.
type node interface{ Pos() token.Pos }

// A finding is one broken rule.
type finding struct {
	file   string
	line   int // 0: the file or folder as a whole
	rule   string
	what   string
	remedy string
}

func (f finding) String() string {
	where := f.file
	if f.line > 0 {
		where = fmt.Sprintf("%s:%d", f.file, f.line)
	}
	return fmt.Sprintf("%s: [%s] %s. Remedy: %s", where, f.rule, f.what, f.remedy)
}

// A file is one parsed Go file of the tree, or a snippet of the self-test.
type file struct {
	path  string // from the repository root, with slashes
	room  string // its folder, "." for the root
	name  string
	test  bool // its name ends in _test.go
	lines int
	fset  *token.FileSet
	tree  *ast.File
	names map[string]string // local package name → import path
}

func parse(name string, text []byte) (*file, error) {
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, name, text, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	f := &file{
		path: name, room: path.Dir(name), name: path.Base(name), test: strings.HasSuffix(name, "_test.go"),
		lines: fset.File(tree.Pos()).LineCount(), fset: fset, tree: tree, names: map[string]string{},
	}
	for _, spec := range tree.Imports {
		f.names[localName(spec)] = importPath(spec)
	}
	return f, nil
}

func (f *file) line(n node) int { return f.fset.Position(n.Pos()).Line }

func (f *file) at(n node, rule, what, remedy string) finding {
	return finding{f.path, f.line(n), rule, what, remedy}
}

// selected returns the import path behind an expression like time.Now, and the name; an empty path
// when the expression names a local value.
func (f *file) selected(s *ast.SelectorExpr) (string, string) {
	id, ok := s.X.(*ast.Ident)
	if !ok || id.Obj != nil {
		return "", ""
	}
	return f.names[id.Name], s.Sel.Name
}

func importPath(spec *ast.ImportSpec) string {
	p, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		return spec.Path.Value
	}
	return p
}

func localName(spec *ast.ImportSpec) string {
	if spec.Name != nil {
		return spec.Name.Name
	}
	p := importPath(spec)
	base := path.Base(p)
	if len(base) > 1 && base[0] == 'v' && strings.Trim(base[1:], "0123456789") == "" {
		base = path.Base(path.Dir(p))
	}
	return base
}

// A tree is everything the rules look at.
type tree struct {
	top     []string
	folders []string
	files   []*file
	ignored places // first-level names in .gitignore
}

func readTree(root string) (*tree, error) {
	t := &tree{}
	text, err := os.ReadFile(filepath.Join(root, ".gitignore"))
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	t.ignored = ignoredNames(string(text))
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		t.top = append(t.top, entry.Name())
	}
	return t, filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		return t.visit(filepath.ToSlash(rel), name, entry)
	})
}

func (t *tree) visit(rel, name string, entry fs.DirEntry) error {
	if entry.IsDir() {
		if rel == ".git" || t.ignored.contains(rel) {
			return fs.SkipDir
		}
		t.folders = append(t.folders, rel)
		return nil
	}
	if !strings.HasSuffix(rel, ".go") || strings.Contains("/"+rel, "/testdata/") {
		return nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	f, err := parse(rel, text)
	if err != nil {
		return err
	}
	t.files = append(t.files, f)
	return nil
}

// ignoredNames returns the first-level names of lines such as "/bin/".
func ignoredNames(text string) places {
	var names places
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "/"); ok {
			names = append(names, strings.TrimSuffix(rest, "/"))
		}
	}
	return names
}
