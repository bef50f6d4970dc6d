package examples

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/orbitte/orbitte"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The README's program is the one that go test runs.
func TestTheReadmeShowsTheExampleAsItIs(t *testing.T) {
	readme := read(t, "../README.md")
	example := regexp.MustCompile(`(?ms)^func Example\w*\(\) \{.*?^\}\n`).FindString(read(t, "../example_test.go"))
	_, block, _ := strings.Cut(readme, "```go\n")
	block, _, _ = strings.Cut(block, "```")
	if example == "" || block != example {
		t.Errorf("the README shows\n%s\nthe example is\n%s", block, example)
	}
	code := 0
	for line := range strings.Lines(example) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
			code++
		}
	}
	if code -= 2; code > 30 { // without the function's own two lines
		t.Errorf("a transfer takes %d lines of code, at most 30", code)
	}
}

// Names in the README exist, and every limit and class of error stands there.
func TestTheReadmeNamesEveryLimitAndEveryClassOfError(t *testing.T) {
	readme := read(t, "../README.md")
	limits := reflect.TypeFor[orbitte.Limits]()
	for i := range limits.NumField() {
		if name := limits.Field(i).Name; !strings.Contains(readme, "`"+name+"`") {
			t.Errorf("Limits.%s is missing", name)
		}
	}
	tree, err := parser.ParseFile(token.NewFileSet(), "../errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	classes := map[string]bool{}
	for _, d := range tree.Decls {
		general, ok := d.(*ast.GenDecl)
		if !ok || general.Tok != token.VAR {
			continue
		}
		for _, s := range general.Specs {
			for _, name := range s.(*ast.ValueSpec).Names {
				if name.IsExported() && strings.HasPrefix(name.Name, "Err") {
					classes[name.Name] = true
				}
			}
		}
	}
	for name := range classes {
		if !strings.Contains(readme, "`"+name+"`") {
			t.Errorf("%s is missing", name)
		}
	}
	for _, match := range regexp.MustCompile(`\x60(Err[A-Z][A-Za-z]*)\x60`).FindAllStringSubmatch(readme, -1) {
		if !classes[match[1]] {
			t.Errorf("%s is no class of error", match[1])
		}
	}
}

// What is no example of the package is compiled as it stands.
func TestTheReadmesSettingsCompile(t *testing.T) {
	blocks := strings.Split(read(t, "../README.md"), "```go\n")
	uses := []string{"_ = err", "_, _, _ = pool, request, err", "_, _ = engine, err", "_, _ = exported, err"} // of what each block makes
	if len(blocks) != 2+len(uses) {
		t.Fatalf("%d blocks of Go, want %d", len(blocks)-1, 1+len(uses))
	}
	packages := []string{"fmt", "log", "os", "github.com/rs/zerolog", "github.com/orbitte/orbitte", "github.com/orbitte/orbitte/verbs/libibverbs", "github.com/orbitte/orbitte/cuda/libcuda"}
	for i, use := range uses {
		block, _, _ := strings.Cut(blocks[2+i], "```")
		text := "package main\n\n"
		for _, path := range packages {
			if regexp.MustCompile(`\b` + filepath.Base(path) + `\.[A-Z]`).MatchString(block) {
				text += "import \"" + path + "\"\n"
			}
		}
		program := filepath.Join(t.TempDir(), "main.go")
		if err := os.WriteFile(program, []byte(text+"\nfunc main() {\n"+block+use+"\n}\n"), 0o666); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("go", "vet", program).CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
}

func TestADemoOfNoSizeIsAUsageError(t *testing.T) {
	for setting, says := range map[string]string{"MIB=abc": "usage: MIB=N make demo", "MIB=0": "usage: MIB=N", "MIB=-1": "usage: MIB=N", "FILE=/nowhere": "usage: FILE=PATH make demo"} {
		demo := exec.Command("../test/demo/run.sh")
		demo.Env = append(os.Environ(), setting)
		out, err := demo.CombinedOutput()
		var failed *exec.ExitError
		if !errors.As(err, &failed) || failed.ExitCode() != 2 || !strings.HasPrefix(string(out), says) || strings.Count(string(out), "\n") != 1 {
			t.Errorf("%s: %v\n%s", setting, err, out)
		}
	}
}

// Folders and make targets that the README sends its reader to exist.
func TestTheReadmeLeadsSomewhere(t *testing.T) {
	readme, makefile := read(t, "../README.md"), read(t, "../Makefile")
	for _, match := range regexp.MustCompile(`\./([a-z_/]+)`).FindAllStringSubmatch(readme, -1) {
		if _, err := os.Stat(filepath.Join("..", match[1])); err != nil {
			t.Error(err)
		}
	}
	for _, match := range regexp.MustCompile(`\x60((?:reactor|lanes|test|netproto|examples|cmd|segments|budgets)(?:/[a-z_/]+(?:\.go)?)?)\x60`).FindAllStringSubmatch(readme, -1) {
		if _, err := os.Stat(filepath.Join("..", match[1])); err != nil {
			t.Error(err)
		}
	}
	for _, match := range regexp.MustCompile(`make ([a-z]+)`).FindAllStringSubmatch(readme, -1) {
		switch match[1] {
		case "and", "shows": // words of a sentence
		default:
			if !strings.Contains(makefile, "\n"+match[1]+":") {
				t.Errorf("make %s is no target", match[1])
			}
		}
	}
}
