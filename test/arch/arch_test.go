package arch

import (
	"slices"
	"strings"
	"testing"
)

const root = "../.."

func load(t *testing.T) *tree {
	t.Helper()
	tr, err := readTree(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(tr.files) == 0 {
		t.Fatal("found no Go files: is the test run from its own folder?")
	}
	return tr
}

func report(t *testing.T, found []finding) {
	t.Helper()
	for _, f := range found {
		t.Error(f)
	}
}

// each runs a rule over every file.
func each(t *testing.T, rule func(*file) []finding) {
	t.Helper()
	for _, f := range load(t).files {
		report(t, rule(f))
	}
}

// packages groups the shipped files by folder; a folder with tests only has an empty group.
func (t *tree) packages() (folders []string, files map[string][]*file) {
	files = map[string][]*file{}
	for _, f := range t.files {
		if _, ok := files[f.room]; !ok {
			folders = append(folders, f.room)
			files[f.room] = nil
		}
		if !f.test {
			files[f.room] = append(files[f.room], f)
		}
	}
	slices.Sort(folders)
	return folders, files
}

func TestTopLevelHoldsOnlyTheAgreedEntries(t *testing.T) {
	tr := load(t)
	for _, name := range tr.top {
		report(t, checkTop(name, tr.ignored))
	}
}

func TestEveryFolderIsInThePlan(t *testing.T) {
	for _, folder := range load(t).folders {
		report(t, checkFolder(folder))
	}
}

func TestRoomsImportOnlyWhatThePlanAllows(t *testing.T) { each(t, checkImports) }

func TestWordsAreSaidOnlyInTheirRooms(t *testing.T) { each(t, checkWords) }

func TestSizesStayReadableAndNothingIsLeftOver(t *testing.T) { each(t, checkShapes) }

func TestMachinesArePure(t *testing.T) {
	folders, files := load(t).packages()
	for _, folder := range folders {
		for _, f := range files[folder] {
			report(t, checkMachine(f, files[folder]))
		}
	}
}

func TestEveryPackageIsDocumented(t *testing.T) {
	folders, files := load(t).packages()
	for _, folder := range folders {
		report(t, checkDoc(folder, files[folder]))
	}
}

// TestPlanKeepsItsDirection holds the tables themselves: no room twice, bottom rooms stand alone,
// implementations see their parent only, and nothing but tests imports a program.
func TestPlanKeepsItsDirection(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range rooms {
		if seen[r.path] || r.purpose == "" {
			t.Errorf("room %s is in the plan twice or has no purpose", r.path)
		}
		seen[r.path] = true
		for _, target := range r.imports {
			if !planned(strings.TrimSuffix(target, "/*")) {
				t.Errorf("room %s may import %s, which is in no plan", r.path, target)
			}
			if programs.contains(target) && target != "reactor/kerneltest" && target != "verbs/verbstest" && target != "cuda/cudatest" && target != "test/twins" && !checks.contains(r.path) {
				t.Errorf("room %s may import the program %s", r.path, target)
			}
		}
	}
	for _, bottom := range []string{"budgets", "netproto", "verbs", "cuda", "reactor"} {
		if r, _ := findRoom(bottom); len(r.imports) != 0 {
			t.Errorf("bottom room %s may import %v", bottom, r.imports)
		}
	}
	for _, implementation := range join(kernels, twins, natives) {
		r, _ := findRoom(implementation)
		for _, target := range r.imports {
			if target != parent(implementation) && target != "reactor/socket" {
				t.Errorf("implementation %s may import %s besides its parent", implementation, target)
			}
		}
	}
}

func parent(path string) string {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '/' {
			return path[:i]
		}
	}
	return "."
}
