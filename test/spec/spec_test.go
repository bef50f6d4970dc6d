package spec

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"
)

const root = "../.."

// scope is every number that must have a proof: letter, then the last number of its chapter.
var scope = []struct {
	letter string
	last   int
}{
	{"M", 9}, {"W", 16}, {"T", 12}, {"H", 9}, {"G", 9}, {"B", 4}, {"N", 6}, {"U", 3}, {"L", 6}, {"R", 20}, {"C", 8},
}

// fieldCases in scope.
var fieldCases = []int{
	1, 2, 3, 5, 7, 8, 9, 11, 14, 15, 16, 17, 19, 20, 21, 22, 24, 26, 27, 29, 31, 32, 34, 35, 36, 38, 40, 43, 45,
	46, 48, 49, 51, 52, 53, 55, 56, 61, 62, 64, 67, 68, 69, 70, 71, 73, 74,
}

// later may be named by a test already, but need not: chapter and last number.
var later = map[string]int{"C": 9, "F": 74}

// required lists the numbers in scope in the contract's order.
func required() []string {
	var all []string
	for _, chapter := range scope {
		for n := 1; n <= chapter.last; n++ {
			all = append(all, fmt.Sprintf("%s-%d", chapter.letter, n))
		}
	}
	for _, n := range fieldCases {
		all = append(all, fmt.Sprintf("F-%d", n))
	}
	return all
}

// exists says whether the contract has this number at all.
func exists(number string) bool {
	if slices.Contains(required(), number) {
		return true
	}
	letter, digits, _ := strings.Cut(number, "-")
	var n int
	if _, err := fmt.Sscanf(digits, "%d", &n); err != nil {
		return false
	}
	return n >= 1 && n <= later[letter]
}

// A proof is one comment that names a number.
type proof struct {
	number string
	place  string // file:line and function
	idle   bool   // it stands where no test runs
}

var (
	opening = regexp.MustCompile(`^\s*(?://|#|\*)?\s*(?:proves|field cases?)\s`)
	claim   = regexp.MustCompile(`\b(proves|field cases?)\s+([A-Z]-\d+(?:(?:\s*,\s*|\s+and\s+)[A-Z]-\d+)*)`)
	number  = regexp.MustCompile(`[A-Z]-\d+`)
)

// claims returns the numbers that one comment line names.
func claims(line string) []string {
	if !opening.MatchString(line) {
		return nil
	}
	var all []string
	for _, m := range claim.FindAllStringSubmatch(line, -1) {
		all = append(all, number.FindAllString(m[2], -1)...)
	}
	return all
}

// goProofs reads the comments of one Go file.
func goProofs(path string, text []byte) ([]proof, error) {
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, path, text, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	suite := !strings.HasSuffix(path, "_test.go") // conformance suites and check programs
	var found []proof
	for _, group := range tree.Comments {
		for _, c := range group.List {
			first := fset.Position(c.Pos()).Line
			for i, line := range strings.Split(c.Text, "\n") {
				for _, n := range claims(line) {
					name := enclosing(tree, c.Pos())
					place := fmt.Sprintf("%s:%d %s", path, first+i, name)
					found = append(found, proof{n, strings.TrimSpace(place), !suite && !runs(name)})
				}
			}
		}
	}
	return found, nil
}

// enclosing names the function that a comment stands in or directly above.
func enclosing(tree *ast.File, pos token.Pos) string {
	for _, d := range tree.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		start := f.Pos()
		if f.Doc != nil {
			start = f.Doc.Pos()
		}
		if start <= pos && pos < f.End() {
			return f.Name.Name
		}
	}
	return ""
}

// runs says whether go test starts a function of this name.
func runs(name string) bool {
	for _, prefix := range []string{"Test", "Fuzz", "Example"} {
		if strings.HasPrefix(name, prefix) && name != "TestMain" {
			return true
		}
	}
	return false
}

// scriptProofs reads the comments of a shell script.
func scriptProofs(path string, text []byte) []proof {
	var found []proof
	line := 0
	for s := range strings.Lines(string(text)) {
		line++
		if !strings.HasPrefix(strings.TrimSpace(s), "#") {
			continue
		}
		for _, n := range claims(s) {
			found = append(found, proof{n, fmt.Sprintf("%s:%d", path, line), false})
		}
	}
	return found
}

// collect reads the whole tree.
func collect(t *testing.T) []proof {
	t.Helper()
	var found []proof
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if entry.IsDir() {
			if slices.Contains([]string{".git", "bin", "dist", "test/spec", "test/arch"}, rel) || entry.Name() == "testdata" {
				return fs.SkipDir
			}
			return nil
		}
		more, err := read(rel, name)
		found = append(found, more...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func read(rel, name string) ([]proof, error) {
	below := strings.HasPrefix(rel, "test/")
	suite := below || strings.HasPrefix(rel, "reactor/kerneltest/")
	isGo := strings.HasSuffix(rel, "_test.go") || suite && strings.HasSuffix(rel, ".go")
	isScript := below && strings.HasSuffix(rel, ".sh")
	if !isGo && !isScript {
		return nil, nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if isScript {
		return scriptProofs(rel, text), nil
	}
	return goProofs(rel, text)
}

func TestEveryRequirementIsNamedByATest(t *testing.T) {
	places := map[string][]string{}
	for _, p := range collect(t) {
		switch {
		case !exists(p.number):
			t.Errorf("%s names %s, which the contract does not have", p.place, p.number)
		case p.idle:
			t.Errorf("%s names %s outside a test function: move the comment into or above the test", p.place, p.number)
		default:
			places[p.number] = append(places[p.number], p.place)
		}
	}
	var missing []string
	for _, n := range required() {
		if len(places[n]) == 0 {
			missing = append(missing, n)
			continue
		}
		sort.Strings(places[n])
		t.Logf("%-5s → %s", n, strings.Join(places[n], "\n          → "))
	}
	if len(missing) > 0 {
		t.Errorf("%d of %d requirements are named by no test: %s", len(missing), len(required()), strings.Join(missing, ", "))
	}
}

func TestClaimsAreReadFromTheStartOfALineOnly(t *testing.T) {
	for line, want := range map[string]string{
		"// proves T-5":                          "T-5",
		"// proves M-4, M-5":                     "M-4 M-5",
		"// proves M-4 and W-15; field case F-9": "M-4 W-15 F-9",
		"// field cases F-35, F-36":              "F-35 F-36",
		"# field case F-40":                      "F-40",
		"proves T-1 inside a block comment":      "T-1",
		"// nothing here proves T-5":             "",
		"// proves that T-5 holds":               "",
		"// improves T-5":                        "",
	} {
		if got := strings.Join(claims(line), " "); got != want {
			t.Errorf("%q: got %q, want %q", line, got, want)
		}
	}
}

func TestAClaimOutsideATestFunctionIsIdle(t *testing.T) {
	const text = `package p

// proves T-1
func TestA(t *testing.T) {
	// proves T-2
}

// proves T-3
func helper() {}

// proves T-4

// proves T-5
func FuzzB(f *testing.F) {}

var s = "// proves T-6"
`
	found, err := goProofs("x/a_test.go", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range found {
		got = append(got, fmt.Sprintf("%s %v", p.number, p.idle))
	}
	want := []string{"T-1 false", "T-2 false", "T-3 true", "T-4 true", "T-5 false"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestNumbersOutsideTheContractAreUnknown(t *testing.T) {
	for number, want := range map[string]bool{
		"T-12": true, "T-13": false, "W-16": true, "W-0": false, "F-31": true, "F-75": false, "R-20": true, "R-21": false, "X-1": false,
	} {
		if exists(number) != want {
			t.Errorf("exists(%s) = %v", number, !want)
		}
	}
	if got, want := len(required()), 102+len(fieldCases); got != want {
		t.Errorf("%d numbers are required, want %d", got, want)
	}
}
