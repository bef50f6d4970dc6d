package arch

import (
	"fmt"
	"go/ast"
	"regexp"
	"strings"
)

const (
	functionLinesMax = 70
	fileLinesMax     = 600 // the guide is 400
	docParagraphsMin = 5
)

// leftover matches marks of unfinished work; the parts are apart so that this line is none.
var leftover = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X|HA` + `CK)\b`)

// checkShapes holds sizes and comments of one file.
func checkShapes(f *file) []finding {
	var found []finding
	for _, group := range f.tree.Comments {
		for _, c := range group.List {
			if mark := leftover.FindString(c.Text); mark != "" {
				found = append(found, f.at(c, "leftover", "unfinished work is marked "+mark, "finish it, or describe the limit as it is"))
			}
		}
	}
	if f.test {
		return found
	}
	if f.lines > fileLinesMax {
		found = append(found, finding{f.path, f.lines, "file-lines", fmt.Sprintf("%d lines, at most %d", f.lines, fileLinesMax), "split it by what its parts decide; the guide is 400"})
	}
	ast.Inspect(f.tree, func(n ast.Node) bool {
		var name string
		switch n := n.(type) {
		case *ast.FuncDecl:
			name = n.Name.Name
		case *ast.FuncLit:
			name = "function literal"
		default:
			return true
		}
		lines := f.fset.Position(n.End()).Line - f.line(n) + 1
		if lines > functionLinesMax {
			found = append(found, f.at(n, "function-lines", fmt.Sprintf("%s has %d lines, at most %d", name, lines, functionLinesMax), "give each step a function with a name"))
			return false
		}
		return true
	})
	return found
}

// checkDoc holds the documentation of one package: files are those of one folder.
func checkDoc(folder string, files []*file) []finding {
	want := docParagraphsMin
	if programs.contains(folder) {
		want = 1
	}
	for _, f := range files {
		if f.name != "doc.go" {
			continue
		}
		if got := paragraphs(f.tree.Doc); got < want {
			return []finding{{f.path, f.line(f.tree), "doc", fmt.Sprintf("the package comment has %d paragraphs, at least %d", got, want),
				"say what the room is for; what it owns and how each thing ends; what it may import; the states, drawn in text; what it relies on outside"}}
		}
		return nil
	}
	return []finding{{folder, 0, "doc", "the package has no doc.go", "write one: purpose, ownership, imports, states, what it relies on"}}
}

func paragraphs(doc *ast.CommentGroup) int {
	count := 0
	for part := range strings.SplitSeq(doc.Text(), "\n\n") {
		if strings.TrimSpace(part) != "" {
			count++
		}
	}
	return count
}
